"""Detectors asked of corpora whose dose is known, and of a model's own texts."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from unmask.base.streams import RowStreams
from unmask.evaluation.signals import find_backwards
from unmask.evaluation.smearing import (
    doubt_length,
    expect_length,
    find_sequence_smear,
    find_token_smear,
    predict_state,
)
from unmask.experiments.transparency.detectors import find_needed, find_revised
from unmask.experiments.transparency.languages import ALIKE, NAMES, KnownCorpus, count_taken
from unmask.net.model import Model
from unmask.sampling.orders import choose_first
from unmask.sampling.state import StepState
from unmask.sampling.texts import sample

EARLY, TOKEN, SEQUENCE, REVISION, NEEDED, *NOISED = NAMES
STEPS = 32
"""Steps in which noise on tokens is undone."""
ScoreRows = list[dict[str, Any]]


def score_corpus(corpus: KnownCorpus, texts: int, seed: int) -> ScoreRows:
    """A row for each question, or text, and detector that is tried on it."""
    asked_of = {EARLY: _score_lengths, REVISION: _score_revision, NEEDED: _score_needed}
    asked_of |= dict.fromkeys(NOISED, _score_noised)
    score = asked_of.get(corpus.phenomenon, _score_smear)
    columns = {"corpus": corpus.name, "dose": corpus.dose, "is_fixing": corpus.is_fixing}
    return [columns | row for row in score(corpus, texts, seed)]


def _lay_out(corpus: KnownCorpus) -> Tensor:
    """The canvas of each question before anything is written."""
    masked = corpus.law.num_tokens
    rows = [[question, *[masked] * (corpus.law.length - 1)] for question in range(corpus.questions)]
    return torch.tensor(rows)


def _score_lengths(corpus: KnownCorpus, texts: int, seed: int) -> Iterator[dict[str, Any]]:
    """How sure the first state is of the length; what it expects, and what came."""
    assert corpus.end is not None
    model, xt = corpus.model, _lay_out(corpus)
    p = predict_state(model, xt)
    sure, expected = 1 - doubt_length(p, corpus.end), expect_length(p, corpus.end)
    copies = -(-texts // corpus.questions)
    prompts = [[question] for question in range(corpus.questions)] * copies
    given: dict[str, Any] = {"plan": "one", "order": "random", "temperature": 1.0}
    drawn = sample(model, prompts, length=corpus.law.length, seed=seed, keep_states=False, **given)
    lengths = (drawn.tokens != corpus.end).sum(-1).tolist()
    for (question,), length in zip(prompts, lengths, strict=True):
        row = {"phenomenon": EARLY, "question": question, "score": float(sure[question])}
        yield row | {"expected": float(expected[question]), "came": float(length)}


def _score_smear(corpus: KnownCorpus, texts: int, seed: int) -> Iterator[dict[str, Any]]:
    """Both kinds of smearing in the first state of each question, which exclude each other."""
    model, xt = corpus.model, _lay_out(corpus)
    p = predict_state(model, xt)
    scores = {TOKEN: find_token_smear(model, xt, p), SEQUENCE: find_sequence_smear(model, xt, p)}
    for name, smear in scores.items():
        is_own = name == corpus.phenomenon
        other = {} if is_own else {"dose": 0.0, "corpus": f"{name}: in {corpus.name}"}
        for question, value in enumerate(smear.amount.tolist()):
            yield {"phenomenon": name, "question": question, "score": value} | other


def _score_revision(corpus: KnownCorpus, texts: int, seed: int) -> Iterator[dict[str, Any]]:
    """Texts of which the sampler takes back so many tokens once, in the middle."""
    places = corpus.law.length - 1
    number = round(corpus.dose * places)
    if ALIKE in corpus.name:
        number = count_taken(1.0, places)

    def take_back(state: StepState, streams: RowStreams) -> Tensor:
        counts = torch.full_like(state.num_open, number if state.step == places // 2 else 0)
        scores = streams.uniform(state.written.shape[1])
        return choose_first(scores, state.written, counts)

    prompts = [[question] for question in range(corpus.questions)]
    given: dict[str, Any] = {"plan": "linear", "steps": places, "order": "random", "seed": seed}
    given |= {"temperature": 1.0, "remask": take_back if number else "none"}
    drawn = sample(corpus.model, prompts, length=corpus.law.length, **given)
    for question, value in enumerate(find_revised(drawn)):
        yield {"phenomenon": REVISION, "question": question, "score": value}


def _score_noised(corpus: KnownCorpus, texts: int, seed: int) -> Iterator[dict[str, Any]]:
    """Texts of a model that steps back through noise which draws tokens anew."""
    prompts = [[question] for question in range(corpus.questions)]
    given: dict[str, Any] = {"steps": STEPS, "seed": seed, "guesses": 1}
    drawn = sample(corpus.model, prompts, length=corpus.law.length, **given)
    for question, value in enumerate(find_revised(drawn)):
        yield {"phenomenon": corpus.phenomenon, "question": question, "score": value}


def _score_needed(corpus: KnownCorpus, texts: int, seed: int) -> Iterator[dict[str, Any]]:
    """Texts written without chance, corrected where a token no longer fits."""
    model, prompts = corpus.model, [[question] for question in range(corpus.questions)]
    given: dict[str, Any] = {"plan": "one", "order": "confidence", "length": corpus.law.length}
    given |= {"temperature": 0.0, "corrector": "margin=1"}
    drawn = sample(model, prompts, **given)
    for question, value in enumerate(find_needed(model, prompts, drawn, **given)):
        yield {"phenomenon": NEEDED, "question": question, "score": value}


@torch.inference_mode()
def watch_phenomena(
    model: Model, prompts: Sequence[Sequence[int]], shown: int, **sampling: Any
) -> Iterator[dict[str, Any]]:
    """A row for each text and some of its states: what is expected, what is smeared.

    `shown` is the number of states that are looked at, evenly from the first on. The order of
    writing and the share of places that were revised are the whole text's, in each of its rows.
    """
    end, mask_id = model.require_tokenizer().end_id, model.require_mask()
    ignored = [token for token in (end, mask_id) if token < model.net.config.logit_rows]
    for i, prompt in enumerate(prompts):
        drawn = sample(model, [prompt], keep_states=True, **sampling)
        assert drawn.states is not None
        steps = drawn.num_steps
        chosen = sorted({round(k * steps / shown) for k in range(shown)})
        xt = drawn.states[chosen, 0]
        p = predict_state(model, xt)
        at = drawn.committed_at[0, : drawn.find_end(0)]
        text = {
            "text": i,
            "steps": steps,
            "length": float((drawn.tokens[0] != end).sum()),
            "backwards": find_backwards(at[at > 0]),
            "revised": find_revised(drawn)[0],
        }
        values = {
            "expected": expect_length(p, end),
            "doubt": doubt_length(p, end),
            "token_smear": find_token_smear(model, xt, p, ignored).amount,
            "sequence_smear": find_sequence_smear(model, xt, p).amount,
        }
        for k, step in enumerate(chosen):
            row = {name: float(each[k]) for name, each in values.items()}
            error = abs(row["expected"] - text["length"])
            yield text | {"step": step, "done": step / steps, "error": error} | row
