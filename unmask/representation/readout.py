"""What can be read off the residual stream after each layer: the logit lens and linear probes.

The lens says what the stream would predict at the positions of the object: for a masked model at
several moments of denoising, while a share of its tokens is already shown. A causal model is given
the tokens before each, and has one moment.

Probes ask whether a line can tell which fact a subject belongs to, in phrasings it never saw. They
read the stream at the last subject token, from the embeddings up, are fitted on some phrasings and
tested on others, within a direction and from one direction to the other: whether the state of a
name says what that of its description says. On a canvas a subject also sees the answer's masks,
which can carry what is predicted there; without masks, or alone, it cannot.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.data.facts import Fact
from unmask.evaluation.chain import log_softmax
from unmask.net.model import Model
from unmask.representation.patched import (
    EMBEDDINGS,
    PatchedPrompt,
    choose_canvas,
    collect_subjects,
    lay_out_prompt,
)
from unmask.representation.prompts import Case, lay_out_case, map_cases, stack_rows
from unmask.representation.settings import Extraction

StateReading = Literal["canvas", "prompt", "subject"]
"""What a subject sees where its state is read: the prompt with the masks after it, the prompt, or
its own tokens. Without masks is the same as with all reading of masks cut."""
HELD_OUT = 3
"""Every third phrasing is held out."""
PENALTY = 1.0


def read_facts_by_layer(
    model: Model, facts: Sequence[Fact], steps: int = 4, length: int | None = None, seed: int = 0
) -> list[list[dict[str, Any]]]:
    """For each fact, a row for each layer and moment: log p, rank and hits of its hidden tokens.

    At step s of `steps` the share (s - 1) / steps of the object is shown, seeded. The last layer's
    row is what the model itself says.
    """
    count = max(1, steps) if model.paradigm.has_steps else 1
    shares = tuple(step / count for step in range(count))
    settings = Extraction(revealed=shares, length=length, seed=seed)
    cases = [lay_out_case(model, fact, ("",), settings) for fact in facts]
    return map_cases(model, cases, partial(_read_lens, model))


@torch.inference_mode()
def _read_lens(model: Model, cases: Sequence[Case]) -> list[list[dict[str, Any]]]:
    moments = len(cases[0].rows)
    rows = stack_rows([row for case in cases for row in case.rows], model.device)
    results: list[list[dict[str, Any]]] = [[] for _ in cases]
    for layer, x in enumerate(run_by_layer(model, rows.tokens)):
        logp = log_softmax(model, model.net.unembed(x, rows.reads))  # [R, A, V]
        target_logp = logp.gather(-1, rows.targets[..., None])
        rank = 1 + (logp > target_logp).sum(-1)
        each = torch.stack((target_logp[..., 0].double(), rank.double(), (rank == 1).double()))
        means = torch.where(rows.is_target, each, 0.0).sum(-1) / rows.num_targets  # [3, R]
        for i, numbers in enumerate(means.T.tolist()):
            named = dict(zip(("logp", "rank", "hit"), numbers, strict=True))
            moment = {"layer": layer, "step": i % moments + 1, "steps": moments}
            results[i // moments].append(moment | named)
    return results


def run_by_layer(model: Model, tokens: Tensor) -> Iterator[Float[Tensor, "R L D"]]:
    """The stream after each layer."""
    x = model.net.embed(tokens)
    for layer in range(model.net.config.layers):
        x = model.net.run_layers(x, layer, layer + 1)
        yield x


def list_readings(model: Model) -> list[StateReading]:
    """The readings that differ: what comes after a prompt, a causal network does not see."""
    return ["canvas", "prompt", "subject"] if model.paradigm.sees_later else ["canvas", "subject"]


def probe(
    model: Model, facts: Sequence[Fact], length: int | None = None, reading: StateReading = "canvas"
) -> Iterator[dict[str, Any]]:
    """A row for each layer, direction fitted, direction tested and tested prompt: the fact it says.

    Tested prompts are in phrasings that no probe was fitted on. Layer -1 are the embeddings.
    """
    if not can_probe(facts):
        raise UserError(
            f"probes need at least 2 facts in {HELD_OUT} phrasings in each direction, every third "
            "of them held out: ask more phrasings, or leave probes out."
        )
    streams = collect_streams(model, facts, length, reading)
    held_out = hold_out(facts)
    is_out = np.array([fact.phrasing in held_out for fact in facts])
    directions = np.array([fact.direction for fact in facts])
    labels = np.array([fact.fact_id for fact in facts])
    ways = sorted({fact.direction for fact in facts})
    for layer, fitted, tested in product(range(streams.shape[1]), ways, ways):
        train, test = ~is_out & (directions == fitted), is_out & (directions == tested)
        predicted = fit_and_predict(streams[train, layer], labels[train], streams[test, layer])
        for i, label in zip(np.flatnonzero(test), predicted, strict=True):
            yield {
                "reading": reading,
                "layer": layer + EMBEDDINGS,
                "fitted": fitted,
                "tested": tested,
                "fact": facts[i].fact_id,
                "phrasing": facts[i].phrasing,
                "predicted": str(label),
            }


def can_probe(facts: Sequence[Fact]) -> bool:
    """Whether every direction has two facts to fit to, and a phrasing that is held out."""
    held_out = hold_out(facts)
    for direction in {fact.direction for fact in facts}:
        prompts = [fact for fact in facts if fact.direction == direction]
        fitted = {fact.fact_id for fact in prompts if fact.phrasing not in held_out}
        if len(fitted) < 2 or all(fact.phrasing not in held_out for fact in prompts):
            return False
    return True


def hold_out(facts: Sequence[Fact]) -> set[int]:
    """The phrasings that probes are tested on."""
    return set(sorted({fact.phrasing for fact in facts})[HELD_OUT - 1 :: HELD_OUT])


def fit_and_predict(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The labels that a ridge classifier, fitted to standardised vectors, gives others.

    The others are centred by their own mean: what a direction or a phrasing adds to all is no clue.
    """
    from sklearn.linear_model import RidgeClassifier

    spread = train.std(0) + 1e-6
    one, other = (train - train.mean(0)) / spread, (test - test.mean(0)) / spread
    return RidgeClassifier(alpha=PENALTY * train.shape[1] ** 0.5).fit(one, labels).predict(other)


def collect_streams(
    model: Model, facts: Sequence[Fact], length: int | None = None, reading: StateReading = "canvas"
) -> Float[np.ndarray, "facts streams D"]:
    """The embeddings, and the stream after every layer, at the last subject token."""
    prompts = [lay_out_prompt(model, fact, [fact]) for fact in facts]
    canvas = choose_canvas(model, prompts, length) if reading == "canvas" else None
    if reading == "subject":
        own = [prompt.tokens[slice(*prompt.subject)] for prompt in prompts]
        prompts = [PatchedPrompt(tokens, (0, len(tokens)), []) for tokens in own]
    layers = range(EMBEDDINGS, model.net.config.layers)
    states = collect_subjects(model, prompts, layers, canvas)
    return torch.stack([each[:, -1] for each in states]).float().cpu().numpy()
