"""The model class of lm-evaluation-harness: any model of this package, asked in batches.

Registered as `unmask`: by the verb `unmask harness` with lm_eval 0.4.13, by the entry point
`lm_eval.models` with versions that look for one.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
import torch.distributed as dist
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from unmask.base.config import build
from unmask.base.devices import resolve_device
from unmask.base.errors import UserError
from unmask.base.identity import digest_values
from unmask.base.progress import track
from unmask.base.seeds import derive_seed
from unmask.evaluation.signals import count_kept_rows, find_signals
from unmask.harness.bounds import WindowScorer
from unmask.harness.generation import Generation, read_generation
from unmask.harness.scoring import LikelihoodRequest, RequestScorer
from unmask.harness.settings import HarnessSettings
from unmask.harness.summary import SignalledText, Signals, summarise_errors
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.objectives.likelihood import Estimate
from unmask.sampling.guidance import guidance_schedule
from unmask.sampling.texts import sample
from unmask.training.parallel import World, join


@register_model("unmask")
class UnmaskLM(TemplateLM):
    """A model for `lm_eval.simple_evaluate`, or for `lm_eval --model unmask --model_args model=…`.

    Args:
        model: A loaded model, or the name, folder or file of one.
        device: "auto", "cpu", "cuda", …; under torchrun each process takes its own.
        dtype: Dtype; "auto" suits file and device.
        batch_size: Not read: as many rows run together as fit into memory, or `rows` of them.
        max_batch_size: Not read.
        settings: The fields of `unmask.harness.settings.HarnessSettings`, or all as one object.
    """

    def __init__(
        self,
        model: str | Model,
        device: str = "auto",
        dtype: str = "auto",
        batch_size: Any = None,
        max_batch_size: Any = None,
        settings: HarnessSettings | None = None,
        **changes: Any,
    ):
        super().__init__()
        self.settings = build(HarnessSettings, changes, "model_args", settings)
        self._processes = ExitStack()
        if dist.is_initialized():
            own = resolve_device(device)
            world = World(own, dist.get_rank(), dist.get_world_size(), joined=True)
        else:
            world = self._processes.enter_context(join(device))
        self.world = world
        self.model = (
            model
            if isinstance(model, Model)
            else load(str(model), device=str(world.device), dtype=dtype)
        )
        self._device, self._rank, self._world_size = self.model.device, world.rank, world.size
        self.own_tokenizer = self.model.require_tokenizer()
        self.errors: dict[tuple[str, ...], float] = {}
        """Standard errors in nats of the likelihoods that were asked for, by their arguments."""
        self.cut: set[str] = set()
        """Contexts that were too long and lost their beginning."""
        self.signals: dict[str, list[Signals]] = defaultdict(list)
        """What the drawing of each text says of it, by the request's arguments."""

    def close(self) -> None:
        """Leave the processes of torchrun, where this model joined them."""
        self._processes.close()

    # Tokens.

    @property
    def eot_token_id(self) -> int:
        return self.own_tokenizer.end_id

    @property
    def prefix_token_id(self) -> int:
        """What a text without a context comes after: the beginning token, or else the end token."""
        known = self.own_tokenizer
        named = [] if known.begin_id is None else [known.begin_id]
        return (named or known.opening)[-1]

    @property
    def max_length(self) -> int:
        return self.model.net.config.context

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """The ids of a text after its beginning, unless `add_special_tokens` is false."""
        added = "nothing" if add_special_tokens is False else "beginning"
        return self.own_tokenizer.encode(string, added=added).ids

    def _cut_beginning(self, text: str, ids: list[int], most: int) -> list[int]:
        """The last tokens of a context, as many as there is room for; one that is cut is noted."""
        if len(ids) > most:
            self.cut.add(text)
        return ids[-most:]

    # Likelihoods.

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        if any(request.args == ("", "") for request in requests):
            raise UserError(
                "a task asks for the likelihood of an empty continuation of an empty context: "
                "expected a text in one of them; check its doc_to_text and its choices."
            )
        return super().loglikelihood(requests, disable_tqdm)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        """log p of each continuation (at least that much, for a bound), and if it is greedy.

        A context that is too long loses its beginning. Continuations of one context are hidden by
        the same draws: what they share is left out of their difference.
        """
        scorer = RequestScorer(self.model, self.settings)
        wanted = []
        for (before, text), context, continuation in requests:
            if not continuation or len(continuation) >= scorer.longest:
                raise UserError(
                    f"the continuation {text!r:.80} has {len(continuation)} tokens: expected 1 to "
                    f"{scorer.longest - 1}, which the context of {self.model.name} holds."
                )
            # Nothing is left of a context of spaces alone: they are moved to the continuation.
            context = context or [self.prefix_token_id]
            context = self._cut_beginning(before, context, scorer.longest - len(continuation))
            seed = derive_seed(self.settings.seed, "context", tuple(context))
            wanted.append(LikelihoodRequest(context, continuation, seed))
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for i, scored in scorer.score(wanted, "likelihoods"):
            answers[i] = (-scored.estimate.nll, scored.is_greedy)
            self._keep("loglikelihood", requests[i][0], scored.estimate.error, answers[i])
        return answers

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """log p of whole texts, after `prefix_token_id`, in windows that do not repeat a token.

        Every token counts once. By default a window holds one token of context, as in the harness's
        other models; a smaller `stride` gives the tokens of later windows more of it.
        """
        choose = RequestScorer if self.model.paradigm.is_scored else WindowScorer
        scorer = choose(self.model, self.settings)
        windows, owners = [], []
        for i, request in enumerate(requests):
            (text,) = request.args
            met: Counter[tuple[int, ...]] = Counter()
            whole = self.own_tokenizer.encode(text, added="both").ids
            ids = whole[self.model.count_beginning(whole) :]
            for context, continuation in self._cut(ids, scorer.longest):
                tokens = (*context, *continuation)
                again = ("again", met[tokens]) if met[tokens] else ()
                met[tokens] += 1
                seed = derive_seed(self.settings.seed, "window", tokens, *again)
                windows.append(LikelihoodRequest(context, continuation, seed))
                owners.append(i)
        scores: dict[int, list[Estimate]] = defaultdict(list)
        for number, estimate in scorer.score_windows(windows):
            scores[owners[number]].append(estimate)
        sums = []
        for i, request in enumerate(requests):
            sums.append(-sum(each.nll for each in scores[i]))
            # Windows have seeds of their own, equal ones too: their errors are independent.
            error = sum(each.error**2 for each in scores[i]) ** 0.5
            self._keep("loglikelihood_rolling", request.args, error, sums[-1])
        return sums

    def _cut(self, ids: list[int], longest: int) -> list[tuple[list[int], list[int]]]:
        """A text's windows, each of tokens that are given and tokens that are scored."""
        window = longest if self.settings.window is None else self.settings.window
        if not 2 <= window <= longest:
            raise UserError(
                f"windows of {window} tokens were asked for: expected 2 to {longest}, with one "
                "token of context."
            )
        most = window - 1
        stride = most if self.settings.stride is None else self.settings.stride
        if stride > most:
            raise UserError(f"a stride of {stride} was given: expected at most {most}.")
        windows = get_rolling_token_windows(ids, self.prefix_token_id, most, most - stride + 1)
        return [make_disjoint_window(each) for each in windows]

    def _keep(self, kind: str, arguments: tuple[str, ...], error: float, answer: Any) -> None:
        self.errors[tuple(arguments)] = error
        self.cache_hook.add_partial(kind, arguments, answer)

    # Texts.

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """A text after each context, cut at the first of the task's stop sequences.

        A text depends on its context and settings, not on its batch; the same request again gets
        another one.
        """
        met: Counter[str] = Counter()
        groups: dict[tuple[str, int], list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            key = repr(request.args)
            groups[repr(request.args[1]), met[key]].append(i)
            met[key] += 1
        texts = [""] * len(requests)
        for (_, repeat), group in track(list(groups.items()), "texts", len(groups)):
            kwargs = requests[group[0]].args[1]
            generation = read_generation(self.model, self.settings, kwargs, repeat)
            prompts = [self._encode_prompt(requests[i].args[0], generation.room) for i in group]
            written = self._write(prompts, generation)
            for i, (text, signals) in zip(group, written, strict=True):
                if signals:
                    self.signals[repr(requests[i].args)].append(signals)
                texts[i] = postprocess_generated_text(text, generation.until, None)
                self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
        return texts

    def _encode_prompt(self, text: str, room: int) -> list[int]:
        """The end of a context that leaves the room free; `prefix_token_id` where there is none."""
        ids = self.tok_encode(text) or [self.prefix_token_id]
        return self._cut_beginning(text, ids, self.max_length - room)

    def _write(self, prompts: Sequence[list[int]], generation: Generation) -> list[SignalledText]:
        """The texts after the prompts, prompts of similar length together, with their signals."""
        settings, room = generation.settings, generation.room
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        texts: list[SignalledText] = [("", {})] * len(prompts)

        def write(batch: Sequence[int]) -> list[SignalledText]:
            rows = [prompts[i] for i in batch]
            lengths = [len(row) + room for row in rows]
            drawn = sample(self.model, rows, replace(settings, length=lengths))
            cut = zip(rows, lengths, drawn.tokens.tolist(), strict=True)
            ends = (tokens[len(row) : length] for row, length, tokens in cut)
            signals = find_signals(drawn) if settings.guesses else [{} for _ in rows]
            written = (self._decode(tokens, generation.ends) for tokens in ends)
            return list(zip(written, signals, strict=True))

        longest = max(map(len, prompts)) + room
        read = room if self.model.paradigm.has_steps else 1
        is_guided = any(guidance_schedule(settings.guidance, settings.steps))
        size = count_row_bytes(self.model, longest, read, 2 if is_guided else 1)
        most = min(fit_rows(self.model, size), self.settings.rows or len(order))
        if settings.guesses:
            most = min(most, count_kept_rows(self.model, longest, settings.steps))
        for batch, written in map_batches(order, most, write):
            for i, text in zip(batch, written, strict=True):
                texts[i] = text
        return texts

    def _decode(self, tokens: Sequence[int], ends: Collection[int]) -> str:
        """The text of the tokens before the first of the ends."""
        return self.own_tokenizer.decode(takewhile(lambda token: token not in ends, tokens))

    # Conversations.

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation in the model's own words; without a prompt its last turn goes on."""
        text = self._require_chat().render(chat_history, not add_generation_prompt)
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"]
        return text[: text.rindex(last) + len(last)] if last in text else text

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self._require_chat().source if chat_template else ""

    @property
    def tokenizer_name(self) -> str:
        """Names what texts become, for the harness's store of requests."""
        return f"{self.model.name}-{digest_values(self.own_tokenizer.list_contents())}".replace(
            "/", "__"
        )

    def _require_chat(self) -> Any:
        if self.own_tokenizer.chat is None:
            raise UserError(
                f"a chat was asked for, but the model {self.model.name} has no chat template: "
                "leave --chat out."
            )
        return self.own_tokenizer.chat

    # Several processes.

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.world_size == 1:
            return tensor
        own = tensor.cpu()
        gathered = [torch.zeros_like(own) for _ in range(self.world_size)]
        dist.all_gather(gathered, own)
        return torch.stack(gathered) if own.ndim == 0 else torch.cat(gathered)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        if self.world_size == 1:
            return [obj]
        gathered = [None] * self.world_size if self.rank == dst else None
        dist.gather_object(obj, gathered, dst)
        return gathered

    def barrier(self) -> None:
        self.world.wait()

    # The record.

    def get_model_info(self) -> dict[str, Any]:
        """What the results' `config` says: the model, every setting, the errors of estimates."""
        net, paradigm = self.model.net, self.model.paradigm
        is_chain = paradigm.is_scored and self.settings.likelihood == "chain"
        is_bound = paradigm.is_bound and not is_chain
        return {
            "model": self.model.name,
            "model_kind": self.model.kind,
            "model_num_parameters": sum(each.numel() for each in net.parameters()),
            "model_dtype": str(net.embedding.weight.dtype),
            "likelihood": "an upper bound on -log p" if is_bound else "exact, left to right",
            "likelihood_errors": summarise_errors(list(self.errors.values())),
            "contexts_cut": len(self.cut),
            "settings": self.settings.to_record(),
        }
