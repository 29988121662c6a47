"""TraceGrid: the result of one trace, for every token and layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError, suggest
from unmask.base.extras import Shown
from unmask.data.facts import Span
from unmask.data.tokenizer import Tokenizer
from unmask.tracing.metrics import Metric, score_cells


@dataclass(frozen=True)
class Flow:
    """Where an answer's probability comes from at a step with some answer tokens committed.

    p with subject and committed answer tokens both there, one hidden, and both hidden. The two
    parts are Shapley's: each source's effect, averaged over which of them is hidden first; they
    add up to the effect of hiding both.
    """

    both: float
    no_subject: float
    no_committed: float
    neither: float

    @property
    def subject(self) -> float:
        return ((self.both - self.no_subject) + (self.no_committed - self.neither)) / 2

    @property
    def committed(self) -> float:
        return ((self.both - self.no_committed) + (self.no_subject - self.neither)) / 2


@dataclass(frozen=True, repr=False)
class TraceGrid(Shown):
    """The restored metric of every cell, and what it stands between.

    Log-probabilities are kept, on the CPU, so that any metric can be had of the same trace: `K`
    counts the answer and, where one was given, its foil; `A` counts the answer's positions.
    """

    tokens: tuple[int, ...]
    subject: Span
    answer: dict[int, int]
    prompt_length: int
    mask_id: int | None
    places: tuple[tuple[int, ...], ...]
    """The positions that each row of the grid restores; usually one each."""
    logp: Mapping[str, Float[Tensor, "place layer *head S K A"]]
    """By part; per-head parts have a dimension of heads."""
    clean_logp: Float[Tensor, "1 K A"]
    corrupted_logp: Float[Tensor, "S K A"]
    metric: str | Metric
    window: int
    """Layers of MLP and attention outputs that were restored together."""
    corruption: str
    joint: str
    """`mean_field`, or `chain_rule` in the order in which the answer names its positions."""
    guidance: float = 0.0
    mode: str = "restore"
    """`restore` clean states into the corrupted run, or put others into the clean one: corrupted
    ones (`ablate`), `zero` or the `mean`."""
    severed: str | None = None
    estimate: bool = False
    """True for the gradients' estimate: not what a restored run gave."""
    step: int | None = None
    """The denoising step, counted from 1, whose state was traced."""
    run: str = "single"
    """`teacher_forced` or `free_running` for a step of a trajectory."""
    committed: tuple[int, ...] = ()
    """Positions of the answer that the state already shows."""
    source: str = "subject"
    """What was corrupted: the subject, the committed answer tokens, or both."""
    flow: Flow | None = None
    together: Mapping[str, int] = field(default_factory=dict)
    """Rows of the grid that restore several positions, by name."""
    tokenizer: Tokenizer | None = None
    """The tokenizer of the model that was traced, for its words."""

    def __repr__(self) -> str:
        metric = self.metric if isinstance(self.metric, str) else "score"
        step = f", step {self.step}" if self.step is not None else ""
        layers = next((each.shape[1] for each in self.logp.values()), 0)
        return (
            f"TraceGrid({len(self.places)} places × {layers} layers of {', '.join(self.logp)}; "
            f"{metric} {self.clean:.3g} clean, {self.corrupted:.3g} corrupted by "
            f"{self.corruption}{step})"
        )

    def values(
        self, part: str, metric: str | Metric | None = None, which: int = 0
    ) -> Float[Tensor, "place layer *head S"]:
        """The metric of each noise sample, in float64; `which` 1 reads the foil instead."""
        if part not in self.logp:
            raise UserError(f"part {part!r} was not traced: {suggest(part, self.logp)}")
        return self._score(self.logp[part], metric, which)

    @property
    def scores(self) -> dict[str, Float[Tensor, "place layer *head"]]:
        """The metric of each cell, mean over noise samples."""
        return {part: self.values(part).mean(-1) for part in self.logp}

    @property
    def clean(self) -> float:
        return self.clean_value()

    @property
    def corrupted(self) -> float:
        return float(self.corrupted_values().mean())

    def clean_value(self, metric: str | Metric | None = None, which: int = 0) -> float:
        return float(self._score(self.clean_logp, metric, which).mean())

    def corrupted_values(
        self, metric: str | Metric | None = None, which: int = 0
    ) -> Float[Tensor, "S"]:
        """The metric of each corrupted run."""
        return self._score(self.corrupted_logp, metric, which)

    @property
    def total_effect(self) -> float:
        """TE: what the corruption takes away."""
        return self.clean - self.corrupted

    def effects(
        self, part: str, metric: str | Metric | None = None, which: int = 0
    ) -> Float[Tensor, "place layer *head"]:
        """IE: what restoring a cell gives back; in other modes, what taking it away costs."""
        values = self.values(part, metric, which).mean(-1)
        if self.mode != "restore":
            return self.clean_value(metric, which) - values
        return values - float(self.corrupted_values(metric, which).mean())

    def take_position(self, position: int) -> "TraceGrid":
        """A grid of these cells, scored by one position of the answer alone."""
        at = slice(at := list(self.answer).index(position), at + 1)
        return replace(
            self,
            answer={position: self.answer[position]},
            logp={part: x[..., at] for part, x in self.logp.items()},
            clean_logp=self.clean_logp[..., at],
            corrupted_logp=self.corrupted_logp[..., at],
        )

    def _score(self, logp: Tensor, metric: str | Metric | None = None, which: int = 0) -> Tensor:
        metric = self.metric if metric is None else metric
        return score_cells(metric, logp, self.clean_logp, self.corrupted_logp, which)
