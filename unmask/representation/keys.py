"""k*: the input of a layer's down projection at a subject, averaged over prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.config import adjust, check_arguments, list_settings
from unmask.data.facts import Fact, FactTexts
from unmask.net.batches import count_row_bytes, fit_rows
from unmask.net.model import Model
from unmask.representation.prompts import (
    Case,
    PromptBatch,
    map_cases,
    map_rows,
    prepare_case,
    stack_rows,
)
from unmask.representation.settings import OF_VALUES, Extraction


@dataclass(frozen=True)
class Key:
    """The key of a fact's subject at one layer."""

    layer: int
    k_star: Float[Tensor, "F"]
    """The mean over the prefixes."""
    mapped: Float[Tensor, "D"]
    """What the layer's down projection makes of it: comparable with values. Patches of `mlp_out`
    are of activations, and do not act on what a mean gives."""
    prefixes: tuple[str, ...]


@list_settings(Extraction, OF_VALUES)
@check_arguments(leave_out=("fact",))
def extract_key(
    model: Model,
    fact: Fact | FactTexts,
    layer: int,
    settings: Extraction | None = None,
    **changes: Any,
) -> Key:
    """The key k* of the fact's subject: the mean input of the down projection at its last token.

    Args:
        model: Masked or causal.
        fact: A fact or its (subject, object, prompt).
        layer: Of the MLP that is read, counted from 0.
        settings: How prompts are laid out; those of the search are not read.
        changes: Settings by name, as in `unmask.Extraction`:
        {settings}

    Returns:
        `k_star` [mlp_width], `mapped` [width], which is k* through the down projection, and the
        prefixes that were averaged over.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> key = unmask.extract_key(model, fact, layer=2, prefixes=("", "One day"))
    >>> key.k_star.shape == (model.net.config.mlp_width,)
    True
    """
    settings = adjust(extract_key, Extraction, settings, changes, OF_VALUES)
    case = prepare_case(model, fact, layer, settings)
    return find_keys(model, [case], layer)[0]


def find_keys(model: Model, cases: Sequence[Case], layer: int) -> list[Key]:
    """The keys of many facts, in the order given."""

    def read(batch: Sequence[Case]) -> list[Key]:
        # [facts * prefixes, F], averaged over prefixes [facts, F]
        rows = stack_rows([row for case in batch for row in case.key_rows], model.device)
        per_fact = len(rows.tokens) // len(batch)
        keys = record_layer(model, rows, layer, per_fact).key.unflatten(0, (len(batch), -1))
        k_star = keys.to(torch.promote_types(keys.dtype, torch.float32)).mean(1)
        results = zip(k_star.cpu(), map_keys(model, k_star, layer).cpu(), batch, strict=True)
        return [Key(layer, star, mapped, case.prefixes) for star, mapped, case in results]

    return map_cases(model, cases, read)


def read_bare(
    model: Model, cases: Sequence[Case], layer: int
) -> list[tuple[Float[Tensor, "F"], Float[Tensor, "D"], Float[Tensor, "D"]]]:
    """k*, what the down projection makes of it, and v0 of prompts without any mask to look at.

    The same as on the canvas with all reading of masks cut; in a causal network nothing changes.
    """
    rows = [
        replace(row, tokens=row.tokens[: row.prompt_length], reads=[0], targets=[])
        for case in cases
        for row in case.rows[:: len(case.rows) // len(case.prefixes)]
    ]
    lengths = [len(row.tokens) for row in rows]
    size = fit_rows(model, count_row_bytes(model, max(lengths), 1))

    def record(numbers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        batch = stack_rows([rows[i] for i in numbers], model.device)
        both = record_layer(model, batch, layer)
        return list(zip(both.key.float(), both.value.float(), strict=True))

    read = map_rows(model, lengths, size, record)
    results, per_case = [], len(rows) // len(cases)
    for first in range(0, len(rows), per_case):
        key = torch.stack([read[i][0] for i in range(first, first + per_case)]).mean(0)
        mapped = map_keys(model, key[None], layer)[0]
        results.append((key.cpu(), mapped.cpu(), read[first][1].cpu()))
    return results


@torch.no_grad()
def map_keys(model: Model, keys: Float[Tensor, "n F"], layer: int) -> Float[Tensor, "n D"]:
    """What the layer's own MLP gives for these keys."""
    block = model.net.block(layer)
    return block.mlp_out(keys.to(block.attn.out.weight)).to(keys.dtype)


@dataclass(frozen=True)
class LayerRecord:
    """One layer's run over some rows."""

    entering: Float[Tensor, "R L D"]
    """The stream that enters the layer."""
    leaving: Float[Tensor, "R L D"]
    """The stream that leaves the layer."""
    key: Float[Tensor, "R F"]
    """`mlp_key` at each row's position."""
    value: Float[Tensor, "R D"]
    """`mlp_out` at each row's position."""
    facts: list[int]
    """Which fact each row is about."""


@torch.no_grad()
def record_layer(model: Model, rows: PromptBatch, layer: int, per_fact: int = 1) -> LayerRecord:
    """Run the rows up to and through one layer; so many in a row are about one fact."""
    net, at = model.net, torch.arange(len(rows.tokens), device=rows.tokens.device)
    sites = [f"layers.{layer}.{part}" for part in ("mlp_key", "mlp_out")]
    facts = [row // per_fact for row in range(len(at))]
    with net.taps.in_rows(facts), net.capture(*sites) as taken:
        entering = net.run_layers(net.embed(rows.tokens), 0, layer)
        leaving = net.run_layers(entering, layer, layer + 1)
    key, value = (taken[site][at, rows.position] for site in sites)
    return LayerRecord(entering, leaving, key, value, facts)
