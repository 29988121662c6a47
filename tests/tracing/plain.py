"""Tracing the plain way: whole forward passes, a row for each cell and sample, patches by name."""

from collections.abc import Callable, Sequence

import torch

from unmask.net.model import Model
from unmask.tracing.corruption import Corrupted

SITES = {"resid": "resid_out", "mlp": "mlp_out", "attn": "attn_out"}
SITES |= {part: part for part in ("attn_z", "attn_q", "attn_k", "attn_v")}


Guided = tuple[float, torch.Tensor]
"""Guidance, and the logits of the pass that sees no prompt."""


def read_each(
    model: Model, tokens: torch.Tensor, answer: dict[int, int], guided: Guided | None = None
) -> torch.Tensor:
    """log p of each token of the answer in each row, by aligned logits of all positions."""
    logits = model.logits(tokens).double()
    if guided is not None:
        guidance, without = guided
        logits = without.double() + (guidance + 1) * (logits - without.double())
    if model.mask_id is not None and model.mask_id < logits.shape[-1]:
        logits[..., model.mask_id] = -torch.inf
    logp = logits.log_softmax(-1)
    late = 1 if model.kind == "causal" else 0
    return torch.stack([logp[:, at - late, token] for at, token in answer.items()], -1)


def read(
    model: Model, tokens: torch.Tensor, answer: dict[int, int], guided: Guided | None = None
) -> torch.Tensor:
    """Joint probability of the answer in each row."""
    return read_each(model, tokens, answer, guided).sum(-1).exp()


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
    """Scores [place, layer, sample]: for each layer one pass, of S rows for each place."""
    net, layers = model.net, model.net.config.layers
    clean_row = torch.tensor([list(tokens)])
    with net.capture("*") as clean:
        read(model, clean_row, answer)
    clean = {site: x.expand(corrupted.samples, *x.shape[1:]) for site, x in clean.items()}
    with net.patch({"embed": corrupted.embed}), net.capture("*") as bad:
        read(model, corrupted.tokens, answer)
    source, base = (bad, clean) if ablate else (clean, bad)
    rows = clean_row.expand(corrupted.samples, -1) if ablate else corrupted.tokens
    places = [(i,) for i in range(len(tokens))] if places is None else places
    sizes = (len(places), corrupted.samples)

    def embed(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([corrupted.embed(part) for part in x.split(corrupted.samples)])

    def patch(values: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def act(x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            for own, at in zip(x.unflatten(0, sizes), places, strict=True):
                which = (slice(None), list(at), *(() if head is None else (head,)))
                own[which] = values[which]
            return x

        return act

    scores = torch.zeros(len(places), layers, corrupted.samples, dtype=torch.float64)
    for layer in range(layers):
        low = max(0, layer - window // 2)
        high = min(layers, layer + (window + 1) // 2)
        put = {f"layers.{k}.{SITES[part]}": source for k in range(low, high)}
        if severed is not None:
            put |= {f"layers.{k}.{SITES[severed]}": base for k in range(layer + 1, layers)}
        functions = {} if ablate else {"embed": embed}
        functions |= {site: patch(where[site]) for site, where in put.items()}
        with net.patch(functions):
            scores[:, layer] = read(model, rows.repeat(sizes[0], 1), answer, guided).view(sizes)
    return scores
