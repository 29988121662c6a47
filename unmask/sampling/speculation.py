"""Self-speculation: the diffusion reading of a network drafts, its causal reading verifies.

Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192) with one network in both parts. All
drafts of a round come from one pass, each from its own distribution given the text before them, so
that the texts are distributed exactly as the causal reading's own.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.sampling.autoregressive import begin_rows, check_numbers, forbid_mask
from unmask.sampling.state import find_entropy
from unmask.sampling.token_sampler import TokenSampler, invert
from unmask.sampling.trajectory import StateCallback, Trajectory, TrajectoryRecord


@torch.inference_mode()
def speculate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    length: int | Sequence[int] | None,
    drafts: int,
    sampler: TokenSampler,
    streams: RowStreams,
    forbidden: Int[Tensor, "n"] | None = None,
    keep_states: bool = True,
    watch: StateCallback | None = None,
) -> Trajectory:
    """What `decode_causal` draws from, written `drafts` + 1 tokens at a time at the most.

    A step is a round of two passes over whole rows: the diffusion reading sees masks up to each
    row's limit and proposes the next tokens; the causal reading says which of them stay, and draws
    one more.
    """
    drafter = model.drafter
    mask_id, forbidden = drafter.require_mask(), forbid_mask(model, forbidden)
    end_id = None if model.tokenizer is None else model.tokenizer.end_id
    # 1. A canvas [B, L]: every row begins with its prompt and may grow to its own limit.
    canvas, counts, limits = begin_rows(model, prompts, length)
    positions = torch.arange(canvas.shape[1], device=canvas.device)
    real, going = positions < limits[:, None], counts < limits
    record = TrajectoryRecord(model, canvas, real, counts, keep_states, watch)
    ahead = torch.arange(drafts + 1, device=canvas.device)
    shown = None if bool(real.all()) else real
    while bool(going.any()):
        step = record.step + 1
        # 2. Where the round may write [B, K + 1], and where that is read; nothing past the limit.
        places = counts[:, None] + ahead
        inside = places < limits[:, None]
        at = torch.minimum(places, limits[:, None] - 1)
        # 3. Drafts [B, K] and the distributions that they come from [B, K, V].
        masked = torch.where(positions >= counts[:, None], mask_id, record.tokens)
        # An open block begins with the last token that was written.
        behind = positions - counts[:, None]
        inside_block = (behind >= -1) & (behind < drafts)
        with drafter.net.taps.in_step(step):
            logits = drafter.logits(masked, shown, at[:, :-1], inside=inside_block)
        proposed = sampler.sharpen(find_logp(logits, forbidden))
        drafted = invert(proposed, streams.uniform(drafts))
        # 4. What the causal reading says there [B, K + 1, V], the drafts standing before it.
        with_drafts = _put(drafted, places[:, :-1], record.tokens)
        with model.net.taps.in_step(step):
            logp = find_logp(model.net(with_drafts, at=at - 1), forbidden)
        own = sampler.sharpen(logp)
        # 5. The drafts up to the first that is refused stay, and another token follows them.
        stays = accept(own[:, :-1], proposed, drafted, streams.uniform(drafts)) & inside[:, :-1]
        kept = stays.long().cumprod(-1).sum(-1)
        last = draw_rest(own, proposed, kept, streams.uniform(1)[:, 0])
        tokens = F.pad(drafted, (0, 1)).scatter(1, kept[:, None], last[:, None])
        # 6. They are written, up to an end token, in the rows that still go on.
        new = (ahead <= kept[:, None]) & inside & going[:, None]
        if end_id is not None:
            is_end = new & (tokens == end_id)
            new = new & (is_end.cumsum(-1) - is_end.long() == 0)
            going = going & ~is_end.any(-1)
        confidence = logp.gather(-1, tokens[..., None])[..., 0].exp()
        values = (tokens, confidence, find_entropy(logp))
        chosen = _put(new, places, torch.zeros_like(real))
        record.write(chosen, *(_put(x, places, x.new_zeros(canvas.shape)) for x in values))
        check_numbers(record)
        record.end_step(2 * step)
        counts = counts + new.sum(-1)
        going = going & (counts < limits)
    return record.finish(2 * record.step)


def count_per_round(trajectory: Trajectory) -> float:
    """How many tokens a row gained in a round, on average: one would be no gain."""
    written = (trajectory.committed_at > 0).sum()
    return float(written / trajectory.committed_at.amax(-1).sum())


def find_logp(
    logits: Float[Tensor, "*N V"], forbidden: Int[Tensor, "n"] | None
) -> Float[Tensor, "*N V"]:
    """log p in float64; what is never written has probability 0."""
    if forbidden is not None:
        logits = logits.index_fill(-1, forbidden, -torch.inf)
    return logits.log_softmax(-1, dtype=torch.float64)


def accept(
    own: Float[Tensor, "B K V"],
    proposed: Float[Tensor, "B K V"],
    drafted: Int[Tensor, "B K"],
    draws: Float[Tensor, "B K"],
) -> Bool[Tensor, "B K"]:
    """True where a draft stays, with the chance min(1, p / q): p its own, q the proposal's."""
    ratio = (own - proposed).gather(-1, drafted[..., None])[..., 0].exp()
    return draws < ratio


def draw_rest(
    own: Float[Tensor, "B n V"],
    proposed: Float[Tensor, "B K V"],
    kept: Int[Tensor, "B"],
    draws: Float[Tensor, "B"],
) -> Int[Tensor, "B"]:
    """The token after the `kept` drafts: from what p has more than q, after all drafts from p."""
    at = kept[:, None, None].expand(-1, -1, own.shape[-1])
    p = own.exp().gather(1, at)[:, 0]
    q = F.pad(proposed.exp(), (0, 0, 0, 1)).gather(1, at)[:, 0]
    rest = (p - q).clamp(min=0)
    # Where p and q are the same to the last digit, nothing is left to draw from.
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)
    return invert(rest.log(), draws)


def _put(values: Tensor, places: Int[Tensor, "B n"], canvas: Tensor) -> Tensor:
    """The canvas with values at their places; places past its end are left out."""
    length, most = canvas.shape[1], values.shape[1]
    return F.pad(canvas, (0, most)).scatter(1, places, values)[:, :length]
