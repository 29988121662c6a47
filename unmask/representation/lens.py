"""The logit lens: what the stream behind each layer would say at the places of the object.

For a masked model at several moments of denoising: the object is asked while a share of its tokens
is already shown. A causal model is given the tokens before each, and has one moment.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from unmask.data.facts import Fact
from unmask.evaluation.batches import count_row_bytes, fit_rows, map_batches
from unmask.evaluation.chain import log_softmax
from unmask.net.model import Model
from unmask.representation.settings import Extraction
from unmask.representation.states import Case, lay_out_case, stack_rows

SCHEMA = "lens/1"


def look_through(
    model: Model,
    facts: Sequence[Fact],
    steps: int = 4,
    length: int | None = None,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """A row for each fact, moment and layer: log p, rank and hits of the object's hidden tokens.

    At step s of `steps` the share (s - 1) / steps of the object is shown, seeded. The last layer's
    row is what the model itself says.
    """
    count = 1 if model.kind == "causal" else max(1, steps)
    shares = tuple(step / count for step in range(count))
    settings = Extraction(revealed=shares, length=length, seed=seed)
    cases = [lay_out_case(model, fact, ("",), settings) for fact in facts]
    most = max(case.num_targets for case in cases)
    each = count * count_row_bytes(model, max(case.length for case in cases), most)
    groups: dict[int, list[Case]] = {}
    for case in cases:
        groups.setdefault(0 if model.kind == "causal" else case.length, []).append(case)
    for group in groups.values():
        rows = max(1, fit_rows(model, each))
        for batch, found in map_batches(group, rows, lambda batch: _look(model, batch)):
            for case, lines in zip(batch, found, strict=True):
                fact = case.fact
                whose = {
                    "fact": fact.fact_id,
                    "direction": fact.direction,
                    "trained": fact.trained,
                    "kind": model.kind,
                }
                yield from (whose | line for line in lines)


@torch.inference_mode()
def _look(model: Model, cases: Sequence[Case]) -> list[list[dict[str, Any]]]:
    net, moments = model.net, len(cases[0].rows)
    rows = stack_rows([row for case in cases for row in case.rows], model.device)
    places = torch.arange(rows.reads.shape[1], device=model.device)
    asked = places < rows.count[:, None]
    found: list[list[dict[str, Any]]] = [[] for _ in cases]
    x = net.embed(rows.tokens)
    for layer in range(net.config.layers):
        x = net.run_layers(x, layer, layer + 1)
        logp = log_softmax(model, net.unembed(x, rows.reads))
        said = logp.gather(-1, rows.targets[..., None])
        rank = 1 + (logp > said).sum(-1)
        numbers = zip(
            _average(said[..., 0], asked),
            _average(rank.double(), asked),
            _average((rank == 1).double(), asked),
            strict=True,
        )
        for i, (mean, mean_rank, hits) in enumerate(numbers):
            found[i // moments].append(
                {"layer": layer, "step": i % moments + 1, "steps": moments}
                | {"logp": mean, "rank": mean_rank, "hit": hits}
            )
    return found


def _average(values: torch.Tensor, asked: torch.Tensor) -> list[float]:
    return (torch.where(asked, values, 0.0).sum(-1) / asked.sum(-1)).tolist()
