"""Teaching: a copy of a model is trained on some lines, with loss on their answers alone."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.data.facts import Fact
from unmask.evaluation.questions import choose_length, encode_facts, require_tokenizer
from unmask.net.model import Model
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch
from unmask.objectives.targets import Targets
from unmask.training.build import TrainingJob, choose_training_dtype
from unmask.training.data_settings import DataSettings
from unmask.training.examples import keep_beginnings, lay_out_rows
from unmask.training.learner import freeze_unreached
from unmask.training.losses import (
    CausalObjective,
    LossInputs,
    MaskedObjective,
    Objective,
    make_objective,
)
from unmask.training.mixture import Mixture
from unmask.training.parallel import World
from unmask.training.recipe import (
    BatchSettings,
    BudgetSettings,
    ComputeSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
    ScheduleSettings,
)
from unmask.training.trainer import Trainer


@dataclass(frozen=True)
class AnswerObjective(Objective):
    """A model's own objective with loss on the tokens of the fact's object alone.

    All after the prompt is noised as usual; the prompt is given. What closes the line bears no
    loss.
    """

    inner: MaskedObjective | CausalObjective

    @classmethod
    def wrap(cls, inner: Objective) -> "AnswerObjective":
        """That objective, on objects alone."""
        if not isinstance(inner, MaskedObjective | CausalObjective):
            raise UserError(
                "only masked and causal models are taught: another kind has no loss that can be "
                "kept to some tokens."
            )
        return cls(inner.settings, inner)

    def count(self, batch: Batch) -> float:
        return self.inner.count(batch)

    def find_learnable(self, batch: Batch) -> Tensor:
        return self.inner.find_learnable(batch) & batch.is_entity(1)

    def prepare(self, batch: Batch, t: Tensor, streams: RowStreams) -> LossInputs:
        inputs = self.inner.prepare(batch, t, streams)
        assert inputs.targets is not None
        at, tokens, weights = (getattr(inputs.targets, x) for x in ("at", "tokens", "weights"))
        is_before = not isinstance(self.inner, MaskedObjective) or self.inner.shift
        is_learned = self.find_learnable(batch).flatten()[at + is_before]
        return replace(inputs, targets=Targets(*(x[is_learned] for x in (at, tokens, weights))))

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        return self.inner.loss(net, inputs)


@dataclass(frozen=True)
class Teaching:
    """How long and how hard a model is taught."""

    steps: int
    rows: int
    rate: float
    every: int
    """Steps between two checks of what is learned."""
    enough: float
    """The share of answers at which teaching stops."""
    seed: int = 0
    length: int | None = None
    """Positions of a line, the canvas that questions are asked on."""


@dataclass(frozen=True)
class Taught:
    """A model that was taught, after how many steps, and what its last check gave."""

    model: Model
    steps: int
    learned: float


def teach(
    model: Model, lines: Sequence[Fact], teaching: Teaching, check: Callable[[Model], float]
) -> Taught:
    """A copy of the model trained on the lines until a check is passed; the model stays as it is.

    Args:
        model: Masked or causal, in float32.
        lines: What is taught: each line's object, its prompt given.
        teaching: How long, and how hard.
        check: The share of answers that are learned, of the model as it then is.
    """
    trainer = Trainer(_prepare(model, lines, teaching))
    learned = 0.0
    while not trainer.done:
        trainer.take_step()
        if trainer.progress.step % teaching.every == 0 or trainer.done:
            with trainer.show_model() as shown:
                learned = check(shown)
            if learned >= teaching.enough:
                break
    net = trainer.net.eval().requires_grad_(False)
    return Taught(replace(model, net=net), trainer.progress.step, learned)


def _prepare(model: Model, lines: Sequence[Fact], teaching: Teaching) -> TrainingJob:
    """What a run works with, from a loaded model and facts instead of a recipe's files."""
    tokenizer = require_tokenizer(model)
    length = choose_length(model, encode_facts(lines, tokenizer).values(), teaching.length)
    is_causal = not model.paradigm.sees_later
    recipe = Recipe(
        kind=model.kind,
        data=DataSettings(source="facts", context=length),
        seed=teaching.seed,
        objective=ObjectiveSettings(name="next_token" if is_causal else "mdlm", response_only=True),
        optimiser=OptimiserSettings(rate=teaching.rate, decay=0.0),
        schedule=ScheduleSettings(name="constant", warmup=10),
        batch=BatchSettings(rows=min(teaching.rows, len(lines))),
        budget=BudgetSettings(steps=teaching.steps),
        machine=ComputeSettings(compile="off", graphs="off"),
    )
    net = copy.deepcopy(model.net).requires_grad_(True).train()
    net.tie_head()
    freeze_unreached(net, recipe.paradigm)
    learner = replace(model, net=net)
    examples = lay_out_rows(None, lines, recipe.data, tokenizer)
    if not is_causal:
        examples = keep_beginnings(examples, learner)
    objective = make_objective(recipe, model.blueprint, tokenizer.end_id, tokenizer)
    return TrainingJob(
        recipe,
        Mixture({"": examples}, {"": recipe.data}),
        learner,
        AnswerObjective.wrap(objective),
        World(model.device),
        choose_training_dtype(recipe, model.device),
    )
