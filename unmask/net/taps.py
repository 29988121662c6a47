"""What waits at the sites of a network: captures and patches, and what passes announce to them."""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.cache import Snapshot
from unmask.net.sites import (
    EVERY_STEP,
    PAIRED,
    Patch,
    PatchContext,
    Steps,
    Tap,
    find_sites,
    parse_rows,
    parse_steps,
    site_names,
)


@dataclass(frozen=True)
class _Pass:
    """What is announced of one pass."""

    step: int | None
    tokens: Tensor | None
    rows: Sequence[int] | None
    mask_id: int | None
    snapshot: Snapshot | None
    packed: Tensor | None
    """The row of each entry, where positions were chosen by a mask."""

    def name_rows(self, count: int) -> tuple[int, ...]:
        """The items that the entries of an activation are about; announced ones repeat."""
        own = list(range(count)) if self.packed is None else self.packed.tolist()
        if self.rows is None:
            return tuple(own)
        return tuple(self.rows[i % len(self.rows)] for i in own)

    def describe(self, site: str, rows: tuple[int, ...], chosen: Tensor | None) -> PatchContext:
        tokens = self.tokens
        if tokens is not None and chosen is not None and self.packed is None:
            tokens = tokens[chosen]
        is_open = (
            None if tokens is None else tokens == (-1 if self.mask_id is None else self.mask_id)
        )
        return PatchContext(site, self.step, tokens, is_open, rows)


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
        self.mask_id: int | None = None
        """The mask of the model that the network belongs to."""
        self.step: int | None = None
        """The denoising step whose pass is being run; None outside samplers."""
        self.rows: Sequence[int] | None = None
        """Which of the given items the rows of the batch are about, where that was announced."""
        self.tokens: Tensor | None = None
        """What the network read last."""

    @property
    def attached(self) -> tuple[str, ...]:
        """The sites at which a patch or a capture waits, in the order they fire."""
        if not self._attached:
            return ()
        waiting = {site for attachment in self._attached for site in attachment.functions}
        return tuple(site for site in site_names(self.layers) if site in waiting)

    @property
    def changed(self) -> set[int]:
        """The items of whose activations something was changed since it was attached."""
        return {item for each in self._attached for item in each.changed}

    def find_changed(self, count: int) -> list[bool]:
        """Which of so many rows are about items of which something was changed."""
        changed = self.changed
        return [item in changed for item in self._describe_pass().name_rows(count)]

    def require_none(
        self,
        what: str,
        sites: Collection[str] | None = None,
        why: str = "does not run it whole and would pass by these sites",
    ) -> None:
        """Raise where a patch or a capture waits, at any site or at one of these."""
        waiting = [site for site in self.attached if sites is None or site in sites]
        if waiting:
            named = ", ".join(waiting[:3]) + (", …" if len(waiting) > 3 else "")
            raise UserError(
                f"the network is patched or captured at {named}, but {what} {why}: leave the "
                "`with` block first, or change the weights instead."
            )

    def at(
        self, prefix: str = "", snapshot: Snapshot | None = None, packed: Tensor | None = None
    ) -> Tap:
        """The function through which one part of the network passes its activations.

        It keeps what is attached and announced now: a block that is run again in the backward pass
        must do what it did in the forward pass, though the `with` block may have ended.
        """
        acting = self._attached
        if snapshot is None:
            acting = [each for each in acting if each.acts_in(self.step)]
        if not acting:
            return untouched
        return _AttachedTap(prefix, list(acting), self._describe_pass(snapshot, packed))

    def _describe_pass(
        self, snapshot: Snapshot | None = None, packed: Tensor | None = None
    ) -> _Pass:
        return _Pass(self.step, self.tokens, self.rows, self.mask_id, snapshot, packed)

    @contextmanager
    def in_step(self, step: int | None) -> Generator[None]:
        """Inside the block, passes of the network are those of this denoising step."""
        before, self.step = self.step, step
        try:
            yield
        finally:
            self.step = before

    @contextmanager
    def in_rows(self, rows: Sequence[int]) -> Generator[None]:
        """Inside the block, the rows of a pass are about these of the items that were given.

        Where these are themselves about other items, as announced outside, about those.
        """
        before = self.rows
        if before is not None:
            rows = [before[row % len(before)] for row in rows]
        self.rows = rows
        try:
            yield
        finally:
            self.rows = before

    @contextmanager
    def on_tokens(self, tokens: Tensor | None) -> Generator[None]:
        """Inside the block, streams that are run are those of these tokens."""
        before, self.tokens = self.tokens, tokens
        try:
            yield
        finally:
            self.tokens = before

    @contextmanager
    def silenced(self) -> Generator[None]:
        """Inside the block nothing is attached."""
        before, self._attached = self._attached, []
        try:
            yield
        finally:
            self._attached = before

    def run_watched(self, whole: Callable[[], Tensor], usual: Callable[[], Tensor]) -> Tensor:
        """What is usual; of rows in which anything attached changes something, the whole run's.

        Whoever waits sees the whole run, which passes all sites, and nothing of the usual one.
        """
        if not self._attached:
            return usual()
        seen = whole()
        changed = self.find_changed(len(seen))
        if all(changed):
            return seen
        with self.silenced():
            return mix_rows(changed, seen, usual())

    @contextmanager
    def capture(self, names: Iterable[str], steps: Steps | None) -> Generator[dict]:
        """`unmask.net.transformer.Transformer.capture`."""
        taken: dict = {}

        def keep(site: str) -> Patch:
            def act(x: Tensor) -> Tensor:
                held = taken if steps is None else taken.setdefault(self.step, {})
                held[site] = x
                return x

            return act

        sites = {name: find_sites(name, self.layers) for name in names}
        functions = {site: keep(site) for own in sites.values() for site in own}
        with self.attach(functions, parse_steps(steps), names=sites):
            yield taken

    @contextmanager
    def patch(
        self,
        functions: Mapping[str, Patch],
        steps: Steps | None,
        rows: int | Collection[int] | None,
    ) -> Generator[None]:
        """`unmask.net.transformer.Transformer.patch`."""
        patches: dict[str, Patch | _ContextPatch] = {}
        sites = {name: find_sites(name, self.layers) for name in functions}
        for name, act in functions.items():
            if not callable(act):
                raise UserError(
                    f"the patch at {name} is a {type(act).__name__}: expected a function from the "
                    "activation to the one that replaces it; for fixed values write "
                    "lambda x: values.expand_as(x)."
                )
            for site in sites[name]:
                if site in patches:
                    raise UserError(
                        f"site {site} is patched twice, the second time by {name!r}: name it once, "
                        "or open a second `with` block, which acts on what the first one left."
                    )
                patches[site] = _ContextPatch(act) if _asks_context(act) else act
        with self.attach(patches, parse_steps(steps), parse_rows(rows), names=sites):
            yield

    @contextmanager
    def attach(
        self,
        functions: Mapping[str, "Patch | _ContextPatch"],
        steps: frozenset[int] | None = None,
        rows: frozenset[int] | None = None,
        first: bool = False,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> Generator[None]:
        """Let each function act at its site inside the block, after all that is attached already,
        or before it where it is to be `first`.

        A site that never fires is an error; of several that go by one of the `names`, if none does.
        """
        attachment = _Attachment(functions, steps, rows)
        self._attached.insert(0 if first else len(self._attached), attachment)
        try:
            yield
        finally:
            self._attached.remove(attachment)
        known = {site: [site] for site in functions} if names is None else names
        silent = [name for name, sites in known.items() if attachment.fired.isdisjoint(sites)]
        if silent:
            if rows is not None:
                named = ", ".join(map(str, sorted(rows)))
                raise UserError(
                    f"site {', '.join(silent)} was named at rows {named}, but none of these came "
                    "to it: rows count the given texts from 0, and a trace has one text."
                )
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
        self,
        prefix: str,
        attached: list["_Attachment"],
        own: _Pass,
        home: torch.device | None = None,
    ):
        self.prefix, self.attached, self.own, self.home = prefix, attached, own, home

    def __call__(self, part: str, x: Tensor) -> Tensor:
        if self.home is not None:
            at_home = _AttachedTap(self.prefix, self.attached, self.own)
            return at_home(part, x.to(self.home)).to(x.device)
        for attachment in self.attached:
            if self.prefix + part in attachment.functions:
                x = self._act(attachment, part, x)
        return x

    def _act(self, attachment: "_Attachment", part: str, x: Tensor) -> Tensor:
        """What one function makes of an activation; in a pass over some positions, of all."""
        site, snapshot = self.prefix + part, self.own.snapshot
        if snapshot is None:
            return attachment.act(site, x, self.own)
        whole = snapshot.complete((id(attachment), site), x, 2 if part in PAIRED else 1)
        if not attachment.acts_in(self.own.step):
            return x
        out = attachment.act(site, whole, self.own)
        return x if out is whole else snapshot.select(out, 2 if part in PAIRED else 1)

    def wants(self, part: str) -> bool:
        return any(self.prefix + part in each.functions for each in self.attached)


def mix_rows(changed: Sequence[bool], whole: Tensor, usual: Tensor) -> Tensor:
    """The rows of a whole pass where something was changed; all others of the usual one."""
    is_changed = torch.tensor(changed, device=whole.device)
    return torch.where(is_changed.view(-1, *[1] * (whole.ndim - 1)), whole, usual)


def keep_home(tap: Tap, home: torch.device) -> Tap:
    """A tap whose functions see activations on the network's own device, wherever a layer is."""
    if not isinstance(tap, _AttachedTap):
        return tap
    return _AttachedTap(tap.prefix, tap.attached, tap.own, home)


def is_wanted(tap: Tap, *parts: str) -> bool:
    """Whether something waits at one of the parts, of which some are computed on request."""
    return isinstance(tap, _AttachedTap) and any(map(tap.wants, parts))


@dataclass(frozen=True)
class _ContextPatch:
    """A function that asks where it acts."""

    function: Patch


def _asks_context(function: Patch) -> bool:
    """Whether a function has an argument named `context`."""
    try:
        return "context" in signature(function).parameters
    except (TypeError, ValueError):  # functions of torch's own have no signature
        return False


class _Attachment:
    def __init__(
        self,
        functions: Mapping[str, "Patch | _ContextPatch"],
        steps: frozenset[int] | None = None,
        rows: frozenset[int] | None = None,
    ):
        self.functions, self.steps, self.rows = functions, steps, rows
        self.fired: set[str] = set()
        self.changed: set[int] = set()

    def acts_in(self, step: int | None) -> bool:
        if self.steps is None:
            return True
        return step is not None and (step in self.steps or self.steps == EVERY_STEP)

    def act(self, site: str, x: Tensor, own: _Pass) -> Tensor:
        function, given, chosen = self.functions[site], x, None
        items = own.name_rows(len(x))
        # 1. Of a patch for some rows, these rows alone.
        if self.rows is not None:
            numbers = [i for i, item in enumerate(items) if item in self.rows]
            if not numbers:
                return x
            chosen = torch.tensor(numbers, device=x.device)
            given, items = x[chosen], tuple(items[i] for i in numbers)
        # 2. What the function makes of them.
        self.fired.add(site)
        if isinstance(function, _ContextPatch):
            out = function.function(given, context=own.describe(site, items, chosen))
        else:
            out = function(given)
        if out is given:
            return x
        if not isinstance(out, Tensor) or _describe(out) != _describe(given):
            shown = _describe(out) if isinstance(out, Tensor) else type(out).__name__
            raise UserError(
                f"the patch at {site} returned {shown}, expected a tensor {_describe(given)}: "
                "return the whole activation, changed or not, in its dtype and on its device."
            )
        # 3. Where it did not write back what stood there; looked at until all has been changed.
        if not self.changed.issuperset(items):
            differs = [True] * len(items)  # compiled code does not look at numbers
            if not torch.compiler.is_compiling():
                differs = (out != given).flatten(1).any(-1).tolist()
            self.changed.update([item for item, new in zip(items, differs, strict=True) if new])
        return out if chosen is None else x.index_copy(0, chosen, out)


def _describe(x: Tensor) -> str:
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} {x.device}"
