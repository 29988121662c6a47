"""paths: through which positions, layers and heads the subject's information reaches the answer.

Path patching (Wang et al. 2022, arXiv 2211.00593; Goldowsky-Dill et al. 2023, arXiv 2304.05969).
The subject is hidden (corrupted). The sender is a role: all of its positions, such as the tokens of
the subject. Their clean states after one layer are shown to the attention of the receivers alone:
the positions of another role, in a band of layers above. Everything else sees the residual stream
of the run with the subject hidden, and changes only through what the receivers pass on. Whatever
score this gives back went through these positions in this band. From the subject to the answer's
positions the same is measured for every single head.

An effect is the answer's score along a path minus its score with the subject hidden. Shares are of
the total effect: the score with nothing hidden minus that with the subject hidden. "Every way"
restores the sender's states for everything that reads them. Paths do not add up to it: several
receivers together can give back more, or less, than the sum of each. Intervals are 95 % t intervals
over facts; training seeds of a model are averaged fact by fact, so that intervals say nothing of
other seeds. Controls send another fact's states, or the hidden states moved in a random direction
by the distance of the clean ones; a path counts where it gives back more than both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option
from unmask.measures.clean_runs import CleanRunSettings, list_prompt_jobs
from unmask.measures.inputs import QUESTIONS, ModelInputs
from unmask.measures.measure import Job, Measure
from unmask.measures.paths_section import (
    CELL,
    CLEAN,
    EVERY_WAY,
    HIDDEN,
    METRICS,
    OWN,
    describe,
    judge,
    summarise,
)
from unmask.tracing.settings import Tracing
from unmask.tracing.table import OTHER_FACT, RANDOM

if TYPE_CHECKING:
    from unmask.data.facts import Fact
    from unmask.tracing.clean_run import CleanRun
    from unmask.tracing.paths import PathGrid
    from unmask.tracing.question import Placebo, Question

PathRole = Literal["subject", "prompt", "last", "answer", "written", "masks"]


@dataclass(frozen=True, kw_only=True)
class PathsSettings(CleanRunSettings):
    """Which facts are asked, and which paths are followed."""

    senders: tuple[PathRole, ...] = option(
        ("subject", "prompt", "last", "masks"),
        "Positions whose clean states are sent: subject, prompt (its other tokens), last (the "
        "prompt's last token), answer (where the answer is predicted), written (other tokens "
        "after the prompt), masks (other masks).",
    )
    receivers: tuple[PathRole, ...] = option(
        ("subject", "prompt", "last", "answer", "masks"),
        "Positions whose attention reads the sent states.",
    )
    bands: int = option(
        6,
        "Bands that the layers are divided into; states are sent from the layer below each band.",
        least=1,
    )
    heads: bool = option(
        True, "Also measure each single head by which the answer's positions read the subject."
    )
    placebos: tuple[Literal["other fact", "random direction"], ...] = option(
        (OTHER_FACT, RANDOM),
        "Controls, sent in place of the subject's clean states: another fact's states, or the "
        "hidden states moved in a random direction by the same distance.",
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        for name in ("senders", "receivers"):
            roles = getattr(self, name)
            if not roles or len(set(roles)) < len(roles):
                yield f"{name!r} is {roles}, expected at least one role, and none twice"


def list_jobs(inputs: ModelInputs, settings: PathsSettings) -> Iterator[Job]:
    """One part for each model and prompt."""
    return list_prompt_jobs(inputs, settings, "paths", partial(_patch_step, settings=settings))


@dataclass(frozen=True)
class Bands:
    """Bands of layers, and the layer just below each, from which states are sent."""

    edges: tuple[int, ...]

    @classmethod
    def divide(cls, layers: int, number: int) -> "Bands":
        number = min(number, layers)
        return cls(tuple(i * layers // number for i in range(number + 1)))

    @property
    def sent(self) -> list[int]:
        return [edge - 1 for edge in self.edges[:-1]]

    def list_above(self, sent: int) -> list[tuple[int, int]]:
        """First and last layer of each band above, and of all of them together."""
        edges = [edge for edge in self.edges if edge > sent]
        bands = [(first, end - 1) for first, end in pairwise(edges)]
        return [*bands, (edges[0], edges[-1] - 1)] if len(bands) > 1 else bands


def _patch_step(
    clean: "CleanRun",
    step: int,
    other: "Fact | None",
    tracing: Tracing,
    settings: PathsSettings,
) -> Iterator[dict[str, Any]]:
    """A row for each path, and for the scores with nothing and with the subject hidden."""
    from unmask.evaluation.questions import require_tokenizer
    from unmask.tracing.clean_run import find_state
    from unmask.tracing.facts import make_donor
    from unmask.tracing.paths import check_blocks, patch_senders
    from unmask.tracing.question import ask

    model = clean.model
    check_blocks(model)
    state, answer = find_state(clean, step, tracing)
    question = ask(model, state, clean.subject, answer, tracing, clean.prompt_length)
    bands = Bands.divide(model.net.config.layers, settings.bands)
    roles = _list_roles(question)
    senders = [role for role in settings.senders if role in roles]
    receivers = [role for role in settings.receivers if role in roles]
    runs: list[tuple[str, Placebo | None, Sequence[str]]] = [(OWN, None, senders)]
    if "subject" in senders:
        if OTHER_FACT in settings.placebos and other is not None:
            donor = make_donor(clean, other, require_tokenizer(model))
            runs.append((OTHER_FACT, donor, ["subject"]))
        if RANDOM in settings.placebos:
            runs.append((RANDOM, "random", ["subject"]))
    for control, donor, own in runs:
        has_heads = settings.heads and donor is None
        cells = _list_cells(model.net.config.heads, bands, own, receivers, has_heads)
        paths = [
            ((sender, sent, "resid"), [list(_make_receiver(cell)) for cell in each])
            for (sender, sent), each in cells.items()
        ]
        grids = patch_senders(replace(question, donor=donor), paths, settings.memory_bytes)
        if donor is None:
            yield from _list_ends(grids[0])
        for each, grid in zip(cells.values(), grids, strict=True):
            values = {name: grid.values(name).tolist() for name in METRICS}
            for i, cell in enumerate(each):
                scores = {name: values[name][i] for name in METRICS}
                yield {"control": control, **dict(zip(CELL, cell, strict=True)), **scores}


def _list_roles(question: "Question") -> set[str]:
    """The roles that have positions in some state of the answer."""
    from unmask.tracing.knockout import find_rows
    from unmask.tracing.tokens import group_factors

    answer = tuple(question.answer)
    rows = [find_rows(each, answer) for group in group_factors(question, None) for each in group]
    return {name for own in rows for name, is_there in own.items() if bool(is_there.any())}


PathCell = tuple[str, int, str, int, int, int]
"""Sender, the layer its state is sent after, receiver, its first and last layer, its head or -1."""


def _list_cells(
    heads: int, bands: Bands, senders: Sequence[str], receivers: Sequence[str], has_heads: bool
) -> dict[tuple[str, int], list[PathCell]]:
    """The cells of each sender and layer."""
    cells = {}
    for sender in senders:
        for sent in bands.sent:
            above = bands.list_above(sent)
            own = [(sender, sent, EVERY_WAY, *above[-1], -1)]
            own += [(sender, sent, to, *band, -1) for to in receivers for band in above]
            if has_heads and sender == "subject" and "answer" in receivers:
                first, last = above[0]
                layers = range(first, last + 1)
                own += [
                    (sender, sent, "answer", at, at, head) for at in layers for head in range(heads)
                ]
            cells[sender, sent] = own
    return cells


def _make_receiver(cell: PathCell) -> Iterator[Any]:
    """What reads the change in a cell, for `unmask.tracing.paths`."""
    _, _, to, first, last, head = cell
    if to == EVERY_WAY:
        yield "everything"
        return
    for layer in range(first, last + 1):
        yield (to, layer, "attn") if head < 0 else (to, layer, "attn_z", head)


def _list_ends(grid: "PathGrid") -> Iterator[dict[str, Any]]:
    """The scores with nothing hidden, and with the subject hidden."""
    from unmask.tracing.metrics import score_cells

    ends = {CLEAN: grid.clean_logp, HIDDEN: grid.corrupted_logp}
    for name, logp in ends.items():
        where = {"control": OWN, **dict(zip(CELL, (name, -1, "", -1, -1, -1), strict=True))}
        values = {
            metric: float(score_cells(metric, logp, grid.clean_logp, grid.corrupted_logp).mean())
            for metric in METRICS
        }
        yield where | values


MEASURE = Measure(
    name="paths",
    title="Paths from the subject to the answer",
    help="Find through which positions, layers and heads the subject reaches the answer (path "
    "patching).",
    settings=PathsSettings,
    tables={"paths": "paths/1", "facts": "paths-facts/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    summarise=summarise,
    judge=judge,
    describe=describe,
    method=__doc__,
)
