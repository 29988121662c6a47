"""k*: what the MLP of a layer looks up at a subject, averaged over prefixes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.data.facts import Fact
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.representation.prefixes import make_prefixes
from unmask.representation.record import record_layer
from unmask.representation.settings import Extraction, choose_extraction
from unmask.representation.states import Case, check_layer, lay_out_case, stack_rows


@dataclass(frozen=True)
class Key:
    """The key of a fact's subject at one layer."""

    layer: int
    k_star: Float[Tensor, "F"]
    """The mean over the prefixes."""
    mapped: Float[Tensor, "D"]
    """What the layer's down projection makes of it: comparable with values."""
    prefixes: tuple[str, ...]


def key(
    model: Model,
    fact: Fact,
    layer: int,
    prefixes: Sequence[str] | int = 4,
    **settings: Any,
) -> Key:
    """The key k* of the fact's subject: the mean input of the down projection at its last token.

    Args:
        model: Masked or causal.
        fact: Prompt, subject and object.
        layer: Whose MLP is read, counted from 0.
        prefixes: Texts that are put before the prompt, the empty one first; or how many to sample
            from the model.
        settings: Fields of `unmask.representation.settings.Extraction` that lay out the prompt:
            revealed, length, key_text, seed.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> unmask.key(model, fact, layer=2, prefixes=1).k_star.ndim
    1
    """
    check_fact(fact)
    model.net.taps.require_none("reading keys and values")
    chosen = choose_extraction(**settings)
    check_layer(model, layer)
    texts = settle_prefixes(model, prefixes, chosen)
    case = lay_out_case(model, fact, texts, chosen)
    return find_keys(model, [case], layer, texts)[0]


def check_fact(fact: object) -> None:
    """Raise where what was given is not a fact."""
    if not isinstance(fact, Fact):
        raise UserError(
            f"a {type(fact).__name__} was given: expected one unmask.Fact, such as one of "
            "unmask.read_facts(path)."
        )


def settle_prefixes(
    model: Model, prefixes: Sequence[str] | int, settings: Extraction
) -> tuple[str, ...]:
    """The prefixes as texts, the empty one first; a number of them is sampled from the model."""
    if isinstance(prefixes, str):
        raise UserError(
            f"prefixes are {prefixes!r}, a single text: expected a list of texts, or how many to "
            "sample."
        )
    if isinstance(prefixes, int):
        return make_prefixes(model, prefixes, settings.seed)
    return ("", *(text for text in prefixes if text))


def find_keys(
    model: Model, cases: Sequence[Case], layer: int, prefixes: Sequence[str]
) -> list[Key]:
    """The keys of many facts, in batches that size themselves."""
    return [one for _, keys in _run(model, cases, layer, tuple(prefixes)) for one in keys]


def _run(
    model: Model, cases: Sequence[Case], layer: int, prefixes: tuple[str, ...]
) -> Iterator[tuple[Sequence[Case], Sequence[Key]]]:
    each = count_row_bytes(model, max(case.length for case in cases), 0) * len(prefixes)

    def find(batch: Sequence[Case]) -> list[Key]:
        # Canvases of several lengths do not fit into one tensor.
        lengths = [len(row.tokens) for case in batch for row in case.keys]
        if len(model.paradigm.group_rows(lengths)) > 1:
            return [one for case in batch for one in find([case])]
        rows = stack_rows([row for case in batch for row in case.keys], model.device)
        keys = record_layer(model, rows, layer).key.unflatten(0, (len(batch), -1))
        stars = keys.to(torch.promote_types(keys.dtype, torch.float32)).mean(1)
        mapped = map_keys(model, stars, layer)
        pairs = zip(stars.cpu(), mapped.cpu(), strict=True)
        return [Key(layer, star, image, prefixes) for star, image in pairs]

    return map_batches(cases, max(1, fit_rows(model, each)), find)


@torch.no_grad()
def map_keys(model: Model, keys: Float[Tensor, "n F"], layer: int) -> Float[Tensor, "n D"]:
    """Keys as the values that the layer's own MLP gives for them."""
    block = model.net.block(layer)
    return block.mlp_out(keys.to(block.mlp.down.weight)).to(keys.dtype)
