"""What predictions lose where states are replaced by what features, or less, make of them.

A text is noised to a share of masks, the states of its masked positions, of its written ones or of
all are replaced, and its masked tokens are predicted. The least that could stand there is nothing
(zero), or the mean state; controls of equal rank are random directions and the principal ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.seeds import torch_stream
from unmask.dictionaries.activations import ActivationStream
from unmask.dictionaries.dictionary import Dictionary, make_random_dictionary
from unmask.dictionaries.states import join_batches
from unmask.evaluation.chain import log_softmax
from unmask.net.model import Model

Replacement = Callable[[Float[Tensor, "*N D"]], Float[Tensor, "*N D"]]
WHERE = ("masked", "written", "all")
ROWS_AT_ONCE = 32
MOST_STATES = 20_000
"""States that means and principal directions are taken of."""


def collect_states(stream: ActivationStream) -> Float[Tensor, "N D"]:
    """The first states that a stream gives, for means and principal directions."""
    batches, number = [], 0
    for batch in stream:
        batches.append(batch)
        number += len(batch)
        if number >= MOST_STATES:
            break
    return join_batches(batches).x.float()


def list_replacements(
    dictionary: Dictionary, states: Float[Tensor, "N D"], rank: int, seed: int = 0
) -> dict[str, Replacement]:
    """What states may be replaced by, by name; states without any are `clean`."""
    mean = states.mean(0)
    centred = states - mean
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[:rank]  # [K, D]
    random = replace(
        make_random_dictionary(states.shape[1], dictionary.size, rank, seed), b_dec=mean.cpu()
    ).to(states.device)
    # Random directions overlap: what they add up to is scaled to fit the states best.
    made = random.decode(random.encode(states)) - mean
    gain = (made * centred).sum() / made.square().sum().clamp_min(1e-12)
    random = replace(random, w_dec=random.w_dec * gain)
    return {
        "clean": lambda x: x,
        "dictionary": dictionary.reconstruct,
        "random": random.reconstruct,
        "principal": lambda x: ((x - mean) @ directions.T @ directions + mean).to(x.dtype),
        "mean": lambda x: mean.to(x.dtype).expand_as(x),
        "zero": torch.zeros_like,
    }


def score_replacements(
    model: Model,
    site: str,
    dictionary: Dictionary,
    replacements: Mapping[str, Replacement],
    texts: Sequence[tuple[list[int], int]],
    shares: Sequence[float],
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """A row for each text, share of masks, place and replacement: nats, and what is unexplained.

    `texts` are canvases with the number of their own tokens, before the filling.
    """
    places = WHERE if model.paradigm.fills_masks else WHERE[-1:]
    for share in shares if model.paradigm.fills_masks else (0.0,):
        for begin in range(0, len(texts), ROWS_AT_ONCE):
            some = texts[begin : begin + ROWS_AT_ONCE]
            clean = torch.tensor([ids for ids, _ in some], device=model.device)
            own = torch.tensor([count for _, count in some], device=model.device)
            noised, is_read = _mask(model, clean, own, share, (seed, begin))
            for where in places:
                is_open = noised == (-1 if model.mask_id is None else model.mask_id)
                at = {"masked": is_open, "written": ~is_open}.get(where, torch.ones_like(is_open))
                for name, function in replacements.items():
                    scored = _score(model, site, dictionary, function, noised, clean, is_read, at)
                    for i, row in enumerate(scored):
                        about = {"fact": begin + i, "share": share, "where": where}
                        yield about | {"replaced": name} | row


def _mask(
    model: Model,
    clean: Int[Tensor, "R L"],
    own: Int[Tensor, "R"],
    share: float,
    names: tuple[int, int],
) -> tuple[Int[Tensor, "R L"], Bool[Tensor, "R L"]]:
    """Canvases with a share of their positions masked, and which tokens of the texts are predicted.

    Fillings are masked as well, as in training, but are easy to predict and do not count.
    """
    places = torch.arange(clean.shape[1], device=clean.device)
    is_own = places < own[:, None]
    if not model.paradigm.fills_masks:
        return clean, is_own & (places > 0)
    stream = torch_stream(names[0], "share", share, names[1])
    order = torch.rand(clean.shape, generator=stream).argsort(-1).argsort(-1).to(clean.device)
    hidden = order < round(share * clean.shape[1])
    if (kept := model.find_kept(clean)) is not None:
        hidden &= ~kept
    return torch.where(hidden, model.require_mask(), clean), hidden & is_own


@torch.inference_mode()
def _score(
    model: Model,
    site: str,
    dictionary: Dictionary,
    function: Replacement,
    noised: Int[Tensor, "R L"],
    clean: Int[Tensor, "R L"],
    is_read: Bool[Tensor, "R L"],
    at: Bool[Tensor, "R L"],
) -> list[dict[str, Any]]:
    """Sums over each row: nats of the tokens that are read, squares of what states lose."""
    sums: dict[str, Tensor] = {}

    def act(x: Float[Tensor, "R L D"]) -> Float[Tensor, "R L D"]:
        made = torch.where(at[..., None], function(x), x)
        centre = x.float().mean((0, 1))
        sums["lost"] = (made - x).float().square().sum((1, 2))
        sums["spread"] = ((x.float() - centre).square().sum(-1) * at).sum(1)
        sums["firing"] = ((dictionary.encode(x) > 0).sum(-1) * at).sum(1)
        return made

    with model.net.patch({site: act}):
        logp = log_softmax(model, model.logits(noised))  # [R, L, V], row i predicts i, or i + 1
    target = clean
    if model.paradigm.predicts_next:
        logp, target, is_read = logp[:, :-1], clean[:, 1:], is_read[:, 1:]
    nats = -logp.gather(-1, target[..., None])[..., 0]
    sums["nats"] = torch.where(is_read, nats, 0.0).sum(1)
    counts = {"tokens": is_read.sum(1), "positions": at.sum(1)}
    names = [*sums, *counts]
    values = [each.double().tolist() for each in (*sums.values(), *counts.values())]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
