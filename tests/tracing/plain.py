"""Tracing the plain way: one cell at a time, whole forward passes, patches by name."""

from collections.abc import Sequence

import torch

from unmask.net.model import Model
from unmask.tracing.corruption import Corrupted

SITES = {"resid": "resid_out", "mlp": "mlp_out", "attn": "attn_out"}
SITES |= {part: part for part in ("attn_z", "attn_q", "attn_k", "attn_v")}


def embed_patch(corrupted: Corrupted) -> dict:
    return {"embed": corrupted.embed}


Guided = tuple[float, torch.Tensor]
"""Guidance, and the logits of the pass that sees no prompt."""


def read(
    model: Model, tokens: torch.Tensor, answer: dict[int, int], guided: Guided | None = None
) -> torch.Tensor:
    """Joint probability of the answer in each row, by aligned logits of all positions."""
    logits = model.logits(tokens).double()
    if guided is not None:
        guidance, without = guided
        logits = without.double() + (guidance + 1) * (logits - without.double())
    if model.mask_id is not None and model.mask_id < logits.shape[-1]:
        logits[..., model.mask_id] = -torch.inf
    logp = logits.log_softmax(-1)
    late = 1 if model.kind == "causal" else 0
    return sum(logp[:, at - late, token] for at, token in answer.items()).exp()


def trace_plainly(
    model: Model,
    tokens: Sequence[int],
    corrupted: Corrupted,
    answer: dict[int, int],
    part: str,
    window: int = 1,
    places: Sequence[tuple[int, ...]] | None = None,
    ablate: bool = False,
    severed: str | None = None,
    head: int | None = None,
    guided: Guided | None = None,
) -> torch.Tensor:
    """Scores [place, layer, sample]."""
    net, layers = model.net, model.net.config.layers
    clean_row = torch.tensor([list(tokens)])
    with net.capture("*") as clean:
        read(model, clean_row, answer)
    clean = {site: x.expand(corrupted.samples, *x.shape[1:]) for site, x in clean.items()}
    with net.patch(embed_patch(corrupted)), net.capture("*") as bad:
        read(model, corrupted.tokens, answer)
    source, base = (bad, clean) if ablate else (clean, bad)
    rows = clean_row.expand(corrupted.samples, -1) if ablate else corrupted.tokens
    start = {} if ablate else embed_patch(corrupted)
    places = [(i,) for i in range(len(tokens))] if places is None else places
    scores = torch.zeros(len(places), layers, corrupted.samples, dtype=torch.float64)
    for i, at in enumerate(places):
        for layer in range(layers):
            low = max(0, layer - window // 2)
            high = min(layers, layer + (window + 1) // 2)
            put = {f"layers.{k}.{SITES[part]}": source for k in range(low, high)}
            if severed is not None:
                put |= {f"layers.{k}.{SITES[severed]}": base for k in range(layer + 1, layers)}

            def patch(site: str, where: dict, at: tuple[int, ...] = at):
                def act(x: torch.Tensor) -> torch.Tensor:
                    x = x.clone()
                    which = (slice(None), list(at), *(() if head is None else (head,)))
                    x[which] = where[site][which]
                    return x

                return act

            functions = start | {site: patch(site, where) for site, where in put.items()}
            with net.patch(functions):
                scores[i, layer] = read(model, rows, answer, guided)
    return scores
