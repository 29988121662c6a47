"""Trajectories that other engines drew, read from JSON lines.

A line is one text: `prompt`, as text or token ids; `states`, the canvas before the first step and
after every step, the prompt included, as lists of token ids; and `tokens`, the last state. Other
keys are not read. How sure an engine was is not asked for: confidence and entropy are those that
the model has in each state for what was written there.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.reading import read_json_lines
from unmask.net.model import Model
from unmask.sampling.trajectory import StateCallback, Trajectory, TrajectoryRecord


@check_arguments()
def read_trajectories(
    model: Model, path: str | Path, watch: StateCallback | None = None
) -> Trajectory:
    """The texts of a file of JSON lines as one trajectory, to be shown, saved and traced.

    Each row keeps its own length; one that ended in fewer steps than others stays as it was.
    `unmask.find_clean_run` finds a fact's answer in a row, for `unmask.trace_steps`.

    Args:
        model: A masked model, whose tokens the file is written in.
        path: Lines such as {"prompt": "We sat", "states": [[5, 9, 0, 0], …], "tokens": [5, 9, …]}.
        watch: A function that is called after every step with the trajectory so far.

    >>> import json
    >>> from pathlib import Path
    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> drawn = unmask.sample(model, "We sat down", steps=2, length=6)
    >>> states = drawn.states[:, 0].tolist()
    >>> line = {"prompt": "We sat down", "states": states, "tokens": states[-1]}
    >>> written = Path("drawn.jsonl").write_text(json.dumps(line))
    >>> unmask.read_trajectories(model, "drawn.jsonl").texts == drawn.texts
    True
    """
    if not model.paradigm.fills_masks:
        raise UserError(
            f"{model.name} is a {model.kind} model: trajectories are read for masked models, whose "
            "states say by their masks what is still open."
        )
    rows = [
        _read_row(model, record, f"{path}, line {line}") for line, record in read_json_lines(path)
    ]
    mask = model.require_mask()
    steps, length = max(map(len, rows)), max(row.shape[1] for row in rows)
    states = torch.full((steps, len(rows), length), mask)
    for i, row in enumerate(rows):
        states[: len(row), i, : row.shape[1]] = row
        states[len(row) :, i, : row.shape[1]] = row[-1]
    lengths = torch.tensor([row.shape[1] for row in rows])
    real = torch.arange(length) < lengths[:, None]
    return _replay(model, states.to(model.device), real.to(model.device), watch)


def _read_row(model: Model, record: dict[str, Any], where: str) -> Int[Tensor, "states L"]:
    """The states of one line, all that can be wrong with them checked."""
    if missing := [name for name in ("prompt", "states", "tokens") if name not in record]:
        raise UserError(f"{where} has no {' and no '.join(missing)}: expected all three.")
    states, tokens, prompt = record["states"], record["tokens"], record["prompt"]
    if isinstance(prompt, str):
        prompt = model.encode(prompt).ids
    lists = [prompt, tokens, *(states if isinstance(states, list) else [states])]
    most = model.net.config.vocab_size
    for each in lists:
        if not isinstance(each, list) or not all(
            type(token) is int and 0 <= token < most for token in each
        ):
            raise UserError(
                f"{where} holds {each!r:.60} for a state: expected token ids from 0 to {most - 1}."
            )
    if len(lists) == 2 or not tokens or len({len(each) for each in (tokens, *states)}) > 1:
        raise UserError(
            f"{where} has {len(lists) - 2} states, which are not all as long as its "
            f"{len(tokens)} tokens: expected the whole canvas in each, the prompt included."
        )
    if states[0][: len(prompt)] != prompt:
        raise UserError(
            f"{where} does not begin with its prompt: expected its {len(prompt)} tokens at the "
            "start of every state."
        )
    if states[-1] != tokens:
        states = [*states, tokens]
    return torch.tensor(states)


@torch.inference_mode()
def _replay(
    model: Model,
    states: Int[Tensor, "states B L"],
    real: Bool[Tensor, "B L"],
    watch: StateCallback | None,
) -> Trajectory:
    """When each token was written, and how sure the model is of it in the state before."""
    mask, record = model.require_mask(), TrajectoryRecord(model, states[0], real, watch=watch)
    for calls, (before, after) in enumerate(pairwise(states), start=1):
        changed = (after != before) & real
        written = changed & (after != mask)
        confidence, entropy = record.confidence.clone(), record.entropy.clone()
        if written.any():
            logits = model.logits(before, real, at=written).double()
            if mask < logits.shape[-1]:
                logits[:, mask] = -torch.inf
            logp = logits.log_softmax(-1)
            confidence[written] = logp.gather(1, after[written][:, None])[:, 0].exp()
            entropy[written] = -(logp.exp() * logp.clamp(min=-1e9)).sum(-1)
        record.write(written, after, confidence, entropy)
        record.take_back(changed & ~written, mask)
        record.end_step(calls)
    return record.finish(len(states) - 1)
