"""Where an edit acts, and how alike both directions of a fact are before any edit.

How much of an edit acts at a position is known in closed form (`Edit.shares`). It is read in states
whose answer is given up to some token, and in those of the edited model's own texts: at the last
token of the subject, at the masks, and at the other words.

Whether the reverse follows may depend on how alike a network's states of both directions are. Two
measures of that, one number per fact, without an edit: how well a probe that was fitted to the
states of one direction tells the fact in the other (log-odds, in phrasings that it never saw), and
the cosine of what the MLP finds for the edited subject with what it gives where that subject is
asked for, centred over facts, minus its mean over other facts' (as `unmask symmetry` has it).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.data.corpus import Corpus
from unmask.data.facts import Direction, Fact, gather_prompts
from unmask.editing.edit import Edit
from unmask.editing.editor import read_streams
from unmask.editing.outcomes import Examination, Reply
from unmask.editing.requests import OTHER, EditQuestion
from unmask.editing.rows import RowEdits
from unmask.net.model import Model
from unmask.representation.extraction import find_groups
from unmask.representation.likeness import compare_cosine, prepare_directions
from unmask.representation.prompts import lay_out_case
from unmask.representation.readout import can_probe, hold_out
from unmask.representation.settings import Extraction

PHRASINGS = 6
"""Phrasings of a fact in each direction that probes are fitted to and tested on."""
LEAST_FACTS = 3
"""To centre vectors over facts."""


def read_shares(
    examination: Examination, edits: Sequence[tuple[int, Edit]], replies: Sequence[Sequence[Reply]]
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """For each edit and question a row for each state: how much of the edit acts, and where.

    Each with the places of the edit and of the question. Given states show none of the right
    answer, half and all of it; own states are those of the edited model's text.
    """
    wanted = []
    for at, (number, _) in enumerate(edits):
        for place, question in enumerate(examination.requests[number].questions):
            for shown, state in _list_given(examination, question):
                wanted.append((at, place, {"states": "given", "step": shown}, state))
            states = replies[at][place].states
            for step, state in enumerate([] if states is None else states.tolist()):
                wanted.append((at, place, {"states": "own", "step": step}, state))
    tokens = torch.tensor([state for *_, state in wanted])
    shares = _read_all(examination, edits, tokens, [at for at, *_ in wanted])
    for (at, place, row, _), state, share in zip(wanted, tokens, shares, strict=True):
        question = examination.requests[edits[at][0]].questions[place]
        at_end, at_masks, at_words = _average(examination, question, state, share, row)
        yield (
            at,
            place,
            row
            | {"role": question.role, "share": at_end}
            | {
                "share_masks": at_masks,
                "share_words": at_words,
                "tokens": len(examination.cut(examination.encode(question))[1]),
            },
        )


def _list_given(
    examination: Examination, question: EditQuestion
) -> Iterator[tuple[int, list[int]]]:
    """A question's states with none, half and all of its right answer, and how much is shown."""
    prompt, answer = examination.cut(examination.encode(question))
    model = examination.model
    # A causal network does not see what fills the canvas.
    fill = model.mask_id if model.paradigm.sees_later else prompt[-1]
    assert fill is not None
    for shown in dict.fromkeys((0, len(answer) // 2, len(answer))):
        text = prompt + answer[:shown]
        yield shown, text + [fill] * (examination.length - len(text))


def _read_all(
    examination: Examination,
    edits: Sequence[tuple[int, Edit]],
    tokens: Tensor,
    owners: Sequence[int],
) -> Tensor:
    """The share at every position of every state, of the edit that owns it."""
    if examination.is_together:
        together = RowEdits(examination.model, [edit for _, edit in edits])
        return together.shares(tokens, owners)
    owner, parts = torch.tensor(owners), []  # states come edit by edit
    for at, (_, edit) in enumerate(edits):
        shares = edit.shares(examination.model, tokens[owner == at])
        parts.append(shares[edit.layers[-1]].sum(-1))
    return torch.cat(parts)


def _average(
    examination: Examination,
    question: EditQuestion,
    state: Tensor,
    share: Tensor,
    row: Mapping[str, Any],
) -> tuple[float, float | None, float]:
    """The share at the end of the subject, and its mean size at masks and at other words."""
    model, encoded = examination.model, examination.encode(question)
    end = encoded.subject[1] - 1
    positions = torch.arange(len(state))
    is_mask = state.eq(model.require_mask() if model.paradigm.sees_later else -1)
    # What fills a causal network's canvas is no part of its text.
    is_causal = not model.paradigm.sees_later
    extent = encoded.prompt_length + row["step"] if is_causal else len(state)
    is_word = ~is_mask & (positions != end) & (positions < extent)
    at_masks = float(share[is_mask].abs().mean()) if bool(is_mask.any()) else None
    return float(share[end]), at_masks, float(share[is_word].abs().mean())


def compare_directions(examination: Examination, layer: int) -> list[float | None]:
    """For each request, how alike its subject's key and the value in reverse are, by the layer.

    The key goes through the down projection, as `unmask symmetry` takes it; facts that are edited
    the same way are compared with each other. None where there is no reverse question, or where
    facts are too few to centre over.
    """
    cosines: list[float | None] = [None] * len(examination.requests)
    reverse: dict[Direction, dict[int, EditQuestion]] = {}
    for number, request in enumerate(examination.requests):
        for question in request.questions:
            if question.role == "reverse old":
                reverse.setdefault(request.fact.direction, {})[number] = question
    for back in reverse.values():
        if len(back) < LEAST_FACTS:
            continue
        forth = [examination.requests[number].questions[0] for number in back]
        given = _read_values(examination, forth, layer)
        in_reverse = _read_values(examination, list(back.values()), layer)
        each = compare_cosine(*prepare_directions(given, in_reverse)).per_fact
        assert each is not None
        for number, value in zip(back, each.tolist(), strict=True):
            cosines[number] = value
    return cosines


@torch.no_grad()
def _read_values(
    examination: Examination, questions: Sequence[EditQuestion], layer: int
) -> np.ndarray:
    """What the layer's MLP gives at the end of each question's subject."""
    rows = torch.tensor([next(_list_given(examination, each))[1] for each in questions])
    net, site = examination.model.net, f"layers.{layer}.mlp_out"
    with net.capture(site) as taken:
        net.run_layers(net.embed(rows.to(examination.model.device)), 0, layer + 1)
    ends = [examination.encode(each).subject[1] - 1 for each in questions]
    return taken[site][range(len(rows)), ends].double().cpu().numpy()


def list_prompts(corpus: Corpus, groups: Sequence[str], facts: Sequence[str]) -> list[Fact]:
    """The first phrasings of some facts in each direction, for `probe_directions`."""
    splits = (split for own in find_groups(corpus, groups).values() for split in own)
    prompts = gather_prompts(x for split in splits for x in corpus[split] if x.fact_id in facts)
    return [fact for same in prompts.values() for fact in same[:PHRASINGS]]


def probe_directions(
    model: Model, prompts: Sequence[Fact], layer: int, length: int | None = None
) -> dict[tuple[str, str], float]:
    """By fact and direction: the log-odds that a probe gives to the fact in the other direction.

    It reads the stream that leaves the layer at the last subject token, is fitted to one direction
    and asked in the other one, in phrasings that are held out. Nothing where facts are too few.
    """
    from sklearn.linear_model import LogisticRegression

    ways = {fact.direction for fact in prompts}
    if len(ways) < 2 or not can_probe(prompts):
        return {}
    # 1. The stream at each prompt's last subject token [N, D]; some phrasings are held out.
    cases = [lay_out_case(model, fact, ("",), Extraction(length=length)) for fact in prompts]
    streams = read_streams(model, cases, layer).numpy()
    labels = np.array([fact.fact_id for fact in prompts])
    directions = np.array([fact.direction for fact in prompts])
    held_out = hold_out(prompts)
    is_out = np.array([fact.phrasing in held_out for fact in prompts])
    # 2. Fitted to one direction, asked in the other one, both ways round.
    log_odds: dict[tuple[str, str], list[float]] = {}
    for way in sorted(ways):
        fitted = ~is_out & (directions == way)
        tested = is_out & (directions == OTHER[way])
        spread = streams[fitted].std(0) + 1e-6
        # Each direction is centred by its own mean: what it adds to all facts is no clue.
        train, test = (
            (streams[some] - streams[some].mean(0)) / spread for some in (fitted, tested)
        )
        probe = LogisticRegression(C=streams.shape[1] ** -0.5, max_iter=1000)
        logp = probe.fit(train, labels[fitted]).predict_log_proba(test)
        # 3. log p - log(1 - p) of each tested prompt's own fact.
        column = {label: i for i, label in enumerate(probe.classes_)}
        for row, label in zip(logp, labels[tested], strict=True):
            if label in column:
                rest = np.log(-np.expm1(min(row[column[label]], -1e-12)))
                log_odds.setdefault((str(label), way), []).append(row[column[label]] - rest)
    return {key: float(np.mean(values)) for key, values in log_odds.items()}
