"""What a dialect says: how its settings and its tensors correspond to ours, both ways."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.base.config import SettingsError, build
from unmask.base.errors import UserError
from unmask.base.reading import read_json_object
from unmask.data.tokenizer import Tokenizer
from unmask.net.config import NetConfig
from unmask.net.known import KnownModel
from unmask.net.model import Blueprint
from unmask.net.paradigm import find_unknown, get_paradigm

_log = logging.getLogger(__name__)
TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""What `transformers` calls the ids that a text starts, ends and is padded with."""
SIZES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp_width": "intermediate_size",
    "context": "max_position_embeddings",
}
"""What most classes of `transformers` call the sizes of a network."""


@dataclass(frozen=True)
class Source:
    """A checkpoint on disk before anything of it is checked."""

    label: str
    """Its name in messages."""
    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of every tensor, by its name in the checkpoint."""
    folder: Path | None = None
    """Where its tokenizer may be."""
    mask: int | None = None
    """The mask id that the user gave."""


def _same(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class TensorMap:
    """One tensor of a checkpoint, and the parameter of ours (or the rows of it) that it fills."""

    theirs: str
    ours: str
    rows: tuple[int, int] | None = None
    to_ours: Callable[[Tensor], Tensor] = _same
    to_theirs: Callable[[Tensor], Tensor] = _same

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is copied as it is."""
        return self.to_ours is _same

    def select(self, own: Mapping[str, Tensor]) -> Tensor:
        """The part of our parameters that the tensor fills, as a view."""
        parameter = own[self.ours]
        return parameter if self.rows is None else parameter[slice(*self.rows)]


@dataclass(frozen=True)
class Dialect:
    """One way to lay out a checkpoint."""

    name: str
    about: str
    """The models that it has, and what is special about them; `docs/formats.md` lists it."""
    recognise: Callable[[Source], bool]
    read: Callable[[Source], Blueprint]
    map_tensors: Callable[[NetConfig], Iterable[TensorMap]]
    write: Callable[[Blueprint], dict[str, Any]]
    """The settings file of a model in this dialect; `write_exactly` guards it."""
    config_file: str = "config.json"
    optional_prefix: str | None = None
    """A leading part of all layers' names that checkpoints may leave off."""
    old_endings: Mapping[str, str] = field(default_factory=dict)
    """Endings of tensor names as they are now, and in old checkpoints."""
    ignored: tuple[str, ...] = ()
    """Endings of tensor names that hold nothing learned, such as stored masks."""
    tied_head: str | None = None
    """The head's tensor, which checkpoints with a tied head may store all the same."""
    read_tokenizer: Callable[[Path, int | None], Tokenizer | None] | None = None
    """For checkpoints that come without a `tokenizer.json`."""
    token_fields: tuple[str, ...] = ()
    """The fields among `TOKEN_FIELDS` that its settings have."""
    needs_mask: bool = False
    """Whether it has masked models only."""
    says_kind: bool = False
    """Whether a model of its own is what it is read as, even a causal one with a mask token."""
    find_stored: Callable[[NetConfig, Source], NetConfig] | None = None
    """Where a constant time is folded into the weights while loading: the network as stored."""


@dataclass(frozen=True)
class FieldTable:
    """Correspondence of settings: fields with two names, and what our network takes for granted."""

    same: Mapping[str, str]
    """Our field: theirs."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Their field: the one value that our network has; another one is refused."""
    optional: Mapping[str, Any] = field(default_factory=dict)
    """Their field: what its absence means."""
    also_called: Mapping[str, str] = field(default_factory=dict)
    """Their field: the one that says it where this one is absent."""
    needed: tuple[str, ...] = ()
    """Their further fields that a dialect looks at itself."""

    def read(self, config: Mapping[str, Any], label: str) -> dict[str, Any]:
        """Our fields from their settings; all problems are reported at once."""
        # A missing key and null mean the same.
        present = {name: value for name, value in config.items() if value is not None}
        for name, other in self.also_called.items():
            if other in present:
                present.setdefault(name, present[other])
        problems = [
            f"{theirs!r} is missing"
            for theirs in (*dict.fromkeys(self.same.values()), *self.needed)
            if theirs not in present and theirs not in self.optional
        ]
        problems += [
            f"{theirs!r} is {config[theirs]!r}, but only {value!r} is supported"
            for theirs, value in self.fixed.items()
            if theirs in present and present[theirs] != value
        ]
        if problems:
            raise SettingsError(label, problems)
        return {
            ours: present[theirs] if theirs in present else self.optional[theirs]
            for ours, theirs in self.same.items()
        }

    def write(self, config: NetConfig) -> dict[str, Any]:
        """Their settings from ours; absent ones are resolved first."""
        resolved = {"kv_heads": config.kv, "head_width": config.head_dim}
        resolved |= {"num_logits": config.logit_rows}
        values = {
            theirs: resolved.get(ours, getattr(config, ours)) for ours, theirs in self.same.items()
        }
        return values | dict(self.fixed)


def build_config(values: Mapping[str, Any], source: Source, **more: Any) -> NetConfig:
    """The network's settings; problems are reported with the checkpoint's name."""
    return build(NetConfig, dict(values) | more, source.label)


def find_mask(source: Source) -> int:
    """The mask id: the given one, the settings', or that of the tokenizer's mask token.

    Where no token of the tokenizer is declared as its mask, it is the one added token whose text
    says so.
    """
    if source.mask is not None:
        return source.mask
    if source.config.get("mask_token_id") is not None:
        return source.config["mask_token_id"]
    try:
        declared, added = _read_added_tokens(source.folder)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SettingsError(
            source.label, ["its tokenizer's table of added tokens is damaged: load it with mask=ID"]
        ) from None
    if isinstance(declared, str) and declared in added:
        return added[declared]
    masks = sorted({number for text, number in added.items() if "mask" in text.lower()})
    if len(masks) != 1:
        seen = f"has {len(masks)} tokens called masks" if masks else "names none"
        raise SettingsError(
            source.label,
            [f"'mask_token_id' is missing, and its tokenizer {seen}: load it with mask=ID"],
        )
    return masks[0]


def _read_added_tokens(folder: Path | None) -> tuple[str | None, dict[str, int]]:
    """The text of a tokenizer's mask token, if declared, and the ids of all added tokens."""

    def read(name: str) -> dict[str, Any]:
        return read_json_object(folder / name) if folder and (folder / name).is_file() else {}

    settings = read("tokenizer_config.json")
    table = [*(read("tokenizer.json").get("added_tokens") or ())]
    table += [
        dict(token, id=int(number))
        for number, token in (settings.get("added_tokens_decoder") or {}).items()
    ]
    added = read("added_tokens.json") | {token["content"]: token["id"] for token in table}
    declared = settings.get("mask_token")
    return (declared["content"] if isinstance(declared, dict) else declared), added


@dataclass(frozen=True)
class Given:
    """What the user says of a model, where its files do not."""

    kind: str | None = None
    mask: int | None = None
    shift: bool | None = None
    block: int | None = None

    def complete(self, known: KnownModel | None) -> "Given":
        """What is given, with what is known of a model by its name."""
        if known is None:
            return self
        kind = None if known.says_kind else known.kind
        own = {"kind": kind, "mask": known.mask, "shift": known.shift, "block": known.block}
        own |= {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **own)


def override(blueprint: Blueprint, source: Source, given: Given) -> Blueprint:
    """The model as the user says it is, where settings do not."""
    kind = blueprint.kind if given.kind is None else given.kind
    if problems := list(find_unknown(kind)):
        raise SettingsError(source.label, problems)
    paradigm, mask = get_paradigm(kind), blueprint.mask_id if given.mask is None else given.mask
    if paradigm.has_mask and mask is None:
        mask = find_mask(source)
    config = blueprint.config
    config = replace(config, causal=False) if paradigm.sees_later else config.made_causal()
    if given.block is not None:
        is_open = config.open_block and given.block > 0
        config = replace(config, block=given.block or None, open_block=is_open)
    shift = blueprint.shift if given.shift is None else given.shift
    return replace(blueprint, config=config, kind=kind, mask_id=mask, shift=shift)


def warn_of_mask(source: Source) -> None:
    """Say that a model read as a causal one may be a diffusion model in its settings."""
    with suppress(UserError):
        mask = find_mask(source)
        _log.warning(
            "%s has the settings of a causal model and a mask token (%d): it is read as causal; a "
            "diffusion model in these settings is loaded with kind='masked'",
            source.label,
            mask,
        )


def write_exactly(
    dialect: Dialect,
    wanted: Blueprint,
    own: Mapping[str, Tensor],
    label: str,
    known: Iterable[Dialect],
) -> dict[str, Any]:
    """A model's settings in a dialect; raises unless reading them back gives the same model.

    The error names those of the `known` dialects that can represent the model.
    """
    if losses := _find_losses(dialect, wanted, own):
        fitting = [other.name for other in known if not _find_losses(other, wanted, own)]
        raise UserError(
            f"{label} cannot be written in the dialect {dialect.name}: {'; '.join(losses)}. "
            f"Choose one that fits: {', '.join(fitting)}."
        )
    return dialect.write(wanted)


def find_token_ids(dialect: Dialect, tokenizer: Tokenizer | None) -> dict[str, int]:
    """The special ids that a dialect's settings have and the tokenizer knows."""
    if tokenizer is None:
        return {}
    ids = {"eos_token_id": tokenizer.end_id, "pad_token_id": tokenizer.pad_id}
    # A start token is known only where a chat template that may name it came along.
    named = tokenizer.chat.tokens.get("bos_token") if tokenizer.chat is not None else None
    start = None if named is None else tokenizer.backend.token_to_id(named)
    if start is not None:
        ids["bos_token_id"] = start
    return {name: ids[name] for name in dialect.token_fields if name in ids}


def _find_losses(dialect: Dialect, wanted: Blueprint, own: Mapping[str, Tensor]) -> list[str]:
    """What a dialect cannot represent of a model, by reading back what it would write."""
    if dialect.needs_mask and wanted.mask_id is None:
        return [f"a {wanted.kind} model has no mask token, and {dialect.name} models have one"]
    maps = (
        tensor_map for tensor_map in dialect.map_tensors(wanted.config) if tensor_map.ours in own
    )
    shapes = {
        tensor_map.theirs: tuple(tensor_map.to_theirs(tensor_map.select(own)).shape)
        for tensor_map in maps
    }
    try:
        read_back = dialect.read(Source("it", dialect.write(wanted), shapes))
    except SettingsError as error:
        return error.problems
    except UserError as error:
        return [str(error).rstrip(".")]
    return [
        f"{name} {ours!r} would become {theirs!r}"
        for name, ours, theirs in (
            *_compare(wanted, read_back),
            *_compare(wanted.config, read_back.config),
        )
        if name != "config" and ours != theirs
    ]


def _compare(one: Any, other: Any) -> Iterable[tuple[str, Any, Any]]:
    resolved = {"kv_heads": "kv", "head_width": "head_dim", "num_logits": "logit_rows"}
    for item in fields(one):
        name = resolved.get(item.name, item.name)
        yield item.name, getattr(one, name), getattr(other, name)
