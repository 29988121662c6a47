"""The second moment of keys on running text: which directions an update must not disturb.

C = E[k k^T] over all positions of the states that a network meets. A diffusion network meets texts
noised at any time, and canvases that begin with a prompt and go on in masks; an update acts at
masks as at words, so both count. Clean text is what a causal network meets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.config import LARGEST, check_arguments
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.editing.edit import list_layers
from unmask.evaluation.questions import require_tokenizer
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model

States = Literal["met", "noised", "canvas", "clean"]
PER_WIDTH = 5
"""Tokens per width of a key, below which a moment matrix is mostly chance."""
LENGTH = 128
"""Tokens of a row, where the context is not shorter."""
_TEXTS = 64
"""Texts that are encoded at once."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments of keys, by layer, and what they were gathered on."""

    matrices: Mapping[int, Float[Tensor, "F F"]]
    """In float64, on the CPU."""
    states: States
    num_tokens: int
    shrink: float = 0.0

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted(self.matrices))

    def at(self, layer: int) -> Float[Tensor, "F F"]:
        """The matrix of a layer."""
        if layer not in self.matrices:
            raise UserError(
                f"no moments of layer {layer} were gathered, only of "
                f"{', '.join(map(str, self.layers))}: name all layers that are edited."
            )
        return self.matrices[layer]

    def condition(self, layer: int) -> float:
        """The largest eigenvalue over the smallest; infinite where the matrix has no inverse."""
        values = torch.linalg.eigvalsh(self.at(layer))
        return float(values[-1] / values[0]) if values[0] > 0 else float("inf")


@check_arguments(
    leave_out=("texts", "layers"), tokens=(1, LARGEST), length=(2, LARGEST), seed=(0, LARGEST)
)
def moments(
    model: Model,
    texts: Iterable[str],
    layers: int | Sequence[int],
    states: States | None = None,
    *,
    tokens: int = 100_000,
    length: int | None = None,
    shrink: float = 0.0,
    seed: int = 0,
) -> Moments:
    """The second moment of each layer's keys on running text, for `unmask.edit`.

    Texts are read one after another, an end token before each, in rows of `length` tokens, until
    there are enough; memory does not grow with them.

    Args:
        model: Masked or causal.
        texts: Any number of texts, such as `unmask.data.text.read_documents(["text.txt"])`.
        layers: Of the down projections, counted from 0.
        states: What becomes of a row: "noised" at a time drawn uniformly; "canvas", a beginning of
            random length and masks after it; "met", the default of a diffusion model, each of both
            in turn; "clean", the default of a causal one, which meets nothing else.
        tokens: Positions to read, at most.
        length: Of a row; 128 or the context by default.
        shrink: The share of the identity (with the same trace) that is mixed in. Without it, fewer
            than five tokens per width of a key are refused.
        seed: Of times and canvases.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> found = unmask.moments(model, ["One day a fox sat down."] * 50, 2, shrink=0.1)
    >>> found.states, found.condition(2) > 1
    ('met', True)
    """
    if not 0 <= shrink <= 1:
        raise UserError(f"shrink is {shrink}: expected a share from 0 to 1.")
    names = list_layers(model, layers)
    chosen = _choose_states(model, states)
    width = model.net.config.mlp_width  # edits are written into dense MLPs alone
    length = min(LENGTH, model.net.config.context) if length is None else length
    if length > model.net.config.context:
        raise UserError(
            f"rows of {length} tokens were asked for: {model.name} has a context of "
            f"{model.net.config.context}."
        )
    # 1. A sum for each layer [F, F], in float64, which MPS does not have.
    device = torch.device("cpu") if model.device.type == "mps" else model.device
    sums = {layer: torch.zeros(width, width, device=device).double() for layer in names}
    most = max(1, tokens // length)
    size = fit_rows(model, count_row_bytes(model, length, 0))
    num_rows = 0

    def gather(batch: Iterable[tuple[int, list[int]]]) -> list[int]:
        numbers, rows = zip(*batch, strict=True)
        state = make_states(model, torch.tensor(rows, device=model.device), numbers, chosen, seed)
        added = _multiply_keys(model, state, names, device)
        for layer in names:  # all at once: a batch that fails on the way adds nothing
            sums[layer] += added[layer]
        return list(numbers)

    # 2. Rows of tokens as they are read, batch by batch: the sum of k k^T over all their keys.
    rows = enumerate(islice(cut_rows(model, texts, length), most))
    while batch := list(islice(rows, size)):
        num_rows += sum(len(done) for done, _ in map_batches(batch, size, gather))
    count = num_rows * length
    if not count or (count < PER_WIDTH * width and not shrink):
        raise UserError(
            f"{count} tokens were read for keys of width {width}: expected at least "
            f"{PER_WIDTH * width}, since a matrix of fewer is mostly noise; give more text and a "
            "larger `tokens` (of `unmask edit`: --moment-text and --moment-tokens), or shrink it "
            "towards the identity, such as shrink=0.1 (--shrink 0.1)."
        )
    # 3. The mean, mixed with an identity of the same trace.
    eye = torch.eye(width).double()
    matrices = {layer: total.cpu() / count for layer, total in sums.items()}
    matrices = {
        layer: (1 - shrink) * matrix + shrink * matrix.trace() / width * eye
        for layer, matrix in matrices.items()
    }
    return Moments(matrices, chosen, count, shrink)


def _choose_states(model: Model, states: States | None) -> States:
    model.paradigm.require_scored(model.name, "moments of keys are gathered")
    if model.net.config.time:
        raise UserError(
            f"{model.name} takes the time as an input: moments of keys are gathered for networks "
            "that see tokens alone."
        )
    if model.paradigm.has_steps:
        return states or "met"
    if states not in (None, "clean"):
        raise UserError(f"{model.name} is autoregressive and meets clean text: leave states out.")
    return "clean"


def cut_rows(model: Model, texts: Iterable[str], length: int) -> Iterator[list[int]]:
    """Rows of one length, cut out of all texts in a row; what is left at the end is dropped."""
    tokenizer = require_tokenizer(model)
    kept: list[int] = []
    if not isinstance(texts, Iterable) or isinstance(texts, bytes):
        raise UserError(f"the texts are a {type(texts).__name__}: expected a list of texts.")
    left = iter([texts] if isinstance(texts, str) else texts)
    while some := list(islice(left, _TEXTS)):
        if not all(isinstance(text, str) for text in some):
            wrong = next(text for text in some if not isinstance(text, str))
            raise UserError(f"a {type(wrong).__name__} is among the texts: expected texts alone.")
        for ids in tokenizer.encode_documents(some):
            kept += [*tokenizer.opening, *ids]
            while len(kept) >= length:
                yield kept[:length]
                kept = kept[length:]


def make_states(
    model: Model, x0: Int[Tensor, "B L"], numbers: Iterable[int], states: States, seed: int
) -> Int[Tensor, "B L"]:
    """The rows as a network meets them; a row's state depends on its number and the seed."""
    if states == "clean":
        return x0
    numbers = list(numbers)
    streams = RowStreams.make(seed, numbers, x0.device)
    drawn = streams.at("time").uniform(1)  # [B, 1], a time or a length
    noised = model.make_process().corrupt(x0, drawn, streams.at("noise"))
    if (kept := model.find_kept(x0)) is not None:
        noised = torch.where(kept, x0, noised)
    if states == "noised":
        return noised
    # From one token to all but one are given.
    given = 1 + (drawn * (x0.shape[1] - 1)).long()
    positions = torch.arange(x0.shape[1], device=x0.device)
    canvas = torch.where(positions < given, x0, model.require_mask())
    if states == "canvas":
        return canvas
    is_canvas = torch.tensor(numbers, device=x0.device)[:, None] % 2 == 1
    return torch.where(is_canvas, canvas, noised)


@torch.no_grad()
def _multiply_keys(
    model: Model, tokens: Int[Tensor, "B L"], layers: Iterable[int], device: torch.device
) -> dict[int, Float[Tensor, "F F"]]:
    """The sum of k k^T over all positions, by layer."""
    net, layers = model.net, list(layers)
    net.taps.require_none("gathering moments", why="is of the network's own states")
    with net.capture(*(f"layers.{layer}.mlp_key" for layer in layers)) as taken:
        net.run_layers(net.embed(tokens), 0, max(layers) + 1)
    keys = {layer: taken[f"layers.{layer}.mlp_key"].flatten(0, 1) for layer in layers}
    return {layer: k.T @ k for layer, k in ((i, k.to(device).double()) for i, k in keys.items())}
