"""`unmask.cut_edges`: what an answer loses when some positions cannot attend to others.

Restoring a state shows that it is enough; cutting the attention that reads it shows that it is
needed. A cut edge (a position that attends, a position it attends to) takes no part in attention's
softmax, in every layer of a window, as in Geva et al. 2023 (arXiv 2304.14767). Positions go on
attending to themselves: they keep what they hold, and no softmax is empty.

Edges are named by the roles of both positions. A fact can take a detour: the answer's positions may
read from other positions, masks among them, what these have read from the subject.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.base.config import LARGEST, adjust, check_arguments, list_settings
from unmask.base.errors import UserError, suggest
from unmask.data.facts import Fact, FactTexts, as_fact
from unmask.net.batches import ran_out_of_memory
from unmask.net.model import Model
from unmask.tracing.clean_run import CleanRun, asks_whole, find_state, generate
from unmask.tracing.cut_cells import CutCell, run_cells
from unmask.tracing.metrics import Metric, score_cells
from unmask.tracing.question import Question, ask, check_foil, name_joint, reveal
from unmask.tracing.record import record_run
from unmask.tracing.settings import BY_CHAIN, Tracing
from unmask.tracing.sweep import DEFAULT_MEMORY, count_batch_bytes
from unmask.tracing.windows import Window, window_of

ROWS = {
    "subject": "tokens of the subject",
    "prompt": "other tokens of the prompt, but its last",
    "last": "the prompt's last token",
    "answer": "positions whose output predicts tokens of the answer that are not written yet",
    "written": "other tokens after the prompt that are written",
    "masks": "other masks after the prompt",
    "others": "all positions but those at the edge's other end",
}
"""What either end of an edge can be. A causal model, or one with Dream's shift, predicts the
answer's first token at the prompt's last position, which then is one of `answer` as well."""
EDGES = (
    ("answer", "subject"),
    ("answer", "prompt"),
    ("answer", "last"),
    ("answer", "masks"),
    ("answer", "answer"),
    ("prompt", "subject"),
    ("last", "subject"),
    ("masks", "subject"),
    ("others", "subject"),
)
UNUSED = (
    *("at", "parts", "window", "windows", "together", "cells", "metric"),
    *("mode", "run", "source", "severed"),
)
"""Settings of a trace that mean nothing here."""


@dataclass(frozen=True, repr=False)
class KnockoutGrid:
    """The answer's log-probabilities with edges cut, and what they stand between.

    K counts the answer and, where one was given, its foil; A counts the answer's positions.
    """

    edges: tuple[str, ...]
    windows: tuple[Window, ...]
    """Layers [a, b) in which the edges are cut."""
    pairs: tuple[float, ...]
    """How many pairs of rows each edge cuts in a layer, mean over layers and states."""
    logp: Float[Tensor, "edge window K A"]
    clean_logp: Float[Tensor, "1 K A"]
    corrupted_logp: Float[Tensor, "S K A"]
    """With the subject hidden and nothing cut."""
    joint: str
    corruption: str
    step: int | None = None

    def __repr__(self) -> str:
        return (
            f"KnockoutGrid({len(self.edges)} edges × {len(self.windows)} windows of layers; "
            f"log p per token {self.clean_value():.3g} clean, {self.corrupted_value():.3g} with "
            f"the subject hidden by {self.corruption})"
        )

    def values(
        self, metric: str | Metric = "logp_per_token", which: int = 0
    ) -> Float[Tensor, "edge window"]:
        """The metric with each edge cut in each window, in float64; `which` 1 reads the foil."""
        return self._score(self.logp, metric, which)

    def clean_value(self, metric: str | Metric = "logp_per_token", which: int = 0) -> float:
        """The metric with nothing cut."""
        return float(self._score(self.clean_logp, metric, which).mean())

    def corrupted_value(self, metric: str | Metric = "logp_per_token", which: int = 0) -> float:
        """The metric with the subject hidden, mean over noise samples."""
        return float(self._score(self.corrupted_logp, metric, which).mean())

    def effects(
        self, metric: str | Metric = "logp_per_token", which: int = 0
    ) -> Float[Tensor, "edge window"]:
        """What each cut takes away."""
        return self.clean_value(metric, which) - self.values(metric, which)

    def _score(self, logp: Tensor, metric: str | Metric, which: int) -> Tensor:
        return score_cells(metric, logp, self.clean_logp, self.corrupted_logp, which)


@list_settings(Tracing, UNUSED)
@torch.inference_mode()
@check_arguments(leave_out=("fact", "edges"), window=(1, LARGEST), memory=(1, LARGEST))
def cut_edges(
    model: Model,
    fact: Fact | FactTexts | CleanRun,
    settings: Tracing | None = None,
    *,
    edges: Sequence[Any] = EDGES,
    window: int = 1,
    layers: Sequence[Window] | None = None,
    step: str | int = "first",
    foil: Mapping[int, int] | None = None,
    memory: int | None = None,
    **changes: Any,
) -> KnockoutGrid:
    """The answer's probability when positions cannot attend to others, for each window of layers.

    The answer is scored as in `unmask.trace_steps`, and with the subject hidden for comparison.
    With guidance, edges are cut in the pass that sees the prompt.

    Args:
        model: Masked or causal.
        fact: A fact or its (subject, object, prompt), or a clean generation that was kept.
        settings: All of the settings below as one object; those about what is restored are not
            used. By default answers are scored by the chain rule.
        edges: Pairs (who attends, to whom) of roles (`unmask.tracing.knockout.ROWS`), also written
            "answer:subject", or boolean matrices over the positions, True where the position of
            the first axis cannot attend to that of the second.
        window: How many layers are cut together, around each layer.
        layers: Windows [a, b) of one's own instead.
        step: The denoising step whose state is asked: first, t1, t2 or a number.
        foil: Another answer, by position, for metrics that need one.
        memory: Bytes to use beside the weights.
        changes: Single settings by name, which come before those of `settings`.

    Keyword Args:
        {settings}

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> cut = unmask.cut_edges(model, fact, edges=[("answer", "subject")], any_answer=True)
    >>> cut.effects("p").shape
    torch.Size([1, 6])
    """
    settings = adjust(
        cut_edges, Tracing, BY_CHAIN if settings is None else settings, changes, UNUSED
    )
    clean = fact if isinstance(fact, CleanRun) else generate(model, as_fact(fact), settings)
    number = clean.find_step(step)
    windows = _check_windows(layers, window, model.net.config.layers)
    with model.net.taps.in_step(number):
        question = ask_step(clean, number, settings, foil)
        return replace(cut_state(question, edges, windows, memory), step=number)


def ask_step(
    clean: CleanRun, step: int, settings: Tracing, foil: Mapping[int, int] | None = None
) -> Question:
    """What is asked of the state of a step; a foil only where something is still asked for."""
    state, answer = find_state(clean, step, settings)
    check_foil(clean.model, foil, clean.answer)
    foil = {at: token for at, token in (foil or {}).items() if at in answer} or None
    return ask(clean.model, state, clean.subject, answer, settings, clean.prompt_length, foil)


def cut_state(
    question: Question, edges: Sequence[Any], windows: Sequence[Window], memory: int | None = None
) -> KnockoutGrid:
    """The knock-out grid of one state, whatever it comes from."""
    model, settings, names = question.model, question.settings, name_edges(edges)
    factors = reveal(question) if asks_whole(model, settings) else [question]
    runs, pairs = [], torch.zeros(len(names))
    for factor in factors:
        cuts = make_cuts(factor, tuple(question.answer), edges)
        *logp, could_read = _run(factor, cuts, windows, memory)
        runs.append(logp)
        pairs += could_read / len(factors)
    cut, clean, corrupted = (
        question.blank(torch.cat(each, -1).cpu()) for each in zip(*runs, strict=True)
    )
    return KnockoutGrid(
        edges=names,
        windows=tuple(windows),
        pairs=tuple(pairs.tolist()),
        logp=cut,
        clean_logp=clean,
        corrupted_logp=corrupted,
        joint=name_joint(model, settings),
        corruption=question.corruption,
    )


def name_edges(edges: Sequence[Any]) -> tuple[str, ...]:
    """A name for each edge, "reads:is read"; matrices are numbered."""
    if isinstance(edges, str | Tensor) or not isinstance(edges, Sequence):
        raise UserError(
            f"the edges are a {type(edges).__name__}: expected a list, such as "
            "[('answer', 'subject'), ('masks', 'subject')]."
        )
    names = [
        f"matrix {i}" if isinstance(edge, Tensor) else ":".join(_split_edge(edge))
        for i, edge in enumerate(edges, start=1)
    ]
    if not names or len(set(names)) < len(names):
        raise UserError(f"the edges are {', '.join(names) or 'none'}: expected some, each once.")
    return tuple(names)


def _split_edge(edge: Any) -> tuple[str, str]:
    ends = tuple(edge.split(":")) if isinstance(edge, str) else edge
    if not (isinstance(ends, tuple | list) and len(ends) == 2):
        raise UserError(
            f"the edge {edge!r:.60} is not known: expected a pair of roles such as "
            "('answer', 'subject') or 'answer:subject', or a boolean matrix over the positions."
        )
    for end in ends:
        if end not in ROWS:
            raise UserError(f"the edge {edge!r:.60} names the role {end!r}: {suggest(end, ROWS)}")
    if tuple(ends) == ("others", "others"):
        raise UserError(
            "the edge ('others', 'others') has no other end: expected a role such as 'subject' at "
            "one of its ends."
        )
    return ends[0], ends[1]


def find_rows(question: Question, answer: Sequence[int]) -> dict[str, Bool[Tensor, "L"]]:
    """The rows of each role in the state of a question; `answer` are all positions of the answer.

    Those of them that are revealed already, by the chain rule, are written.
    """
    model, length, device = question.model, question.length, question.clean.device
    tokens, at = question.clean[0, :length], torch.arange(length, device=device)
    is_mask = tokens == (-1 if model.mask_id is None else model.mask_id)
    is_open = [
        position in question.answer or (model.paradigm.fills_masks and bool(is_mask[position]))
        for position in answer
    ]
    is_read = torch.zeros(length, dtype=torch.bool, device=device)
    for position, still in zip(answer, is_open, strict=True):
        if still:
            is_read[model.row_of(position)] = True
    is_subject = (at >= question.subject[0]) & (at < question.subject[1])
    is_last, is_after = at == question.prompt_length - 1, at >= question.prompt_length
    rest = ~(is_subject | is_last | is_read)
    return {
        "subject": is_subject,
        "prompt": rest & ~is_after,
        "last": is_last,
        "answer": is_read,
        "written": rest & is_after & ~is_mask,
        "masks": rest & is_after & is_mask,
    }


def make_cuts(
    question: Question, answer: Sequence[int], edges: Sequence[Any]
) -> Bool[Tensor, "E L L"]:
    """Which rows cannot read which, edge by edge."""
    rows, length, cuts = find_rows(question, answer), question.length, []
    for edge in edges:
        if isinstance(edge, Tensor):
            size = question.clean.shape[1]
            if edge.dtype != torch.bool or edge.shape != (size, size):
                raise UserError(
                    f"a matrix of edges has shape {tuple(edge.shape)} and dtype {edge.dtype}: "
                    f"expected torch.bool and ({size}, {size}), the positions of the state."
                )
            cuts.append(edge[:length, :length].to(question.clean.device))
            continue
        reads, is_read = _split_edge(edge)
        one = ~rows[is_read] if reads == "others" else rows[reads]
        other = ~rows[reads] if is_read == "others" else rows[is_read]
        cuts.append((one[:, None] & other).fill_diagonal_(False))
    return torch.stack(cuts)


def _check_windows(windows: Sequence[Window] | None, width: int, layers: int) -> tuple[Window, ...]:
    if windows is None:
        return tuple(window_of(layer, width, layers) for layer in range(layers))
    for window in windows:
        if len(window) != 2 or not 0 <= window[0] < window[1] <= layers:
            raise UserError(
                f"the window {window} is not one of layers [a, b) with 0 ≤ a < b ≤ {layers}."
            )
    return tuple((int(start), int(stop)) for start, stop in windows)


def _run(
    question: Question, cuts: Bool[Tensor, "E L L"], windows: Sequence[Window], memory: int | None
) -> tuple[
    Float[Tensor, "E W K A"], Float[Tensor, "1 K A"], Float[Tensor, "S K A"], Float[Tensor, "E"]
]:
    """log p of one state: with each edge cut in each window, clean, and with the subject hidden;
    and how many pairs of rows each edge cuts in a layer that could be read."""
    # 1. One batch [1 + S, L, D]: the clean run, and those whose subject is hidden.
    net, reader, config = question.model.net, question.make_reader(), question.model.net.config
    embedded = torch.cat(question.embed())
    record = record_run(net, embedded, torch.cat(question.tokens))
    streams = [x[:1] for x in record.entering]
    logp = reader.take(slice(1, None)).read_stream(record.entering[-1][1:])
    reader = reader.take(slice(0, 1))
    clean = reader.read_stream(streams[-1])
    sees = list(_list_masks(question, embedded))
    for layer, mask in enumerate(sees):
        if not bool((mask & ~cuts).any(-1).all()):
            raise UserError(
                f"a matrix of edges leaves a position with nothing to attend to in layer {layer}: "
                "let every position attend to itself at least."
            )
    # 2. Every cell begins as the clean run. One that cuts nothing which could be read is it, to the
    #    last bit; the others are run from the layer on in which their window begins.
    grid = clean[0].expand(len(cuts), len(windows), *clean.shape[1:]).clone()
    pairs = torch.stack([(mask & cuts).sum((1, 2)) for mask in sees]).cpu()
    cells: dict[CutCell, None] = {}
    for start, stop in sorted(windows):
        for edge in range(len(cuts)):
            if pairs[start:stop, edge].any():
                cells[edge, (start, stop)] = None
    # 3. As many as fit into memory at once; those that begin later enter the batch when they do.
    active, dense = count_batch_bytes(config, embedded.element_size())
    length = embedded.shape[1]
    row_bytes = (active + dense) * length + (1 + 4 * config.heads) * length**2
    most = max(1, (memory or DEFAULT_MEMORY[embedded.device.type]) // row_bytes)
    todo = list(cells)
    while todo:
        chunk = todo[:most]
        try:
            ends = run_cells(question, chunk, cuts, sees, streams, reader.rows)
            sample = torch.zeros(len(chunk), dtype=torch.long, device=ends.device)
            read = reader.read(ends, sample)
        except RuntimeError as error:
            if not ran_out_of_memory(error) or len(chunk) == 1:
                raise
            most = len(chunk) // 2
            continue
        for (edge, window), value in zip(chunk, read, strict=True):
            for column, other in enumerate(windows):
                if other == window:
                    grid[edge, column] = value
        todo = todo[len(chunk) :]
    return grid, clean, logp, pairs.float().mean(0)


def _list_masks(question: Question, x: Float[Tensor, "B L D"]) -> Iterator[Bool[Tensor, "L L"]]:
    """What each row can read in each layer."""
    net, length = question.model.net, x.shape[1]
    whole = net.view(x[:1])
    everything = torch.ones(length, length, dtype=torch.bool, device=x.device)
    for layer in range(net.config.layers):
        view = whole.of(layer)
        if view.mask is not None:
            yield view.mask & everything
        else:
            yield everything.tril() if view.is_causal else everything
