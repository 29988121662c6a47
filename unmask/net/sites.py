"""Named sites: every activation of the network has a stable name, can be read and replaced.

| site                    | what                                           | shape        |
|-------------------------|------------------------------------------------|--------------|
| `embed`                 | token embeddings, before learned positions      | [B, L, D]    |
| `layers.{i}.resid_in`   | residual stream entering the block              | [B, L, D]    |
| `layers.{i}.attn_q_in`  | per head, the stream that its queries are made of | [B, L, H, D] |
| `layers.{i}.attn_k_in`, `attn_v_in` | likewise keys and values          | [B, L, h, D] |
| `layers.{i}.attn_q`     | queries, turned by their positions              | [B, L, H, d] |
| `layers.{i}.attn_k`     | keys, turned by their positions                 | [B, L, h, d] |
| `layers.{i}.attn_v`     | values                                          | [B, L, h, d] |
| `layers.{i}.attn_scores` | before softmax, in float32; -inf where hidden   | [B, H, L, L] |
| `layers.{i}.attn_pattern` | how much a position (third) takes of another  | [B, H, L, L] |
| `layers.{i}.attn_z`     | per head, mixed values: the out projection's input | [B, L, H, d] |
| `layers.{i}.attn_out`   | attention's addition to the stream              | [B, L, D]    |
| `layers.{i}.mlp_in`     | normalised stream that the MLP reads            | [B, L, D]    |
| `layers.{i}.mlp_key`    | input of the down projection, ROME's k          | [B, L, F]    |
| `layers.{i}.mlp_out`    | MLP's addition to the stream, ROME's v          | [B, L, D]    |
| `layers.{i}.resid_out`  | residual stream leaving the block               | [B, L, D]    |
| `final`                 | normalised stream that the head reads           | [B, n, D]    |
| `logits`                | logits                                          | [B, n, V]    |

n is L, or the number of positions asked for; h is H, or the number of heads of keys and values that
groups of queries share. In a layer of experts F counts all of them: `mlp_key` has a place for each,
zero but for the chosen ones, and so says which these are (`unmask.net.mlp.Experts.split`). The
fused kernel of attention keeps neither scores nor pattern, and all heads read one stream: these
sites are computed only where something waits at them, and used only where a patch changed them.
The inputs of heads are those before the norm. All but scores and pattern have positions second.
`final` and `logits` are as the caller aligned them: raw from the network, moved one position for
Dream's models through `Model.logits`; read at a mask they are [N, D] and [N, V].

A patch or capture is honoured or refused, never ignored. Whatever runs the network whole passes all
sites: `Model.logits`, sampling, scoring, training up to the head. What usually runs it in parts, or
keeps what ran before, runs it whole while something is attached (tracing, knock-out, the search for
values, the exact caches), and takes its usual way again as long as nothing was changed
(`unmask.net.taps.Taps.changed`): a patch that writes back what stands there changes nothing, to the
last bit. The approximate cache runs some positions alone; there a patch sees the others as they
were kept. What cannot honour a patch says so (`unmask.net.taps.Taps.require_none`).

What a patch may ask for is a `PatchContext`. Samplers announce the denoising step whose pass they
run, so that a patch or a capture can be bound to steps; outside a sampler there are none, and one
that was bound to a step that never came is an error. Samplers and scores announce which of the
given items the rows of a pass are about.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Literal

from jaxtyping import Bool, Int
from torch import Tensor

from unmask.base.errors import UserError

PARTS = (
    "resid_in",
    "attn_q_in",
    "attn_k_in",
    "attn_v_in",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_scores",
    "attn_pattern",
    "attn_z",
    "attn_out",
    "mlp_in",
    "mlp_key",
    "mlp_out",
    "resid_out",
)

PAIRED = ("attn_scores", "attn_pattern")
"""Parts whose positions are pairs: who attends (third) and to whom."""
EVERY_STEP: frozenset[int] = frozenset()
"""Stands for every step of a sampler."""

Patch = Callable[..., Tensor]
"""From an activation to the one that replaces it; with an argument named `context`, from both."""
Tap = Callable[[str, Tensor], Tensor]
Steps = int | Collection[int] | Literal["all"]
"""Denoising steps, counted from 1."""


@dataclass(frozen=True)
class PatchContext:
    """Where a patch acts: what its function gets as `context`, if it has an argument of that name.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> def hide(x, context):
    ...     return x.masked_fill(context.open[..., None], 0.0)  # at masks alone
    >>> with model.net.patch({"layers.2.mlp_out": hide}):
    ...     logits = model.logits("We sat down beside[MASK]*3")
    """

    site: str
    step: int | None
    """The denoising step; None outside of samplers."""
    tokens: Int[Tensor, "B L"] | None
    """What the network reads; None where it reads vectors."""
    open: Bool[Tensor, "B L"] | None
    """True where a mask stands; nowhere in a model without masks."""
    rows: tuple[int, ...]
    """Which of the given texts each entry of the activation's first axis is about, counted from 0.
    A guided step has every text twice, the second time without its prompt; of a trace all rows are
    about one text."""


def site_names(layers: int) -> tuple[str, ...]:
    """All sites of a network of that many layers, in the order they fire."""
    inner = (f"layers.{i}.{part}" for i in range(layers) for part in PARTS)
    return ("embed", *inner, "final", "logits")


def parse_steps(steps: Steps | None) -> frozenset[int] | None:
    """The steps that were named; None for all passes, of samplers or not."""
    if steps is None:
        return None
    if steps == "all":
        return EVERY_STEP
    named: list[object] = [steps]
    if isinstance(steps, Collection) and not isinstance(steps, str):
        named = list(steps)
    numbers = [int(step) for step in named if isinstance(step, int | Integral) and int(step) > 0]
    if not named or len(numbers) < len(named):
        raise UserError(
            f"the steps are {steps!r:.60}: expected whole numbers from 1, or 'all' for every step "
            "of a sampler."
        )
    return frozenset(numbers)


def parse_rows(rows: int | Collection[int] | None) -> frozenset[int] | None:
    """The rows that were named; None for all."""
    if rows is None:
        return None
    named: list[object] = list(rows) if isinstance(rows, Collection) else [rows]
    numbers = [int(row) for row in named if isinstance(row, int | Integral) and int(row) >= 0]
    if not named or len(numbers) < len(named):
        raise UserError(
            f"the rows are {rows!r:.60}: expected whole numbers from 0, which of the given texts "
            "the patch is for."
        )
    return frozenset(numbers)


def find_sites(name: str, layers: int) -> list[str]:
    """The sites that a name means; `*` stands for any layer or part."""
    sites = [site for site in site_names(layers) if fnmatchcase(site, name)]
    if not sites:
        raise UserError(
            f"site {name!r} does not exist: this network has embed, "
            f"layers.0 to layers.{layers - 1} with {', '.join(PARTS)}, "
            "final and logits; write for example 'layers.0.mlp_key' or 'layers.*.mlp_key'."
        )
    return sites
