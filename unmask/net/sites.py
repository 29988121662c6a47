"""Named sites: every activation of the network has a stable name, can be read and replaced.

| site                    | what                                           | shape        |
|-------------------------|------------------------------------------------|--------------|
| `embed`                 | token embeddings, before learned positions      | [B, L, D]    |
| `layers.{i}.resid_in`   | residual stream entering the block              | [B, L, D]    |
| `layers.{i}.attn_q`     | queries, turned by their positions              | [B, L, H, d] |
| `layers.{i}.attn_k`     | keys, turned by their positions                 | [B, L, h, d] |
| `layers.{i}.attn_v`     | values                                          | [B, L, h, d] |
| `layers.{i}.attn_pattern` | how much a position (third) takes of another  | [B, H, L, L] |
| `layers.{i}.attn_z`     | per head, mixed values before the out projection | [B, L, H, d] |
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
fused kernel of attention keeps no pattern: it is computed only where something waits at it, and
used for the mixture only where a patch changed it. All but the pattern have positions second.
`final` and `logits` are as the caller aligned them: raw from the network, moved one position for
Dream's models through `Model.logits`.

A patch or capture is honoured or refused, never ignored. Whatever runs the network whole passes all
sites: `Model.logits`, sampling, scoring, training up to the head. What runs it in parts, or leaves
out positions and rows that ran before, looks at `Taps.attached`: it runs the network whole while
something is attached (the exact cache of sampling, autoregressive decoding), or calls
`Taps.require_none` (tracing, keys and values, the approximate cache, the training loss at `final`
and `logits`).

Samplers announce the denoising step whose pass they run (`Taps.in_step`), so that a patch or a
capture can be bound to steps; outside a sampler there are none, and one that was bound to a step
that never came is an error. Scores announce which of the given items the rows of a pass are about
(`Taps.in_rows`), for patches that treat them differently.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

from unmask.base.errors import UserError

PARTS = (
    "resid_in",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_pattern",
    "attn_z",
    "attn_out",
    "mlp_in",
    "mlp_key",
    "mlp_out",
    "resid_out",
)

EVERY_STEP: frozenset[int] = frozenset()
"""Stands for every step of a sampler."""

Patch = Callable[[Tensor], Tensor]
Tap = Callable[[str, Tensor], Tensor]
Steps = int | Collection[int] | Literal["all"]
"""Denoising steps, counted from 1."""


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


def untouched(_part: str, x: Tensor) -> Tensor:
    """The tap of a network that nobody watches."""
    return x


class Taps:
    """The functions that wait at the sites; none outside `attach`.

    Several may be attached at once; they act in the order they were attached, so a capture
    opened inside a patch sees the patched value.
    """

    def __init__(self, layers: int):
        self.layers = layers
        self._attached: list[_Attachment] = []
        self.step: int | None = None
        """The denoising step whose pass is being run; None outside samplers."""
        self.rows: Sequence[int] | None = None
        """Which of the given items each row of the batch is about, in a pass of scores."""

    @property
    def attached(self) -> tuple[str, ...]:
        """The sites at which a patch or a capture waits, in the order they fire."""
        if not self._attached:
            return ()
        waiting = {site for attachment in self._attached for site in attachment.functions}
        return tuple(site for site in site_names(self.layers) if site in waiting)

    def require_none(self, what: str, sites: Collection[str] | None = None) -> None:
        """Raise where a patch or a capture waits, at any site or at one of these.

        For `what` does not pass them as a whole run of the network would.
        """
        waiting = [site for site in self.attached if sites is None or site in sites]
        if waiting:
            named = ", ".join(waiting[:3]) + (", …" if len(waiting) > 3 else "")
            raise UserError(
                f"the network is patched or captured at {named}, but {what} does not run it whole "
                "and would pass by these sites: leave the `with` block first, or change the "
                "weights instead."
            )

    def at(self, prefix: str = "") -> Tap:
        """The function through which one part of the network passes its activations.

        It keeps what is attached now: a block that is run again in the backward pass must do what
        it did in the forward pass, though the `with` block may have ended.
        """
        acting = [each for each in self._attached if each.acts_in(self.step)]
        return _AttachedTap(prefix, acting) if acting else untouched

    @contextmanager
    def in_step(self, step: int) -> Generator[None]:
        """Inside the block, passes of the network are those of this denoising step."""
        self.step = step
        try:
            yield
        finally:
            self.step = None

    @contextmanager
    def in_rows(self, rows: Sequence[int]) -> Generator[None]:
        """Inside the block, the rows of a pass are about these of the items that were given."""
        self.rows = rows
        try:
            yield
        finally:
            self.rows = None

    def find(self, names: Iterable[str]) -> list[str]:
        """The sites that the names mean; `*` stands for any layer or part."""
        known = site_names(self.layers)
        sites: list[str] = []
        for name in names:
            matches = [site for site in known if fnmatchcase(site, name)]
            if not matches:
                raise UserError(
                    f"site {name!r} does not exist: this network has embed, "
                    f"layers.0 to layers.{self.layers - 1} with {', '.join(PARTS)}, "
                    "final and logits; write for example 'layers.0.mlp_key' or 'layers.*.mlp_key'."
                )
            sites += [site for site in matches if site not in sites]
        return sites

    @contextmanager
    def attach(
        self, functions: Mapping[str, Patch], steps: frozenset[int] | None = None
    ) -> Generator[None]:
        """Let each function act at its site inside the block; one that never fires is an error."""
        attachment = _Attachment(functions, steps)
        self._attached.append(attachment)
        try:
            yield
        finally:
            self._attached.remove(attachment)
        if silent := [site for site in functions if site not in attachment.fired]:
            if steps is not None:
                named = f"steps {', '.join(map(str, sorted(steps)))}" if steps else "any step"
                raise UserError(
                    f"site {', '.join(silent)} was named at {named}, but no sampler came to it: "
                    "sample inside the block, in as many steps."
                )
            raise UserError(
                f"site {', '.join(silent)} was named but never reached: run the network inside "
                "the block, over layers that hold the site."
            )


class _AttachedTap:
    """A tap with functions behind it; in a class, so that a block can ask for what it computes."""

    def __init__(
        self, prefix: str, attached: list["_Attachment"], home: torch.device | None = None
    ):
        self.prefix, self.attached, self.home = prefix, attached, home

    def __call__(self, part: str, x: Tensor) -> Tensor:
        if self.home is not None:
            return _AttachedTap(self.prefix, self.attached)(part, x.to(self.home)).to(x.device)
        for attachment in self.attached:
            x = attachment.act(self.prefix + part, x)
        return x

    def wants(self, part: str) -> bool:
        return any(self.prefix + part in each.functions for each in self.attached)


def keep_home(tap: Tap, home: torch.device) -> Tap:
    """A tap whose functions see activations on the network's own device, wherever a layer is."""
    return _AttachedTap(tap.prefix, tap.attached, home) if isinstance(tap, _AttachedTap) else tap


def is_wanted(tap: Tap, part: str) -> bool:
    """Whether something waits at a part, for activations that are computed on request."""
    return isinstance(tap, _AttachedTap) and tap.wants(part)


class _Attachment:
    def __init__(self, functions: Mapping[str, Patch], steps: frozenset[int] | None = None):
        self.functions, self.steps = functions, steps
        self.fired: set[str] = set()

    def acts_in(self, step: int | None) -> bool:
        if self.steps is None:
            return True
        return step is not None and (step in self.steps or self.steps == EVERY_STEP)

    def act(self, site: str, x: Tensor) -> Tensor:
        function = self.functions.get(site)
        if function is None:
            return x
        self.fired.add(site)
        out = function(x)
        if not isinstance(out, Tensor) or _describe(out) != _describe(x):
            given = _describe(out) if isinstance(out, Tensor) else type(out).__name__
            raise UserError(
                f"the patch at {site} returned {given}, expected a tensor {_describe(x)}: return "
                "the whole activation, changed or not, in its dtype and on its device."
            )
        return out


def _describe(x: Tensor) -> str:
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} {x.device}"
