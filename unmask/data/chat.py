"""Chat templates: the words around a question that an instructed model was taught to answer in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from unmask.base.errors import UserError
from unmask.base.extras import require_extra
from unmask.base.reading import read_json_object, read_text


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, as `transformers` stores it, and the special tokens that it may name."""

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Mapping[str, str]], is_answered: bool = False) -> str:
        """The conversation as one text that ends where the model's answer begins.

        With `is_answered` the last message is that answer, and the text ends with it.
        """
        require_extra("study", "a chat template", "jinja2")
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        # A template comes with a checkpoint: it may lay words out, and nothing else.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            template = environment.from_string(self.source)
            return template.render(
                messages=list(messages),
                add_generation_prompt=not is_answered,
                raise_exception=_complain,
                **self.tokens,
            )
        except TemplateError as error:
            raise UserError(f"the chat template cannot be used ({error}).") from None

    def to_settings(self) -> dict[str, Any]:
        """What `tokenizer_config.json` says of it."""
        return {"chat_template": self.source, **self.tokens}


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The template beside a tokenizer, from its own file or from the tokenizer's settings."""
    settings_file, own_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    settings = (
        read_json_object(settings_file, wide_integers=True) if settings_file.is_file() else {}
    )
    source = read_text(own_file) if own_file.is_file() else settings.get("chat_template")
    if not isinstance(source, str):
        return None
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return ChatTemplate(source, tokens)


def _complain(message: str) -> NoReturn:
    raise UserError(f"the chat template refuses the conversation: {message}")
