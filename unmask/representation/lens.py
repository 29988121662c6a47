"""The logit lens: what the stream after each layer would say at the positions of the object.

For a masked model at several moments of denoising: the object is asked while a share of its tokens
is already shown. A causal model is given the tokens before each, and has one moment.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from unmask.data.facts import Fact
from unmask.evaluation.chain import log_softmax
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.representation.settings import Extraction
from unmask.representation.states import Case, lay_out_case, stack_rows
from unmask.representation.values import group_alike


def look_through(
    model: Model,
    facts: Sequence[Fact],
    steps: int = 4,
    length: int | None = None,
    seed: int = 0,
) -> Iterator[list[dict[str, Any]]]:
    """For each fact, a row for each layer and moment: log p, rank and hits of its hidden tokens.

    At step s of `steps` the share (s - 1) / steps of the object is shown, seeded. The last layer's
    row is what the model itself says.
    """
    count = max(1, steps) if model.paradigm.has_steps else 1
    shares = tuple(step / count for step in range(count))
    settings = Extraction(revealed=shares, length=length, seed=seed)
    cases = [lay_out_case(model, fact, ("",), settings) for fact in facts]
    most = max(case.num_targets for case in cases)
    each = count * count_row_bytes(model, max(case.length for case in cases), most)
    rows: dict[int, list[dict[str, Any]]] = {}
    for group in group_alike(model, cases):
        batches = map_batches(
            group, fit_rows(model, each), lambda batch: _look(model, [cases[i] for i in batch])
        )
        for numbers, looked in batches:
            rows |= zip(numbers, looked, strict=True)
    return (rows[i] for i in range(len(cases)))


@torch.inference_mode()
def _look(model: Model, cases: Sequence[Case]) -> list[list[dict[str, Any]]]:
    net, moments = model.net, len(cases[0].rows)
    rows = stack_rows([row for case in cases for row in case.rows], model.device)
    positions = torch.arange(rows.reads.shape[1], device=model.device)
    is_asked = positions < rows.count[:, None]
    looked: list[list[dict[str, Any]]] = [[] for _ in cases]
    x = net.embed(rows.tokens)
    for layer in range(net.config.layers):
        x = net.run_layers(x, layer, layer + 1)
        logp = log_softmax(model, net.unembed(x, rows.reads))
        target_logp = logp.gather(-1, rows.targets[..., None])
        rank = 1 + (logp > target_logp).sum(-1)
        means = zip(
            _average(target_logp[..., 0], is_asked),
            _average(rank.double(), is_asked),
            _average((rank == 1).double(), is_asked),
            strict=True,
        )
        for i, (mean_logp, mean_rank, hits) in enumerate(means):
            looked[i // moments].append(
                {"layer": layer, "step": i % moments + 1, "steps": moments}
                | {"logp": mean_logp, "rank": mean_rank, "hit": hits}
            )
    return looked


def _average(values: torch.Tensor, is_asked: torch.Tensor) -> list[float]:
    return (torch.where(is_asked, values, 0.0).sum(-1) / is_asked.sum(-1)).tolist()
