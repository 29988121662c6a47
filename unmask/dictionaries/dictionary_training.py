"""`unmask.train_dictionary`: a dictionary from a stream of states.

    loss = |x − x̂|² + ½^5 · |(x − x̂) − ê|²,  in units of the states' variance

ê is what the features that have not fired for long make of what the others leave: it brings them
back (Gao et al. 2024, arXiv 2406.04093). States are divided by their typical length while the
dictionary is trained, and the factor is folded into the weights in the end.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.config import CheckedSettings, adjust, list_settings, option
from unmask.base.errors import UserError
from unmask.base.files import replace_file, write_json
from unmask.base.progress import track_inside
from unmask.base.reading import parse_json, read_tensors
from unmask.base.seeds import torch_stream
from unmask.dictionaries.activations import ActivationStream
from unmask.dictionaries.dictionary import (
    Dictionary,
    check_path,
    keep_largest,
    keep_largest_on_average,
)
from unmask.dictionaries.states import StateBatch

FORMAT = "1"
STATE, LOG = "training.safetensors", "log.jsonl"
REVIVING = 2.0**-5
"""How much what dead features make of the rest counts."""
FOLLOWING = 0.01
"""How fast the threshold of BatchTopK follows the least feature that fires in a batch."""
BETAS, EPS = (0.9, 0.999), 6.25e-10


@dataclass(frozen=True, kw_only=True)
class DictionarySettings(CheckedSettings):
    """How a dictionary is trained."""

    rule: str = option(
        "topk",
        "Which features fire: topk (the k largest of each state) or batchtopk (k on average).",
        choices=lambda: ("topk", "batchtopk"),
    )
    size: int = option(1024, "Features.", least=1)
    k: int = option(32, "Features that fire at a state, at most or on average.", least=1)
    steps: int = option(2000, "Batches that it is trained on.", least=1)
    rate: float = option(1e-3, "Rate of Adam, which falls to 0 over the last fifth.", above=0)
    dead_after: int = option(
        100_000, "States without firing after which a feature counts as dead.", least=1
    )
    seed: int = option(0, "Seed of the directions at the start.", least=0)
    log: int = option(100, "Steps between lines of the log.", least=1, is_identity=False)
    save: int = option(500, "Steps between states to resume from.", least=1, is_identity=False)


@dataclass
class _TrainingState:
    """All that changes while a dictionary is trained."""

    weights: dict[str, Tensor]
    first: dict[str, Tensor]
    second: dict[str, Tensor]
    """Adam's moments of the gradient."""
    unfired: Int[Tensor, "F"]
    """States seen since each feature fired last."""
    scale: Float[Tensor, ""]
    """The states' typical length, over the root of their width."""
    threshold: Float[Tensor, ""]
    step: int = 0
    place: tuple[int, int] = (0, 0)
    """Where the stream was."""


@list_settings(DictionarySettings)
def train_dictionary(
    stream: ActivationStream,
    settings: DictionarySettings | None = None,
    out: str | Path | None = None,
    **changes: Any,
) -> Dictionary:
    """A dictionary of the states that a stream gives at its first site.

    Args:
        stream: Of `unmask.activations`; with `epochs=None` it does not end before training does.
        settings: All of the settings below as one object.
        out: A folder for a log and the state of training, from which a call with the same settings
            is resumed, with the same numbers to the bit.
        changes: Single settings by name, which come before those of `settings`.

    Keyword Args:
        {settings}

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> texts = ["We sat down beside the river."]
    >>> stream = unmask.activations(model, "layers.2.resid_out", texts, epochs=None)
    >>> unmask.train_dictionary(stream, size=64, k=4, steps=3)
    Dictionary(64 features of 256 numbers, the 4 largest, at 'layers.2.resid_out')
    """
    settings = adjust(train_dictionary, DictionarySettings, settings, changes)
    if not isinstance(stream, ActivationStream):
        raise UserError(
            f"the stream is a {type(stream).__name__}: expected one of `unmask.activations`."
        )
    if settings.k > settings.size:
        raise UserError(f"k is {settings.k}, of {settings.size} features: expected at most those.")
    site, folder = stream.harvest.sites[0], None if out is None else check_path(out, "out")
    about = {"settings": settings.to_record(), "site": site, "model": stream.harvest.model.name}
    device = stream.harvest.model.device
    state = None if folder is None else _resume(folder, about, device)
    if state is not None:
        stream.place = state.place
    batches, steps = iter(stream), settings.steps
    for _ in track_inside(range(0 if state is None else state.step, steps)):
        if (batch := next(batches, None)) is None:
            raise UserError(
                f"the states ended before step {steps}: expected epochs=None, or fewer steps."
            )
        state = _begin(batch.x.float(), settings) if state is None else state
        logged = _take_step(state, batch, settings)
        state.place = stream.place
        if folder is not None and (state.step % settings.log == 0 or state.step == steps):
            _log(folder, logged)
        if folder is not None and (state.step % settings.save == 0 or state.step == steps):
            _save(folder, state, about)
    assert state is not None
    return _finish(state, settings, site, about)


def _begin(x: Float[Tensor, "N D"], settings: DictionarySettings) -> _TrainingState:
    """Random directions, read as they are written, around the mean of the first batch."""
    width, stream = x.shape[1], torch_stream(settings.seed, "dictionary")
    scale = x.norm(dim=-1).mean() / width**0.5
    directions = torch.randn(settings.size, width, generator=stream).to(x.device)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    weights = {
        "w_enc": directions.T.contiguous(),
        "b_enc": torch.zeros(settings.size, device=x.device),
        "w_dec": directions.clone(),
        "b_dec": x.mean(0) / scale,
    }
    first, second = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in "mv")
    unfired = torch.zeros(settings.size, dtype=torch.long, device=x.device)
    return _TrainingState(weights, first, second, unfired, scale, torch.zeros((), device=x.device))


def _take_step(
    state: _TrainingState, batch: StateBatch, settings: DictionarySettings
) -> dict[str, Any]:
    """One step of Adam; what the log says of it."""
    x = batch.x.float() / state.scale
    leaves = {name: w.detach().requires_grad_() for name, w in state.weights.items()}
    # 1. What fires, and what it makes of the states.
    hidden = (x - leaves["b_dec"]) @ leaves["w_enc"] + leaves["b_enc"]  # [N, F]
    keep = keep_largest if settings.rule == "topk" else keep_largest_on_average
    features = keep(hidden, settings.k)
    rest = x - (features @ leaves["w_dec"] + leaves["b_dec"])
    variance = (x - x.mean(0)).square().sum(-1).mean()
    loss = unexplained = rest.square().sum(-1).mean() / variance
    # 2. What dead features make of what is left.
    dead = state.unfired >= settings.dead_after
    if bool(dead.any()):
        loss = loss + REVIVING * _revive(hidden, rest.detach(), leaves["w_dec"], dead)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    # 3. Adam; directions keep the length 1.
    state.step += 1
    _update(state, dict(zip(leaves, gradients, strict=True)), settings)
    # 4. Who fired, and above what.
    fired = features.detach() > 0
    state.unfired = torch.where(fired.any(0), 0, state.unfired + len(x))
    if bool(fired.any()):
        least = features.detach()[fired].min()
        state.threshold = least if state.step == 1 else state.threshold.lerp(least, FOLLOWING)
    return {
        "step": state.step,
        "unexplained": float(unexplained.detach()),
        "firing": float(fired.sum(-1).float().mean()),
        "dead": int(dead.sum()),
    }


def _revive(
    hidden: Float[Tensor, "N F"],
    rest: Float[Tensor, "N D"],
    w_dec: Float[Tensor, "F D"],
    dead: Bool[Tensor, "F"],
) -> Float[Tensor, ""]:
    """What is left of the rest after the dead features that fit it best, as a share of it."""
    number = min(int(dead.sum()), max(1, rest.shape[1] // 2))
    features = keep_largest(hidden[:, dead], number)
    left = (rest - features @ w_dec[dead]).square().sum(-1).mean()
    return left / rest.square().sum(-1).mean().clamp_min(1e-12)


def _update(
    state: _TrainingState, gradients: Mapping[str, Tensor], settings: DictionarySettings
) -> None:
    done = state.step / settings.steps
    rate = settings.rate * min(1.0, 5 * (1 - done) + 5 / settings.steps)
    # The part of a direction's gradient that would only change its length is left out.
    w_dec = state.weights["w_dec"]
    along = (gradients["w_dec"] * w_dec).sum(-1, keepdim=True) * w_dec
    gradients = {**gradients, "w_dec": gradients["w_dec"] - along}
    for name, gradient in gradients.items():
        state.first[name] = state.first[name].lerp(gradient, 1 - BETAS[0])
        state.second[name] = state.second[name].lerp(gradient.square(), 1 - BETAS[1])
        mean = state.first[name] / (1 - BETAS[0] ** state.step)
        size = (state.second[name] / (1 - BETAS[1] ** state.step)).sqrt() + EPS
        state.weights[name] = state.weights[name] - rate * mean / size
    w_dec = state.weights["w_dec"]
    state.weights["w_dec"] = w_dec / w_dec.norm(dim=-1, keepdim=True)


def _finish(
    state: _TrainingState, settings: DictionarySettings, site: str, about: Mapping[str, Any]
) -> Dictionary:
    """The dictionary of states as they are: x / s in, and s times what comes out.

    Features are scaled by s, so that directions keep the length 1.
    """
    w, scale = state.weights, state.scale
    k, threshold = settings.k, None
    if settings.rule == "batchtopk":
        k, threshold = None, (state.threshold * scale).expand(settings.size).clone()
    own = (w["w_enc"], w["b_enc"] * scale, w["w_dec"], w["b_dec"] * scale)
    notes = {"model_name": about["model"], "training": about["settings"]}
    return Dictionary(*(x.detach().clone() for x in own), k, threshold, site, notes)


def _log(folder: Path, line: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _cut_log(folder: Path, step: int) -> None:
    """Leave out what the log says of steps that are taken again."""
    if (folder / LOG).is_file():
        lines = (folder / LOG).read_text("utf-8").splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        with replace_file(folder / LOG) as draft:
            draft.write_text("".join(kept), encoding="utf-8")


_GROUPS = ("weights", "first", "second")


def _save(folder: Path, state: _TrainingState, about: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    tensors = {f"{group}.{n}": x for group in _GROUPS for n, x in getattr(state, group).items()}
    tensors |= {name: getattr(state, name) for name in ("unfired", "scale", "threshold")}
    notes = {"unmask.dictionary": FORMAT, "about": json.dumps(about)}
    notes |= {"step": str(state.step), "place": json.dumps(state.place)}
    with replace_file(folder / STATE) as draft:
        save_file({name: x.cpu().contiguous() for name, x in tensors.items()}, draft, notes)
    write_json(folder / "settings.json", about)


def _resume(folder: Path, about: Mapping[str, Any], device: torch.device) -> _TrainingState | None:
    """The state that a folder holds; None of one that is new."""
    if not (folder / STATE).is_file():
        return None
    tensors, notes = read_tensors(folder / STATE, "a dictionary in training", "train it anew")
    before = parse_json(notes.get("about", "null"), f"{folder / STATE}, about")
    if notes.get("unmask.dictionary") != FORMAT or before != about:
        raise UserError(
            f"{folder} holds a dictionary in training with other settings ({before}): expected "
            f"{dict(about)}; choose another folder, or remove this one."
        )
    step = int(notes["step"])
    _cut_log(folder, step)
    tensors = {name: x.to(device) for name, x in tensors.items()}
    groups = {
        group: {n.partition(".")[2]: x for n, x in tensors.items() if n.startswith(f"{group}.")}
        for group in _GROUPS
    }
    rest: dict[str, Any] = {name: tensors[name] for name in ("unfired", "scale", "threshold")}
    place = parse_json(notes["place"], f"{folder / STATE}, place")
    rest |= groups
    return _TrainingState(**rest, step=step, place=(place[0], place[1]))
