"""Edit: low-rank additions to down projections, applied for a while, stacked, saved and merged."""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from unmask.base.config import check_arguments
from unmask.base.errors import UserError
from unmask.base.extras import Shown
from unmask.base.files import replace_file
from unmask.base.identity import digest_values
from unmask.base.reading import parse_json, read_tensors
from unmask.net.loading import save
from unmask.net.model import Model
from unmask.net.transformer import Transformer

SCHEMA = "edit/1"
SAMPLED = 16
"""Values of each weight beside the edited ones in the digest of a network, about."""


@dataclass(frozen=True)
class Factors:
    """What one layer's down projection gains: dW = residuals readers; E is the number of facts."""

    residuals: Float[Tensor, "D E"]
    readers: Float[Tensor, "E F"]

    @property
    def update(self) -> Float[Tensor, "D F"]:
        """dW, in float64."""
        return self.residuals.double() @ self.readers.double()


@dataclass(frozen=True, eq=False, repr=False)
class Edit(Shown):
    """Facts written into the down projections of a network, as low-rank factors.

    `unmask.edit` makes one. Weights change inside `with edit.on(model):` alone. Several edits can
    be on at once and end in any order: the weights are the network's own plus those that are on.

    Args:
        factors: What each layer's down projection gains, by layer.
        network: A digest of the weights that it was made for; in bfloat16, so that the same
            checkpoint loaded in another dtype is the same network.
        record: What was asked for and how it went, as JSON holds it.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> edit = unmask.edit(model, fact, "Nowhere", layers=2, search_steps=3, prefixes=1)
    >>> with edit.on(model):
    ...     answers = unmask.sample(model, fact.prompt, steps=4, length=24)
    >>> edit.save("nowhere.safetensors")
    >>> unmask.Edit.load("nowhere.safetensors").layers
    (2,)
    """

    factors: Mapping[int, Factors]
    network: str
    record: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        facts = max((len(each.readers) for each in self.factors.values()), default=0)
        layers = ", ".join(map(str, self.layers)) or "none"
        written = f"{facts} fact{'s' * (facts != 1)} in layers {layers}"
        return f"Edit({written}, norm {self.magnitude:.3g})"

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted(self.factors))

    @property
    def magnitude(self) -> float:
        """The Frobenius norm of all that is added."""
        norms = [torch.linalg.matrix_norm(factors.update) for factors in self.factors.values()]
        return float(torch.stack(norms).norm()) if norms else 0.0

    @contextmanager
    def on(self, model: Model) -> Generator[Model]:
        """Inside the block the model has the edit; afterwards it is as before, to the bit.

        Args:
            model: The one that the edit was made for, in the same dtype, or in bfloat16 instead of
                float32 and the other way round; another is refused.
        """
        stack, entry = _find_stack(model.net), _Application(self)
        try:
            stack.add(entry, model)
            yield model
        finally:
            stack.remove(entry)

    def is_on(self, model: Model) -> bool:
        """Whether the model has this edit now."""
        return any(entry.edit is self for entry in _find_stack(model.net).entries)

    def merge(self, model: Model, folder: str | Path, dialect: str = "unmask") -> None:
        """Write the edited model as `unmask.save` does, in any layout; the model stays as it is."""
        with self.on(model):
            save(model, folder, dialect)

    @torch.no_grad()
    def shares(self, model: Model, tokens: Int[Tensor, "B L"]) -> dict[int, Float[Tensor, "B L E"]]:
        """How much of each fact's residual acts at each position, by layer: 1 is all of it.

        For one fact (u . k) / (u . k_bar), with the keys k of the network edited below the layer.
        Exact: a layer's MLP gains residuals times shares, at masks as at words.

        Args:
            model: The one that the edit was made for.
            tokens: States, such as those of a trajectory.
        """
        net = model.net
        why = "is of the network's own states"
        net.taps.require_none("reading an edit's shares", why=why)
        if not self.layers:
            return {}
        if not self.is_on(model):
            with self.on(model):
                return self.shares(model, tokens)
        sites = [f"layers.{layer}.mlp_key" for layer in self.layers]
        with net.capture(*sites) as keys:
            net.run_layers(net.embed(tokens.to(model.device)), 0, self.layers[-1] + 1)
        return {
            layer: keys[site].cpu().double() @ self.factors[layer].readers.double().cpu().T
            for layer, site in zip(self.layers, sites, strict=True)
        }

    def __add__(self, other: "Edit") -> "Edit":
        """Both edits as one; they must have been made for the same weights."""
        if not isinstance(other, Edit):
            return NotImplemented
        # The digest is of the layers that were edited: only the same ones can be compared.
        if (self.network, self.layers) != (other.network, other.layers):
            raise UserError(
                "the two edits were made for different weights or layers: apply one inside the "
                "other's `with` block instead."
            )
        factors = {
            layer: Factors(
                torch.cat([self.factors[layer].residuals, other.factors[layer].residuals], 1),
                torch.cat([self.factors[layer].readers, other.factors[layer].readers], 0),
            )
            for layer in self.layers
        }
        return Edit(factors, self.network, {"parts": [dict(self.record), dict(other.record)]})

    def save(self, path: str | Path) -> None:
        """Write the edit as one safetensors file, atomically."""
        tensors = {
            f"layers.{layer}.{name}": getattr(factors, name).contiguous().cpu()
            for layer, factors in self.factors.items()
            for name in ("residuals", "readers")
        }
        record = json.dumps(dict(self.record), ensure_ascii=False)
        metadata = {"schema": SCHEMA, "network": self.network, "record": record}
        with replace_file(path) as draft:
            save_file(tensors, draft, metadata)

    @classmethod
    @check_arguments()
    def load(cls, path: str | Path) -> "Edit":
        """The edit that `save` wrote."""
        tensors, metadata = read_tensors(path, "an edit", "expected a file that Edit.save wrote")
        if metadata.get("schema") != SCHEMA:
            raise UserError(
                f"{path} is no edit of this version (its schema is "
                f"{metadata.get('schema', 'missing')}, expected {SCHEMA}): make the edit again."
            )
        try:
            layers = sorted({int(name.split(".")[1]) for name in tensors})
            factors = {layer: _read_factors(tensors, layer) for layer in layers}
            record = parse_json(metadata["record"], f"the record of {path}")
            return cls(factors, metadata["network"], dict(record))
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise UserError(
                f"{path} does not hold a whole edit ({type(error).__name__}: {error}): expected a "
                "file that Edit.save wrote; make the edit again."
            ) from None


def _read_factors(tensors: Mapping[str, Tensor], layer: int) -> Factors:
    """The factors of a layer, unless they cannot be multiplied."""
    residuals, readers = (tensors[f"layers.{layer}.{name}"] for name in ("residuals", "readers"))
    shapes = f"{list(residuals.shape)} and {list(readers.shape)}"
    if residuals.ndim != 2 or readers.ndim != 2 or residuals.shape[1] != readers.shape[0]:
        raise ValueError(
            f"layer {layer} has factors of shapes {shapes}, expected [D, E] and [E, F]"
        )
    if not all(each.is_floating_point() and each.isfinite().all() for each in (residuals, readers)):
        raise ValueError(f"layer {layer} has factors that are not finite numbers")
    return Factors(residuals, readers)


def get_down(model: Model, layer: int) -> nn.Linear:
    """The down projection of a layer's MLP; one that is out of range or has several is refused."""
    layers = model.net.config.layers
    if not 0 <= layer < layers:
        raise UserError(
            f"layer {layer} is out of range: {model.name} has layers 0 to {layers - 1}."
        )
    down = getattr(model.net.block(layer).mlp, "down", None)
    if not isinstance(down, nn.Linear):
        raise UserError(
            f"the MLP of layer {layer} of {model.name} has no single down projection: edits are "
            "written into dense MLPs; choose another layer."
        )
    return down


def list_layers(model: Model, layers: object) -> tuple[int, ...]:
    """The layers named by a number or several, in order; each must have a down projection."""
    named = [layers] if isinstance(layers, int) else layers
    is_list = isinstance(named, Sequence) and not isinstance(named, str | bytes)
    if not is_list or not named or not all(type(layer) is int for layer in named):
        raise UserError(
            f"the layers are {layers!r:.60}: expected a whole number or several, such as layers=2."
        )
    for layer in named:
        get_down(model, layer)
    return tuple(sorted(set(named)))


def digest_downs(
    model: Model, layers: Sequence[int], weights: Mapping[int, Tensor] = MappingProxyType({})
) -> str:
    """A digest of the down projections of some layers, or of `weights` in their place.

    Of all other weights, but for down projections, which may be edited, it has a few: networks that
    differ in training differ there.
    """
    parts: list[object] = [model.blueprint, tuple(layers)]
    for layer in layers:
        parts.append(_to_bytes(weights.get(layer, get_down(model, layer).weight)))
    for name, parameter in model.net.named_parameters():
        if not name.endswith(".mlp.down.weight"):
            flat = parameter.detach().flatten()
            parts += [name, _to_bytes(flat[:: max(1, len(flat) // SAMPLED)])]
    return digest_values(parts)


def _to_bytes(weight: Tensor) -> memoryview:
    """In bfloat16: the same for a network that is loaded in another dtype."""
    short = weight.detach().to(torch.bfloat16).cpu().contiguous()
    return memoryview(short.flatten().view(torch.uint8).numpy())


@dataclass(eq=False)
class _Application:
    """One time that an edit is on."""

    edit: Edit


class _Stack:
    """The edits that a network has now, and the weights that it has without them."""

    def __init__(self) -> None:
        self.entries: list[_Application] = []
        self.downs: dict[int, nn.Linear] = {}
        self.own: dict[int, Tensor] = {}

    def add(self, entry: _Application, model: Model) -> None:
        """Put an edit on; it was made for the weights as they are, or as they are without edits."""
        edit, layers = entry.edit, model.net.config.layers
        fits = edit.layers[-1:] < (layers,) and any(
            digest_downs(model, edit.layers, weights) == edit.network for weights in (self.own, {})
        )
        if not fits:
            raise UserError(
                f"this edit of layer {', '.join(map(str, edit.layers)) or 'none'} was made for "
                f"another network than {model.name} (their digests differ): make it again for this "
                "one, or load the checkpoint that it was made for, in the same dtype."
            )
        for layer in edit.layers:
            weight, factors = get_down(model, layer).weight, edit.factors[layer]
            if (shape := (len(factors.residuals), factors.readers.shape[1])) != weight.shape:
                raise UserError(
                    f"this edit of layer {layer} changes a weight of shape {list(shape)}, but that "
                    f"of {model.name} is {list(weight.shape)}: make the edit again for this model."
                )
            if layer not in self.own:
                down = get_down(model, layer)
                self.downs[layer], self.own[layer] = down, down.weight.detach().clone()
        self.entries.append(entry)
        self._write(edit.layers)

    def remove(self, entry: _Application) -> None:
        """Take an edit off; interrupts are let through once it is off, an error the second time."""
        raised: BaseException | None = None
        while True:
            try:
                self._take_off(entry)
                break
            except BaseException as error:
                if raised is not None and isinstance(error, Exception):
                    raise
                raised = error
        if raised is not None:
            raise raised

    def _take_off(self, entry: _Application) -> None:
        """Take an edit's weights off, which may be partly on, or never have been.

        Layers that are still in `own` are those that have something left to take off.
        """
        if entry in self.entries:
            self.entries.remove(entry)
        layers = [layer for layer in entry.edit.layers if layer in self.own]
        self._write(layers)
        for layer in layers:
            if not any(layer in other.edit.factors for other in self.entries):
                del self.own[layer]
                self.downs.pop(layer, None)

    @torch.no_grad()
    def _write(self, layers: Sequence[int]) -> None:
        """Own weights plus all that is on, into memory that captured kernels may point to."""
        for layer in layers:
            self.downs[layer].weight.copy_(self._compute(layer))

    def _compute(self, layer: int) -> Tensor:
        edits = [entry.edit for entry in self.entries if layer in entry.edit.factors]
        own = self.own[layer]
        if not edits:
            return own
        # MPS has no float64.
        device = torch.device("cpu") if own.device.type == "mps" else own.device
        total = own.to(device, torch.float64)
        for edit in edits:
            factors = edit.factors[layer]
            total = total + factors.residuals.to(total) @ factors.readers.to(total)
        return total.to(own.dtype)


_STACKS: "WeakKeyDictionary[nn.ModuleList, _Stack]" = WeakKeyDictionary()
"""By the layers, which all readings of a network share."""


def _find_stack(net: Transformer) -> _Stack:
    return _STACKS.setdefault(net.layers, _Stack())
