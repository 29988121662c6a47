"""The training objective of each kind: how a batch is prepared on the CPU, and its loss."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer
from unmask.noise.masked import Masked
from unmask.noise.process import Process
from unmask.noise.processes import make_process
from unmask.noise.schedules import Schedule
from unmask.objectives.batch import Batch
from unmask.objectives.discrete import (
    NoisedTokens,
    noise_tokens,
    process_targets_loss,
    targets_score_entropy,
)
from unmask.objectives.masked import (
    MaskedWeighting,
    contaminate,
    find_forbidden,
    get_weighting,
    noise_batch,
    spare_subject,
)
from unmask.objectives.rearranged import (
    Rearranged,
    copy_masked,
    draw_order,
    hide_suffix,
    interleave,
    list_orders,
    reorder,
    run_beside_clean,
)
from unmask.objectives.targets import hidden_targets, next_targets, targets_loss
from unmask.objectives.vectors import Form, gaussian_loss
from unmask.objectives.warping import TimeWarp
from unmask.training.changing import CHANGING, WARP
from unmask.training.objective import LossInputs, Objective
from unmask.training.objective_settings import ObjectiveSettings
from unmask.training.recipe import Recipe
from unmask.training.tables import OBJECTIVES


@dataclass(frozen=True)
class MaskedObjective(Objective):
    """The masked cross-entropy under one of its weightings."""

    process: Masked
    weighting: MaskedWeighting
    shift: bool = False

    def count(self, batch: Batch) -> float:
        if self.weighting.share == "responses":
            return float((~batch.is_prompt()).sum())
        if self.weighting.share == "noised":
            return super().count(batch)
        return float(len(batch.tokens))

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        noised = noise_batch(self.process, batch, t, streams, self.weighting, *self.noising)
        noised = spare_subject(noised, batch, self.settings.subject, streams, self.process.mask_id)
        noised = contaminate(noised, batch, self.settings.contaminated, streams)
        targets = hidden_targets(batch, noised.hidden, noised.weights, self.shift)
        rows = (noised.xt, batch.tokens) if self.settings.clean_blocks else (noised.xt,)
        return LossInputs(replace(batch, tokens=torch.cat(rows, 1), foreign=None), t, targets)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        assert inputs.targets is not None
        if self.settings.clean_blocks:
            x = run_beside_clean(net, *inputs.batch.tokens.chunk(2, dim=1), inputs.t)
        else:
            x = net.run_layers(net.embed(inputs.batch.tokens, t=inputs.t), sees=inputs.sees)
        return targets_loss(net, x, inputs.targets, find_forbidden(net, self.process))[0]


@dataclass(frozen=True)
class CausalObjective(Objective):
    """The next token; some of those before it may be read as masks."""

    mask_id: int | None = None

    def find_learnable(self, batch: Batch) -> Tensor:
        return super().find_learnable(batch) & (batch.positions > 0)

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        targets = next_targets(batch, self.find_learnable(batch))
        if self.mask_id is not None and self.settings.mask_inputs:
            hidden = streams.uniform(batch.tokens.shape[1]) < self.settings.mask_inputs
            batch = replace(batch, tokens=torch.where(hidden, self.mask_id, batch.tokens))
        return LossInputs(batch, t, targets)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        assert inputs.targets is not None
        x = net.run_layers(net.embed(inputs.batch.tokens))
        return targets_loss(net, x, inputs.targets)[0]


@dataclass(frozen=True)
class RearrangedObjective(Objective):
    """The plain mean over what is predicted in rows that are read in another form."""

    mask_id: int

    @abstractmethod
    def rearrange(self, batch: Batch, t: Tensor, streams: RowStreams) -> Rearranged:
        """What the network reads, and what it predicts where."""

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        made = self.rearrange(batch, t, streams)
        return LossInputs(Batch(made.tokens), t, made.targets, positions=made.positions)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        assert inputs.targets is not None
        x = net.embed(inputs.batch.tokens, t=inputs.t)
        x = net.run_layers(x, sees=inputs.sees, positions=inputs.positions)
        forbidden = self.mask_id if 0 <= self.mask_id < net.config.logit_rows else None
        return targets_loss(net, x, inputs.targets, forbidden)[0]


@dataclass(frozen=True)
class SuffixObjective(RearrangedObjective):
    """The next token under a network that sees both ways: all from it on is masked."""

    shift: bool = False

    def count(self, batch: Batch) -> float:
        return float(self.find_learnable(batch).any(-1).sum())  # a token of each row

    def rearrange(self, batch: Batch, t: Tensor, streams: RowStreams) -> Rearranged:
        return hide_suffix(batch, self.find_learnable(batch), t, self.mask_id, self.shift)


@dataclass(frozen=True)
class MaskedCopyObjective(RearrangedObjective):
    """The next token after a masked copy of the row: masked fine-tuning of a decoder."""

    separator: int

    def rearrange(self, batch: Batch, t: Tensor, streams: RowStreams) -> Rearranged:
        may = self.find_learnable(batch)
        hidden = may & (streams.uniform(batch.tokens.shape[1]) < t[:, None])
        return copy_masked(batch, may, hidden, self.mask_id, self.separator)


@dataclass(frozen=True)
class PermutedObjective(RearrangedObjective):
    """The next token in an order drawn for each row; its position is known."""

    def rearrange(self, batch: Batch, t: Tensor, streams: RowStreams) -> Rearranged:
        may = self.find_learnable(batch)
        order = draw_order(batch, may, streams.uniform(batch.tokens.shape[1]))
        return interleave(batch, may, order, self.mask_id)


@dataclass(frozen=True)
class FixedOrdersObjective(RearrangedObjective):
    """The next token in one of a few orders, the same ones for all rows of all steps."""

    def find_learnable(self, batch: Batch) -> Tensor:
        return super().find_learnable(batch) & (batch.positions > 0)

    def rearrange(self, batch: Batch, t: Tensor, streams: RowStreams) -> Rearranged:
        assert self.settings.orders is not None
        orders = list_orders(self.settings.orders, batch.tokens.shape[1])
        chosen = orders[streams.below(len(orders), 1)[:, 0]]
        # Prompts are read first and filling last: neither stands between learned tokens.
        part = batch.is_filling().long() - batch.is_prompt().long()
        chosen = chosen.gather(1, part.gather(1, chosen).argsort(dim=-1, stable=True))
        return reorder(batch, self.find_learnable(batch), chosen)


@dataclass(frozen=True)
class ProcessObjective(Objective):
    """The bound of a discrete process, or the score entropy of masked noise."""

    process: Process

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        steps = self.settings.noise_steps
        noised = noise_tokens(self.process, batch, t, streams, steps, *self.noising[:3])
        return LossInputs(replace(batch, tokens=noised.xt), noised.t, noised.targets)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        assert inputs.targets is not None
        noised = NoisedTokens(inputs.t, inputs.batch.tokens, inputs.targets)
        if isinstance(self.process, Masked) and self.process.masks_evenly:
            nll = targets_score_entropy(net, self.process, noised)
            return (inputs.targets.weights * nll).sum()
        steps, auxiliary = self.settings.noise_steps, self.settings.auxiliary
        return process_targets_loss(net, self.process, noised, steps, auxiliary)[0]


@dataclass(frozen=True)
class GaussianObjective(Objective):
    """The bound of noise on token vectors, or CDCD's cross-entropy.

    The vectors are learned, so that they are noised on the device, with the loss.
    """

    schedule: Schedule
    form: Form
    evidence: bool = False

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        return LossInputs(batch, t, streams=streams)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        assert inputs.streams is not None
        noised = (inputs.batch, inputs.t, inputs.streams)
        settings = (self.settings.self_condition, *self.noising[:2], self.evidence)
        if not self.settings.warped:
            return gaussian_loss(net, *noised, self.schedule, self.form, *settings)[0]
        warp = net.get_submodule(WARP)
        assert isinstance(warp, TimeWarp)
        times = warp.draw(inputs.t)
        noised = (inputs.batch, times, inputs.streams)
        loss, terms = gaussian_loss(net, *noised, self.schedule, self.form, *settings)
        return loss + warp.fit_loss(times, terms.mean(-1))


@dataclass(frozen=True)
class OwnObjective(Objective):
    """A function of another package's, which noises on the device as it likes."""

    function: Callable[[Model, Batch, Tensor, RowStreams], Tensor]
    model: Model

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        return LossInputs(batch, t, streams=streams)

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        assert inputs.streams is not None
        loss = self.function(self.model, inputs.batch, inputs.t, inputs.streams)
        if not isinstance(loss, Tensor) or loss.shape != ():
            shown = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise UserError(f"the objective returned {shown}: expected a single number, a tensor.")
        return loss


def make_registered(recipe: Recipe, model: Model) -> Objective:
    """The objective of another package that a recipe names."""
    made = OBJECTIVES.find(recipe.objective_name)
    if not isinstance(made, type):
        return OwnObjective(recipe.objective, made, model)
    if not issubclass(made, Objective):
        raise UserError(
            f"the objective {recipe.objective_name} is the class {made.__name__}: expected one "
            "over unmask.training.losses.Objective."
        )
    return made.make(recipe, model)


def make_objective(
    recipe: Recipe, blueprint: Blueprint, end_id: int = 0, tokenizer: Tokenizer | None = None
) -> Objective:
    """The objective of a recipe, under the noise that the model will carry.

    `end_id` is what stands between a text and its masked copy.
    """
    settings, name, noise = recipe.objective, recipe.objective_name, blueprint.noise
    if not recipe.paradigm.sees_later:
        return _make_causal(settings, name, blueprint, end_id)
    if recipe.paradigm.noises_vectors:
        form: Form = "bound" if name == "bound" else "cdcd"
        schedule = noise.make_schedule("sigmoid")
        return GaussianObjective(settings, schedule, form, noise.evidence)
    rows = blueprint.config.logit_rows
    process = make_process(recipe.kind, noise, rows, blueprint.mask_id, tokenizer)
    is_even = isinstance(process, Masked) and process.masks_evenly
    is_other = not is_even or name in ("suffix", "score_entropy", *CHANGING)
    if settings.clean_blocks and (is_other or blueprint.config.block is None):
        raise UserError(
            f"objective.clean_blocks was given with the objective {name}: expected a masked "
            "cross-entropy, and a network with blocks such as the preset tiny-blocks."
        )
    if isinstance(process, Masked) and name == "suffix":
        return SuffixObjective(settings, process.mask_id, blueprint.shift)
    if isinstance(process, Masked) and not is_other:
        weighting = get_weighting(name, settings.rate)
        return MaskedObjective(settings, process, weighting, blueprint.shift)
    if name in CHANGING:
        return CHANGING[name].of(settings, process)
    return ProcessObjective(settings, process)


def _make_causal(
    settings: ObjectiveSettings, name: str, blueprint: Blueprint, end_id: int
) -> Objective:
    config, mask_id = blueprint.config, blueprint.mask_id
    if name == "next_token":
        return CausalObjective(settings, mask_id)
    if name in ("permuted", "fixed_orders"):
        _require_movable(name, blueprint)
    if name == "fixed_orders":
        return FixedOrdersObjective(settings, -1 if mask_id is None else mask_id)
    assert mask_id is not None, "a model whose rows hold masks is made with one"
    if name == "masked":
        # Row i predicts position i + 1, as a causal network does anyway.
        return MaskedObjective(
            settings, Masked(config.logit_rows, mask_id), get_weighting("smdm"), shift=True
        )
    if name == "masked_copy":
        return MaskedCopyObjective(settings, mask_id, end_id)
    return PermutedObjective(settings, mask_id)


def _require_movable(name: str, blueprint: Blueprint) -> None:
    """Raise where a network's attention depends on more than rotary positions of tokens."""
    config = blueprint.config
    if config.positions != "rotary" or config.window is not None or config.block is not None:
        raise UserError(
            f"the objective {name} moves tokens with their positions: expected a network with "
            "rotary positions, without windows or blocks; choose another preset."
        )


def min_length(batch: Batch, recipe: Recipe) -> int:
    """The shortest length that rows may be cut to such that something is left to learn.

    Where prompts are not learned, one token more than the longest; a causal model never learns a
    row's first token.
    """
    least = 2 if recipe.paradigm.predicts_next or recipe.objective_name == "joint" else 1
    after_prompts = recipe.objective.response_only or recipe.objective_name == "smdm_sft"
    if after_prompts and batch.prompt_length is not None:
        least = max(least, int(batch.prompt_length.max()) + 1)
    return min(least, batch.tokens.shape[1])
