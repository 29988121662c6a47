"""Models of this package under inspect_ai: the provider `unmask`.

    inspect eval task.py --model unmask/reversal-mdm -M steps=32 -M device=cpu

What stands after `unmask/` is a model's name or folder, `-M` settings of `unmask.Sampling`, device
or dtype. A model with a chat template gets the conversation in its own words; one without is asked
what the last message says. `--temperature`, `--top-p`, `--top-k`, `--seed`, `--max-tokens` and
`--stop-seqs` of inspect come before the settings. The same request again, as by `--epochs`, is
drawn anew unless `--seed` is given. Tools are refused: no model here calls any.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from threading import Lock
from typing import Any

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.evaluation.questions import require_tokenizer
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.sampling.settings import Sampling
from unmask.sampling.texts import sample

MAX_TOKENS = 256
"""Where nothing says how long an answer may be."""
_OWN = ("temperature", "top_p", "top_k", "seed")
"""Settings of inspect that are settings of `unmask.Sampling`."""


@dataclass(frozen=True)
class WrittenAnswer:
    """What a model wrote after a conversation, and how much was read and written."""

    text: str
    is_cut: bool
    """Whether it ended for want of room."""
    read: int
    written: int
    calls: int
    """Network calls."""


class Answerer:
    """A model that answers conversations, one at a time, whichever threads ask."""

    def __init__(self, name: str, **arguments: Any):
        own = {key: arguments.pop(key, "auto") for key in ("device", "dtype")}
        self.settings = build(Sampling, {"keep_states": False} | arguments, f"unmask/{name}")
        self.model: Model = load(name, **own)
        self._turn = Lock()
        self._met: Counter[str] = Counter()

    def answer(
        self,
        messages: Sequence[tuple[str, str]],
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        **changes: Any,
    ) -> WrittenAnswer:
        """The text after a conversation of (role, text); `changes` are settings by name."""
        if not messages:
            raise UserError("a conversation without a message was given: expected at least one.")
        tokenizer, context = require_tokenizer(self.model), self.model.net.config.context
        if tokenizer.chat is not None:
            text = tokenizer.chat.render(
                [{"role": role, "content": each} for role, each in messages]
            )
        else:
            text = messages[-1][1]
        ids = tokenizer.encode(text).ids or tokenizer.opening
        room = max_tokens or min(MAX_TOKENS, context - min(len(ids), context - 1))
        if len(ids) + room > context:
            raise UserError(
                f"a conversation of {len(ids)} tokens and an answer of {room} do not fit the "
                f"context of {context}: ask for fewer by --max-tokens, or shorten it."
            )
        given = {key: value for key, value in changes.items() if value is not None}
        settings = replace(self.settings, length=len(ids) + room, **given)
        # inspect_ai asks as often at once as it likes, whatever `max_connections` of a model says.
        with self._turn:
            request = repr((messages, room, stop, given))
            if self._met[request] and "seed" not in given:
                seed = derive_seed(settings.seed, "repeat", self._met[request])
                settings = replace(settings, seed=seed)
            self._met[request] += 1
            drawn = sample(self.model, [ids], settings)
        tokens = drawn.tokens[0, len(ids) : int(drawn.lengths[0])].tolist()
        ends = tokenizer.find_special(stop) | {tokenizer.end_id}
        length = next((i for i, token in enumerate(tokens) if token in ends), None)
        is_cut, tokens = length is None, tokens[:length]
        written = tokenizer.decode(tokens)
        for each in stop:
            if each and each in written:
                written, is_cut = written[: written.index(each)], False
        return WrittenAnswer(written, is_cut, len(ids), len(tokens), drawn.calls)

    def describe(self) -> dict[str, Any]:
        """Every sampling setting that is not its default, for the log."""
        defaults = {each.name: each.default for each in fields(Sampling)}
        values = {name: getattr(self.settings, name) for name in defaults}
        return {name: value for name, value in values.items() if value != defaults[name]}


def read_config(config: Any) -> dict[str, Any]:
    """What inspect's settings of a generation say, as `Answerer.answer` takes it."""
    changes = {name: getattr(config, name, None) for name in _OWN}
    changes |= {"max_tokens": config.max_tokens, "stop": tuple(config.stop_seqs or ())}
    return changes


def make_provider() -> Any:
    """The class that inspect_ai makes its models of."""
    from inspect_ai.model import (  # ty: ignore[import-not-found]
        ChatCompletionChoice,
        ChatMessageAssistant,
        GenerateConfig,
        ModelAPI,
        ModelOutput,
        ModelUsage,
    )

    class UnmaskAPI(ModelAPI):
        """A model of this package; its answers are drawn one after the other."""

        def __init__(
            self,
            model_name: str,
            base_url: str | None = None,
            api_key: str | None = None,
            config: Any = GenerateConfig(),  # noqa: B008 (inspect_ai's own signature)
            **model_args: Any,
        ):
            super().__init__(model_name, base_url, api_key, [], config)
            self.answerer = Answerer(model_name, **model_args)

        def max_connections(self) -> int:
            return 1

        async def generate(
            self, input: list[Any], tools: list[Any], tool_choice: Any, config: Any
        ) -> Any:
            if tools:
                raise UserError(
                    f"{self.model_name} was given {len(tools)} tools: models of unmask call none; "
                    "choose a task without tools."
                )
            messages = [(each.role, each.text) for each in input]
            answer = await asyncio.to_thread(
                lambda: self.answerer.answer(messages, **read_config(config))
            )
            choice = ChatCompletionChoice(
                message=ChatMessageAssistant(
                    content=answer.text, model=self.model_name, source="generate"
                ),
                stop_reason="max_tokens" if answer.is_cut else "stop",
            )
            total = answer.read + answer.written
            usage = ModelUsage(
                input_tokens=answer.read, output_tokens=answer.written, total_tokens=total
            )
            notes: Mapping[str, Any] = {"calls": answer.calls} | self.answerer.describe()
            return ModelOutput(
                model=self.model_name, choices=[choice], usage=usage, metadata=dict(notes)
            )

    return UnmaskAPI


if find_spec("inspect_ai") is not None:
    from inspect_ai.model import modelapi  # ty: ignore[import-not-found]

    @modelapi(name="unmask")
    def unmask_models() -> Any:
        """Registered when inspect_ai reads the entry points of its group."""
        return make_provider()
