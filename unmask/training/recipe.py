"""Recipes: everything that decides what a training run computes, as frozen settings."""

from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from operator import attrgetter
from typing import Literal, get_type_hints

from unmask.base.config import LARGEST, SettingsError, check_values
from unmask.base.plugins import describe_plugins
from unmask.net.paradigm import Kind, Paradigm, find_unknown, get_paradigm
from unmask.noise.processes import find_noise_problems
from unmask.noise.settings import NoiseConfig
from unmask.training.data_settings import (
    PREFERENCES,
    TEXTS,
    DataSettings,
    find_data_problems,
    list_parts,
    share_rows,
)
from unmask.training.objective_settings import (
    PREFERENCE,
    ObjectiveSettings,
    find_preference_problems,
)
from unmask.training.tables import OBJECTIVES, OPTIMISERS

_LONGER = {"masked_copy": (2, 1), "permuted": (2, 0)}
"""Objectives whose rows are longer than the data's: so many times, and so many tokens more."""
_MASKED = ("smdm", "smdm_sft", "llada", "mdlm", "bound", "fixed_rate", "joint")
"""Objectives of masked noise in which any position may be masked, and is then predicted."""

_ABOVE_0 = """
budget.steps budget.tokens budget.minutes batch.rows data.context optimiser.rate network.scale
cadence.log cadence.keep guards.patience optimiser.eps cadence.sampling_steps data.facts data.vocab
start.lora_alpha batch.micro start.lora_rank objective.rate objective.orders optimiser.clip
guards.spike objective.diffusion_weight objective.beta objective.masks
objective.noise_steps objective.softness"""
_FROM_0 = """
cadence.checkpoint cadence.evaluate cadence.facts cadence.samples optimiser.decay guards.settle
schedule.warmup start.open_over data.seed objective.auxiliary"""
_SHARES = """
objective.drop_prompt objective.self_condition objective.mask_inputs network.dropout
objective.contaminated objective.whole_entities objective.short schedule.floor schedule.decay
optimiser.ema objective.rate"""
_RANGES = (
    (_ABOVE_0, "more than 0", lambda value: value > 0),
    (_FROM_0, "at least 0", lambda value: value >= 0),
    (_SHARES, "0 to 1", lambda value: 0 <= value <= 1),
)
"""Settings that are numbers, and what they are expected to be; None is always right."""


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The network's shapes."""

    preset: str = "tiny"
    changes: dict = field(default_factory=dict)
    """Fields of `NetConfig` that differ from the preset's."""
    scale: float = 1.0
    """Initial matrices times this; narrow networks learn sooner from more than 0.02."""
    dropout: float = 0.0
    """Chance that, in a training step, a number of what a layer adds to the stream is left out."""


@dataclass(frozen=True, kw_only=True)
class StartSettings:
    """What training starts from, if not from fresh weights."""

    model: str | None = None
    """A model's name or path; a causal one under another kind is adapted."""
    open_over: int = 0
    """Adapting: steps over which attention to later positions opens; 0: open at once."""
    shift: bool = False
    """Adapting: keep the causal habit that row i predicts position i + 1, as Dream does."""
    untie: bool = False
    """Give a tied head weights of its own, which begin as the embedding's."""
    lora_rank: int | None = None
    """Train low-rank additions to the layers' matrices instead of the weights."""
    lora_alpha: float = 16.0


@dataclass(frozen=True, kw_only=True)
class OptimiserSettings:
    """How weights move."""

    name: str = "adamw"
    """`muon` is for the layers' matrices; everything else stays with AdamW."""
    rate: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.1
    """Weight decay of matrices; vectors have none."""
    clip: float | None = 1.0
    """The longest gradient."""
    frozen: tuple[str, ...] = ()
    """`embedding`, `head` or both stay as they are."""
    ema: float | None = None
    """Keep a moving average of the weights with this decay; it is what is saved as the model."""


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """How the rate changes with the step."""

    name: Literal["cosine", "wsd", "constant"] = "cosine"
    """`wsd`: warm up, stay, then fall in a straight line over the last `decay` of the steps."""
    warmup: int = 100
    floor: float = 0.1
    """The last rate, as a share of the highest."""
    decay: float = 0.2


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """Rows of one step, over all processes and accumulated batches."""

    rows: int = 256
    micro: int | None = None
    """Rows of one forward pass on one process. None: all of the process's rows."""


@dataclass(frozen=True, kw_only=True)
class BudgetSettings:
    """How long to train: exactly one of these."""

    steps: int | None = None
    tokens: int | None = None
    minutes: float | None = None
    """Turned into steps by the speed of the first ones, once; a resumed run keeps that number. A
    run whose time is spent before its speed is known ends there."""


@dataclass(frozen=True, kw_only=True)
class CadenceSettings:
    """Every how many steps something happens; 0: only at the end, or never where said."""

    log: int = 10
    checkpoint: int = 0
    keep: int = 2
    """Checkpoints that stay."""
    evaluate: int = 0
    facts: int = 30
    """Facts of each validation split that are asked; 0: evaluation is left out."""
    sampling_steps: int = 16
    samples: int = 2
    """Texts drawn at an evaluation."""


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """What is done about gradients that are not numbers, or far too long."""

    spike: float | None = 20.0
    """Skip a step whose gradient is this many times longer than usual. None: never."""
    settle: int = 50
    """Steps before lengths count as usual."""
    patience: int = 10
    """Stop after this many skipped steps in a row, at the next record or checkpoint. Gradients that
    are long but clipped are taken one step before that."""


@dataclass(frozen=True, kw_only=True)
class ComputeSettings:
    """How it is computed; of these only `dtype` changes more than the last digits."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The dtype of products; weights are float32 always. `auto`: bfloat16 on CUDA, else float32."""
    compile: Literal["auto", "on", "off"] = "auto"
    """`auto`: on CUDA."""
    graphs: Literal["auto", "on", "off"] = "auto"
    """Whether steps of the same shapes are captured and replayed, on one CUDA device; `auto`: for
    networks small enough to gain by it. Replayed steps are the launched ones to the bit."""
    recompute: bool = False
    """Compute a block's activations again in the backward pass instead of keeping them."""
    deterministic: bool = False
    """Whether one run gives the same bits on a GPU as well; slower."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: whole networks side by side, or one network cut up."""
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run: what is learned from what, how, and for how long; a YAML file has the same.

    Args:
        kind: Of model: "masked", "uniform", "hybrid", "gaussian", "causal", or one's own process.
        data: Where rows come from.
        seed: Of the weights, the order of rows and the noise.
        network: Its shapes.
        start: A trained model to start from, adapters.
        noise: Schedule and other settings of the process.
        objective: What is minimised; by default what the kind's reference minimises.
        optimiser, schedule: AdamW or Muon, and the rate over time.
        batch, budget: Rows of a step; how many steps, tokens or minutes.
        cadence: When to log, evaluate, sample and save.
        guards: When a gradient is skipped.
        machine: dtype, compiling, several devices.

    >>> from unmask.training.recipe import DataSettings
    >>> recipe = unmask.Recipe(kind="masked", data=DataSettings(source="reversal"))
    >>> recipe.objective_name, recipe.budget.steps
    ('smdm', 1000)
    """

    kind: Kind
    data: DataSettings
    seed: int = 0
    network: NetworkSettings = field(default_factory=NetworkSettings)
    start: StartSettings = field(default_factory=StartSettings)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    budget: BudgetSettings = field(default_factory=lambda: BudgetSettings(steps=1000))
    cadence: CadenceSettings = field(default_factory=CadenceSettings)
    guards: GuardSettings = field(default_factory=GuardSettings)
    machine: ComputeSettings = field(default_factory=ComputeSettings)

    def __post_init__(self) -> None:
        problems = check_values(vars(self), get_type_hints(Recipe), seed=(0, LARGEST))
        for name, section in vars(self).items():
            if not problems and is_dataclass(section):
                hints = {
                    f"{name}.{key}": hint for key, hint in get_type_hints(type(section)).items()
                }
                values = {f"{name}.{key}": value for key, value in vars(section).items()}
                problems += check_values(values, hints)
        if problems := problems or list(self._problems()):
            raise SettingsError("recipe", problems)

    @property
    def paradigm(self) -> Paradigm:
        """How models of this kind are read, sampled and scored."""
        return get_paradigm(self.kind)

    def describe_plugins(self) -> dict[str, dict[str, str]]:
        """What other packages, or calls of `unmask.register`, have a part in."""
        chosen = (("noise", self.kind), ("schedule", self.noise.schedule))
        own = (("objective", self.objective.name), ("optimiser", self.optimiser.name))
        sources = (("source", part.source) for part in self.parts.values())
        return describe_plugins((*chosen, *own, *sources))

    @property
    def objective_name(self) -> str:
        name = self.objective.name
        return self.paradigm.objectives[0] if name == "auto" else name

    @property
    def needs_mask(self) -> bool:
        """Whether the network reads masks; a causal one does under some objectives."""
        reads_masks = self.objective_name in ("masked", *_LONGER) or self.objective.mask_inputs > 0
        return self.paradigm.has_mask or reads_masks

    @property
    def is_rearranged(self) -> bool:
        """Whether rows are read in another form than texts are, so that plain prompts mislead."""
        return self.objective_name in _LONGER

    @property
    def parts(self) -> dict[str, DataSettings]:
        """The sources of rows by name."""
        return list_parts(self.data)

    @property
    def rows(self) -> dict[str, int]:
        """How many of a step's rows come from each source."""
        return share_rows(self.batch.rows, self.parts)

    def row_length(self, source: str) -> int:
        """Tokens of a source's row as the network reads it."""
        times, more = _LONGER.get(self.objective_name, (1, 0))
        return times * self.parts[source].context + more

    @property
    def input_length(self) -> int:
        """Tokens of the longest row as the network reads it."""
        return max(map(self.row_length, self.parts))

    @property
    def step_tokens(self) -> int:
        """Tokens of a step's rows as the network reads them."""
        return sum(rows * self.row_length(source) for source, rows in self.rows.items())

    @property
    def steps(self) -> int | None:
        """How many steps the budget allows; None for minutes, until the speed is known."""
        if self.budget.tokens is None:
            return self.budget.steps
        return max(1, self.budget.tokens // self.step_tokens)

    @property
    def copies(self) -> int:
        """Rows that the network reads at once of each row of a batch."""
        return 2 * self.objective.masks if self.objective_name == PREFERENCE else 1

    @property
    def passes(self) -> int:
        """Forward passes that a step costs: a backward is two, hints and clean blocks are more."""
        if self.objective_name == PREFERENCE:
            return 4 * self.copies  # the start's own is one
        is_hinted = self.paradigm.noises_vectors and self.objective.self_condition > 0
        own = 3 * (self.readings + self.objective.clean_blocks)
        return 4 if is_hinted else own

    @property
    def readings(self) -> int:
        """How many readings of the network learn a row, at most: each has a pass of its own."""
        both = any(part.reading == "both" for part in self.parts.values())
        return 2 if both and self.objective_name == "joint" else 1

    def _problems(self) -> Iterator[str]:
        yield from list(find_unknown(self.kind)) or self._find_misfits()
        given = {name: value for name, value in vars(self.budget).items() if value is not None}
        if len(given) != 1:
            named = ", ".join(f"budget.{name}" for name in given) or "none"
            yield f"one of budget.steps, budget.tokens and budget.minutes is needed, got {named}"
        yield from self._find_wrong_numbers()
        if len(self.optimiser.betas) != 2:
            yield f"'optimiser.betas' has {len(self.optimiser.betas)} numbers, expected 2"
        if wrong := [beta for beta in self.optimiser.betas if not 0 <= beta < 1]:
            yield f"'optimiser.betas' holds {wrong[0]}, expected 0 to less than 1"

    def _find_wrong_numbers(self) -> Iterator[str]:
        """Numbers out of their range."""
        for names, expected, is_right in _RANGES:
            for name in names.split():
                section, key = name.split(".")
                value = getattr(getattr(self, section), key)
                if value is not None and not is_right(value):
                    yield f"{name!r} is {value}, expected {expected}"

    def _find_misfits(self) -> Iterator[str]:
        """Settings that are sound alone but do not go together."""
        yield from find_noise_problems(self.kind, self.noise)
        if self.optimiser.name not in OPTIMISERS:
            known = ", ".join(OPTIMISERS)
            yield f"'optimiser.name' is {self.optimiser.name!r}, expected one of {known}"
        known = [*self.paradigm.objectives, *(OBJECTIVES.keys() - OBJECTIVES.own.keys())]
        if self.objective_name not in known:
            yield (
                f"'objective.name' is {self.objective.name!r}, but {self.kind} models minimise "
                + " or ".join(known)
            )
        scored = self.objective_name == "score_entropy"
        is_masked = self.paradigm.masks_evenly and self.objective_name in _MASKED
        if (self.objective.rate is None) == (self.objective_name == "fixed_rate"):
            yield "'objective.rate' is for the objective fixed_rate, which needs one: 0 to 1"
        for name in ("subject", "contaminated", "whole_entities"):
            is_set = getattr(self.objective, name) not in ("usual", 0)
            if is_set and (not is_masked or self.data.source in TEXTS):
                known = ", ".join(_MASKED)
                yield f"'objective.{name}' is for facts and masked models that minimise {known}"
        if self.objective.warped and not self.paradigm.noises_vectors:
            yield "'objective.warped' is for gaussian noise"
        has_steps = self.objective.noise_steps is not None or self.objective.auxiliary
        if has_steps and (self.paradigm.sampler != "ancestral" or self.objective_name != "bound"):
            yield (
                "'objective.noise_steps' and 'objective.auxiliary' are for the bound of uniform "
                "and hybrid noise"
            )
        named = [entry for entry in self.data.sources.values() if isinstance(entry, dict)]
        readings = {self.data.reading, *(entry.get("reading", "both") for entry in named)}
        if self.objective_name != "joint" and readings != {"both"}:
            yield "'data.reading' is for the objective joint, which has two readings"
        if self.objective.mask_inputs and self.objective_name != "next_token":
            yield "'objective.mask_inputs' is for causal models that minimise next_token"
        if (self.objective.orders is None) == (self.objective_name == "fixed_orders"):
            yield "'objective.orders' is for the objective fixed_orders, which needs one: 1 or more"
        yield from find_data_problems(self.data, self.batch.rows, self.objective.response_only)
        cut = self.objective_name == "suffix"
        if self.objective.drop_prompt and (scored or cut or not self.paradigm.has_mask):
            yield "'objective.drop_prompt' replaces prompts by masks: it needs masked noise"
        given = (self.data.source == PREFERENCES, self.start.model is not None)
        yield from find_preference_problems(self.objective, self.objective_name, *given)
        if self.start.shift and (scored or not self.paradigm.masks_evenly):
            yield "'start.shift' is for masked models that started as causal ones"
        if self.start.open_over and (self.start.model is None or not self.paradigm.sees_later):
            yield "'start.open_over' is for a diffusion model that starts from a causal one"
        for name in ("start.untie", "start.lora_rank", "objective.anchored"):
            value = attrgetter(name)(self)
            if self.start.model is None and value is not None and value is not False:
                yield f"{name!r} is for a model to start from: name it by 'start.model'"
        if not set(self.optimiser.frozen) <= {"embedding", "head"}:
            yield f"'optimiser.frozen' is {self.optimiser.frozen}, expected embedding, head or both"
        if self.optimiser.frozen and self.start.lora_rank is not None:
            yield "'optimiser.frozen' and 'start.lora_rank' do not go together: adapters leave both"
        if self.machine.parallel == "fsdp" and self.optimiser.name == "muon":
            yield "'optimiser.name' muon works on whole matrices, which fsdp cuts up: use ddp"
        if self.start.model is not None and (self.network.changes or self.network.scale != 1):
            yield "'network.changes' and 'network.scale' are for fresh weights, not 'start.model'"
