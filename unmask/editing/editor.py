"""The editor: search what an MLP must answer, read which key finds it, and write one to the other.

As MEMIT does, values are searched at the last layer that is edited, and each layer writes an equal
share of what is left to reach them, lowest first, with the keys of the network edited so far. For
one layer the residual is the delta of the search itself: v* = W k + delta with the same key k as in
the update, so that a delta of 0 changes nothing (the public r-ROMEs differ).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.config import adjust, check_arguments, list_settings
from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.data.facts import Fact, FactTexts, as_fact
from unmask.editing.edit import Edit, Factors, digest_downs, list_layers
from unmask.editing.moments import Moments
from unmask.editing.settings import Editing
from unmask.editing.update import Weigh, find_free_space, solve_readers, solve_rome, weigh_by
from unmask.net.model import Model
from unmask.representation.keys import record_layer
from unmask.representation.prompts import (
    Case,
    PromptRow,
    choose_prefixes,
    lay_out_case,
    map_cases,
    stack_rows,
)
from unmask.representation.settings import choose_layers
from unmask.representation.value_loss import LayersAbove, LossTerms, ValueLoss
from unmask.representation.values import Value, WatchSearch, find_values


@list_settings(Editing)
@check_arguments(leave_out=("facts", "objects", "layers", "keep"))
def edit(
    model: Model,
    facts: Fact | FactTexts | Sequence[Fact],
    objects: str | Sequence[str] | None = None,
    layers: int | Sequence[int] | None = None,
    moments: Moments | None = None,
    settings: Editing | None = None,
    *,
    keep: Fact | Sequence[Fact] = (),
    watch: WatchSearch | None = None,
    **changes: Any,
) -> Edit:
    """The low-rank change of weights that makes a model give facts new objects.

    Nothing is changed yet: `with edit.on(model):` applies it. Several facts are one edit, written
    together.

    Args:
        model: Masked or causal.
        facts: One, or its (subject, object, prompt), or several: prompt and subject are theirs.
        objects: What is to be said instead of each fact's object; by default that object itself.
        layers: Of the down projections that are written; the middle one by default.
        moments: The second moment of keys (`unmask.moments`); by default the identity.
        settings: How the facts are written.
        keep: Facts whose keys are to give what they give now, such as those of edits that are on
            (the earlier keys of AlphaEdit); with a ridge of 0 they do, exactly.
        watch: Called with the number of each evaluation of the search before it; what it raises
            ends the search.
        changes: Settings by name:
        {settings}

    Returns:
        The edit; its `record` says what was asked for and how likely each object became in the
        search.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> edit = unmask.edit(model, fact, "the last dragon", layers=2, search_steps=3, prefixes=1)
    >>> edit.layers, edit.factors[2].readers.shape[0]
    ((2,), 1)
    """
    chosen = adjust(edit, Editing, settings, changes)
    searched = _prepare(model, facts, objects, layers, moments, chosen, keep, watch)
    return searched.write(range(len(searched.cases)))


def edit_each(
    model: Model,
    facts: Sequence[Fact],
    objects: Sequence[str] | None = None,
    layers: int | Sequence[int] | None = None,
    moments: Moments | None = None,
    settings: Editing | None = None,
    **changes: Any,
) -> list[Edit]:
    """An edit for each fact alone; searches and keys share batches, and the moments one factor."""
    chosen = adjust(edit, Editing, settings, changes)
    searched = _prepare(model, facts, objects, layers, moments, chosen)
    return [searched.write([number]) for number in range(len(searched.cases))]


def give_object(fact: Fact, text: str) -> Fact:
    """The fact with another object, in the same place of its completion."""
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"the new object is {text!r:.60}: expected a text with words in it.")
    begin, end = fact.object_span
    completion = fact.completion[:begin] + text + fact.completion[end:]
    span = (begin, begin + len(text))
    return replace(fact, object=text, completion=completion, object_span=span)


@dataclass(frozen=True)
class _SearchedFacts:
    """Facts laid out and searched, ready to be written together or one by one."""

    model: Model
    settings: Editing
    layers: tuple[int, ...]
    facts: list[Fact]
    """As they were given."""
    cases: list[Case]
    values: list[Value]
    weigh: dict[int, Weigh]
    matrices: dict[int, Tensor | None]
    first_keys: Float[Tensor, "N P F"]
    """Keys of the lowest edited layer."""
    streams: Float[Tensor, "N D"] | None
    """What leaves the last layer without edits; not needed for one layer."""
    record: dict[str, Any]
    kept: Sequence[Case] = ()
    """Facts whose keys the update leaves alone."""

    def write(self, numbers: Sequence[int]) -> Edit:
        """The edit of some facts together."""
        model, layers = self.model, self.layers
        if self.settings.method == "rome" and (len(numbers) > 1 or len(layers) > 1):
            raise UserError(
                f"ROME as published writes one fact into one layer, not {len(numbers)} into "
                f"{len(layers)}: edit one by one, or use another method."
            )
        cases = [self.cases[i] for i in numbers]
        deltas = torch.stack([self.values[i].delta for i in numbers]).double()
        factors: dict[int, Factors] = {}
        with ExitStack() as below:
            for number, layer in enumerate(layers):
                # Keys [N, P, F], and what is missing to reach the values [N, D], at first deltas.
                keys, missing = self.first_keys[list(numbers)], deltas
                if number:
                    assert self.streams is not None
                    keys = read_keys(model, cases, layer)
                    now = read_streams(model, cases, layers[-1])
                    missing = self.streams[list(numbers)] + deltas - now
                residuals = (missing / (len(layers) - number)).T
                factors[layer] = Factors(residuals, self._solve(keys, layer))
                if layer != layers[-1]:
                    part = Edit({layer: factors[layer]}, digest_downs(model, [layer]))
                    below.enter_context(part.on(model))
        record = self.record | {"facts": [self._describe(i) for i in numbers]}
        return Edit(factors, digest_downs(model, layers), record)

    def _solve(self, keys: Float[Tensor, "N P F"], layer: int) -> Float[Tensor, "N F"]:
        mean = average_keys(keys, self.settings.bare_weight)
        if self.settings.method == "rome":
            return solve_rome(mean[0], keys[0, 0], self.matrices[layer])
        if self.kept:
            # Further columns with residuals of 0: their readers multiply nothing.
            kept = average_keys(read_keys(self.model, self.kept, layer), self.settings.bare_weight)
            mean = torch.cat([mean, kept])
        readers = solve_readers(mean.T, self.weigh[layer](mean.T), self.settings.ridge)
        return readers[: len(keys)]

    def _describe(self, number: int) -> dict[str, Any]:
        old, new, value = self.facts[number], self.cases[number].fact, self.values[number]
        texts = {name: getattr(new, name) for name in ("fact_id", "subject", "prompt", "object")}
        names = ("nll_before", "nll", "p_before", "p_after", "relative_distance", "stopped")
        numbers = {name: getattr(value, name) for name in (*names, "diverged")}
        return texts | {"old_object": old.object} | numbers


def _prepare(
    model: Model,
    facts: Fact | FactTexts | Sequence[Fact],
    objects: str | Sequence[str] | None,
    layers: int | Sequence[int] | None,
    moments: Moments | None,
    settings: Editing,
    keep: Fact | Sequence[Fact] = (),
    watch: WatchSearch | None = None,
) -> _SearchedFacts:
    """Check all that was given, lay the facts out, and search their values."""
    why = "writes weights, which stay when the patch is gone"
    model.net.taps.require_none("editing", why=why)
    given = _list_facts(facts)
    targets = _choose_objects(given, objects)
    if layers is None:
        layers, _ = choose_layers(model.name, model.net.config.layers, "auto")
    chosen = list_layers(model, layers)
    matrices = {layer: None if moments is None else _fit(model, moments, layer) for layer in chosen}
    weigh = {layer: _choose_weighing(matrix, settings) for layer, matrix in matrices.items()}
    prefixes = choose_prefixes(model, settings)
    cases = [lay_out_case(model, fact, prefixes, settings) for fact in targets]
    kept = _choose_objects(_list_facts(keep), None, least=0)
    if kept and settings.method == "rome":
        raise UserError(
            "ROME as published weighs one key, and facts to keep are others: use another method."
        )
    kept_cases = [lay_out_case(model, fact, prefixes, settings) for fact in kept]
    has_reveals = settings.reveal != "none" and model.paradigm.fills_masks
    loss = RevealedLoss if has_reveals else ValueLoss
    return _SearchedFacts(
        model=model,
        settings=settings,
        layers=chosen,
        facts=given,
        cases=cases,
        values=find_values(model, cases, chosen[-1], settings, loss, watch),
        weigh=weigh,
        matrices=matrices,
        first_keys=read_keys(model, cases, chosen[0]),
        streams=read_streams(model, cases, chosen[-1]) if len(chosen) > 1 else None,
        record=_make_record(model, settings, prefixes, moments, kept),
        kept=kept_cases,
    )


def _fit(model: Model, moments: Moments, layer: int) -> Float[Tensor, "F F"]:
    """The moments of a layer, which must be of this network's keys."""
    matrix, width = moments.at(layer), model.net.config.mlp_width
    if matrix.shape != (width, width):
        shape = " × ".join(map(str, matrix.shape))
        raise UserError(
            f"moments of {shape} were given for layer {layer}: the keys of {model.name} have width "
            f"{width}; gather moments of this model by unmask.moments."
        )
    return matrix


def _make_record(
    model: Model,
    settings: Editing,
    prefixes: Sequence[str],
    moments: Moments | None,
    kept: Sequence[Fact],
) -> dict[str, Any]:
    """What all edits of these facts say about how they were made."""
    gathered: str | dict[str, Any] = "identity"
    if moments is not None:
        gathered = {name: getattr(moments, name) for name in ("states", "num_tokens", "shrink")}
    record = {
        "model": model.name,
        "settings": settings.to_record() | {"prefixes": list(prefixes)},
        "moments": gathered,
    }
    return record | ({"keep": [fact.text for fact in kept]} if kept else {})


def _list_facts(given: object) -> list[Fact]:
    """One fact or several; three texts are one."""
    is_texts = isinstance(given, tuple) and len(given) > 0 and isinstance(given[0], str)
    several = given if isinstance(given, list | tuple) and not is_texts else [given]
    return [as_fact(each) for each in several]


def _choose_objects(
    facts: Sequence[Fact], objects: str | Sequence[str] | None, least: int = 1
) -> list[Fact]:
    """The facts with their new objects; a fact without a subject is a mistake."""
    texts = [objects] if isinstance(objects, str) else objects
    if texts is not None and not isinstance(texts, list | tuple):
        raise UserError(f"the objects are {texts!r:.60}: expected a text, or one for each fact.")
    if len(facts) < least or (texts is not None and len(texts) != len(facts)):
        raise UserError(
            f"{len(facts)} facts and {'no' if texts is None else len(texts)} objects were given: "
            "expected at least one fact, and an object for each."
        )
    chosen = []
    for number, fact in enumerate(facts):
        begin, end = fact.subject_span
        if not 0 <= begin < end <= len(fact.prompt):
            raise UserError(
                f"the subject {fact.subject!r} is not in the prompt {fact.prompt!r} (its span is "
                f"{begin} to {end}): expected a prompt that names it."
            )
        chosen.append(fact if texts is None else give_object(fact, texts[number]))
    return chosen


def _choose_weighing(matrix: Tensor | None, settings: Editing) -> Weigh:
    """By what keys are multiplied before the update is solved."""
    if settings.method != "null-space":
        return weigh_by(matrix)
    if matrix is None:
        raise UserError(
            "the null space is that of moments, and none were given: gather some by "
            "unmask.moments, or use another method."
        )
    return find_free_space(matrix, settings.null_share).project


def read_keys(model: Model, cases: Sequence[Case], layer: int) -> Float[Tensor, "N P F"]:
    """The input of the down projection at each subject's last token, prefix by prefix."""

    def read(batch: Sequence[Case]) -> list[Tensor]:
        rows = stack_rows([row for case in batch for row in case.key_rows], model.device)
        return list(
            record_layer(model, rows, layer).key.double().cpu().unflatten(0, (len(batch), -1))
        )

    return torch.stack(map_cases(model, cases, read))


def average_keys(
    keys: Float[Tensor, "N P F"], bare_weight: float | None = None
) -> Float[Tensor, "N F"]:
    """The mean over prefixes; the bare prompt, which is first, can weigh more or less."""
    others = keys.shape[1] - 1
    if bare_weight is None or not others:
        return keys.mean(1)
    return bare_weight * keys[:, 0] + (1 - bare_weight) * keys[:, 1:].mean(1)


def read_streams(model: Model, cases: Sequence[Case], layer: int) -> Float[Tensor, "N D"]:
    """What leaves a layer at each subject's last token, on the prompt without a prefix."""

    def read(batch: Sequence[Case]) -> list[Tensor]:
        rows = stack_rows([case.rows[0] for case in batch], model.device)
        leaving = record_layer(model, rows, layer).leaving
        numbers = torch.arange(len(batch), device=leaving.device)
        return list(leaving[numbers, rows.position].double().cpu())

    return torch.stack(map_cases(model, cases, read))


class RevealedLoss(ValueLoss):
    """The loss with part of each object shown, another part at each evaluation.

    Park & Jo 2026 (arXiv 2606.03924) show step modulo length tokens (`cycle`). The first and the
    last evaluation show none, so that what a search reports is about the whole object.
    """

    def __init__(self, model: Model, cases: Sequence[Case], layer: int, settings: Editing):
        super().__init__(model, cases, layer, settings)
        self.cases, self.layer, self.step = cases, layer, 0
        self.reveal, self.steps, self.seed = settings.reveal, settings.search_steps, settings.seed

    def evaluate(self, delta: Float[Tensor, "N D"]) -> LossTerms:
        """The terms at this step; v0, the KL and the norm are those of the whole object's mask."""
        rows = [row for case in self.cases for row in self._show(case)]
        self.rows = stack_rows(rows, self.model.device)
        self.is_target = self.rows.is_target
        record = record_layer(self.model, self.rows, self.layer)
        self.above = LayersAbove(self.model.net, self.layer, record, self.rows)
        if self.unconditional is not None:
            self.unconditional = self._run_unconditional()
        self.step += 1
        return super().evaluate(delta)

    def _show(self, case: Case) -> list[PromptRow]:
        """The fact's rows at this step: the same tokens of its object are shown in all."""
        length = len(case.rows[0].targets)
        stream = python_stream(
            self.seed, "reveal", case.fact.fact_id, case.fact.direction, self.step
        )
        count = self.step % length if self.reveal == "cycle" else stream.randrange(length)
        if self.step in (0, self.steps - 1):
            count = 0
        shown = set(stream.sample(range(length), count))
        return [show_tokens(row, shown, self.model.blueprint.shift) for row in case.rows]


def show_tokens(row: PromptRow, shown: set[int], shift: bool) -> PromptRow:
    """The row with some of its targets on the canvas, which are then not read."""
    tokens = list(row.tokens)
    for i in shown:
        # Dream's rows predict the position after them.
        tokens[row.reads[i] + shift] = row.targets[i]
    left = [i for i in range(len(row.targets)) if i not in shown]
    reads, targets = [row.reads[i] for i in left], [row.targets[i] for i in left]
    return replace(row, tokens=tokens, reads=reads, targets=targets)
