"""`unmask.Dictionary`: the features of a site, sparse directions whose sums are its states.

    hidden = (x − b_dec) W_enc + b_enc          [N, F]
    features = hidden where it is among the k largest of its state (TopK), or above a threshold, and
               above 0; 0 elsewhere
    states = features W_dec + b_dec             [N, D]

BatchTopK dictionaries are trained with the k largest on average over a batch and used with the
threshold that gives as many (Bussmann et al. 2024). Files are those of SAELens: `cfg.json` and
`sae_weights.safetensors`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.extras import Shown
from unmask.base.files import create_folder, write_json
from unmask.base.reading import read_json_object, read_tensors

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
_NAMES = {"W_enc": "w_enc", "b_enc": "b_enc", "W_dec": "w_dec", "b_dec": "b_dec"}
FORMAT = "6.0.0"
"""The version of SAELens whose format files have: older ones are read in another way there."""
_RULES = {"topk": "k", "jumprelu": "threshold", "standard": None}
"""Architectures of SAELens that are read, and what chooses the features that fire."""
_PLAIN = {"normalize_activations": "none", "reshape_activations": "none"}
"""Settings of SAELens that a dictionary here has no other values of."""


@dataclass(frozen=True, repr=False, eq=False)
class Dictionary(Shown):
    """F features of states of D numbers."""

    w_enc: Float[Tensor, "D F"]
    b_enc: Float[Tensor, "F"]
    w_dec: Float[Tensor, "F D"]
    """The direction that each feature adds to a state."""
    b_dec: Float[Tensor, "D"]
    k: int | None = None
    """How many features of a state fire at most; None where a threshold says it."""
    threshold: Float[Tensor, "F"] | None = None
    """Above what a feature fires; None where k says it."""
    site: str = ""
    """Where its states are read."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What else its file says: how it was trained, on what model."""

    def __repr__(self) -> str:
        chosen = f"the {self.k} largest" if self.k is not None else "those above a threshold"
        width, number = self.w_enc.shape
        return f"Dictionary({number:,} features of {width} numbers, {chosen}, at {self.site!r})"

    @property
    def size(self) -> int:
        """How many features it has."""
        return self.w_enc.shape[1]

    def encode(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N F"]:
        """How strongly each feature fires; 0 of all but a few."""
        hidden = (x.to(self.w_enc.dtype) - self.b_dec) @ self.w_enc + self.b_enc
        if self.threshold is not None:
            return hidden.relu() * (hidden > self.threshold)
        return hidden.relu() if self.k is None else keep_largest(hidden, self.k)

    def decode(self, features: Float[Tensor, "*N F"]) -> Float[Tensor, "*N D"]:
        """The states that features add up to."""
        return features @ self.w_dec + self.b_dec

    def reconstruct(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N D"]:
        """States as the features have them, in the dtype of what was given.

        Args:
            x: States of the dictionary's site; in a patch, those that pass it.

        >>> from unmask.dictionaries.dictionary import make_random_dictionary
        >>> model = unmask.load("reversal-mdm", device="cpu")
        >>> random = make_random_dictionary(256, 512, 16)
        >>> with model.net.patch({"layers.2.resid_out": random.reconstruct}):
        ...     logits = model.logits("We sat down beside[MASK]")
        """
        return self.decode(self.encode(x)).to(x.dtype)

    def to(self, device: torch.device | str) -> Self:
        """The dictionary on another device."""
        tensors = {name: getattr(self, name).to(device) for name in _NAMES.values()}
        threshold = None if self.threshold is None else self.threshold.to(device)
        return replace(self, **tensors, threshold=threshold)

    def save(self, folder: str | Path) -> None:
        """Write it as a folder that SAELens opens (`SAE.load_from_disk`)."""
        from safetensors.torch import save_file

        tensors = {name: getattr(self, own) for name, own in _NAMES.items()}
        if self.threshold is not None:
            tensors["threshold"] = self.threshold
        rule = (
            "topk" if self.k is not None else "standard" if self.threshold is None else "jumprelu"
        )
        config = {
            "architecture": rule,
            "d_in": self.w_enc.shape[0],
            "d_sae": self.size,
            "dtype": str(self.w_enc.dtype).removeprefix("torch."),
            "device": "cpu",
            "apply_b_dec_to_input": True,
            **_PLAIN,
            "metadata": {**self.notes, "hook_name": self.site, "sae_lens_version": FORMAT},
        }
        if self.k is not None:
            config |= {"k": self.k, "rescale_acts_by_decoder_norm": False}
        with create_folder(check_path(folder, "a dictionary's folder")) as draft:
            write_json(draft / CONFIG, config)
            save_file({name: x.cpu().contiguous() for name, x in tensors.items()}, draft / WEIGHTS)

    @classmethod
    def load(cls, folder: str | Path, device: torch.device | str = "cpu") -> "Dictionary":
        """A dictionary from a folder in SAELens' format (topk, jumprelu or standard), or by the
        name of a shipped model, `reversal-mdm`.

        What SAELens does at run time is folded into the weights: features are equal.
        """
        folder = shipped_dictionaries().get(str(folder)) or check_path(
            folder, "a dictionary's folder"
        )
        for name in (CONFIG, WEIGHTS):
            if not (folder / name).is_file():
                raise UserError(
                    f"{folder} has no {name}: expected a folder of a dictionary in SAELens' "
                    "format, such as `Dictionary.save` writes."
                )
        config = read_json_object(folder / CONFIG)
        rule = config.get("architecture")
        _check_config(folder, config)
        tensors, _ = read_tensors(folder / WEIGHTS, "a dictionary", "fetch or train it anew")
        _check_tensors(folder, config, tensors)
        own = {name: tensors[each].float() for each, name in _NAMES.items()}
        if not config.get("apply_b_dec_to_input", True):
            # x W_enc + b = (x − b_dec) W_enc + (b + b_dec W_enc)
            own["b_enc"] = own["b_enc"] + own["b_dec"] @ own["w_enc"]
        if rule == "topk" and config.get("rescale_acts_by_decoder_norm"):
            # Features are counted in lengths of what they add; their directions have length 1.
            norms = own["w_dec"].norm(dim=-1)
            own["w_enc"], own["b_enc"] = own["w_enc"] * norms, own["b_enc"] * norms
            own["w_dec"] = own["w_dec"] / norms[:, None]
        notes = dict(config.get("metadata") or {})
        site = str(notes.pop("hook_name", None) or "")
        notes.pop("sae_lens_version", None)
        threshold = tensors["threshold"].float() if rule == "jumprelu" else None
        k = int(config["k"]) if rule == "topk" else None
        return cls(**own, k=k, threshold=threshold, site=site, notes=notes).to(device)


def shipped_dictionaries() -> dict[str, Path]:
    """The dictionaries that came with the package, by the name of their model."""
    folder = Path(str(files("unmask.assets"))) / "features"
    return {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{CONFIG}"))}


def check_path(path: object, what: str) -> Path:
    """A path, or a sentence about what was given in its place."""
    if not isinstance(path, str | Path) or "\0" in str(path):
        raise UserError(f"{what} is {path!r:.60}: expected a path.")
    return Path(path)


def keep_largest(hidden: Float[Tensor, "*N F"], k: int) -> Float[Tensor, "*N F"]:
    """The k largest numbers of each row that are above 0, and 0 elsewhere."""
    best = hidden.topk(k, dim=-1)
    return torch.zeros_like(hidden).scatter(-1, best.indices, best.values.relu())


def keep_largest_on_average(hidden: Float[Tensor, "N F"], k: int) -> Float[Tensor, "N F"]:
    """The N · k largest numbers of a batch that are above 0, and 0 elsewhere."""
    flat = hidden.relu().flatten()
    best = flat.topk(min(k * len(hidden), flat.numel()))
    return torch.zeros_like(flat).scatter(0, best.indices, best.values).view_as(hidden)


def make_random_dictionary(width: int, size: int, k: int, seed: int = 0) -> Dictionary:
    """A dictionary of random directions of length 1: what any dictionary is held against."""
    from unmask.base.seeds import torch_stream

    directions = torch.randn(size, width, generator=torch_stream(seed, "directions"))
    directions = directions / directions.norm(dim=-1, keepdim=True)
    zeros = torch.zeros(size), torch.zeros(width)
    return Dictionary(directions.T.clone(), zeros[0], directions, zeros[1], k=k)


def match_features(one: Dictionary, other: Dictionary) -> Float[Tensor, "F"]:
    """The cosine of each feature's direction and its partner's, in the pairing that fits best."""
    from scipy.optimize import linear_sum_assignment

    ours, theirs = (
        torch.nn.functional.normalize(each.w_dec.cpu(), dim=-1) for each in (one, other)
    )
    cosines = ours @ theirs.T
    rows, columns = linear_sum_assignment(cosines.numpy(), maximize=True)
    return cosines[torch.as_tensor(rows), torch.as_tensor(columns)]


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    rule, problems = config.get("architecture"), []
    if rule not in _RULES:
        problems.append(f"the architecture is {rule!r:.60}, expected {', '.join(_RULES)}")
    for name, value in _PLAIN.items():
        if config.get(name, value) != value:
            problems.append(f"{name} is {config[name]!r:.60}, expected {value!r}")
    k, size = config.get("k"), config.get("d_sae")
    if rule == "topk" and not (type(k) is int and type(size) is int and 0 < k <= size):
        problems.append(f"k is {k!r:.60} of {size!r:.60} features")
    if problems:
        raise UserError(
            f"the dictionary in {folder} is not one that is read: {'; '.join(problems)}."
        )


def _check_tensors(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    width, size = config.get("d_in"), config.get("d_sae")
    shapes = {"W_enc": (width, size), "b_enc": (size,), "W_dec": (size, width), "b_dec": (width,)}
    if config.get("architecture") == "jumprelu":
        shapes["threshold"] = (size,)
    for name, shape in shapes.items():
        shown = tuple(tensors[name].shape) if name in tensors else None
        if shown != shape:
            raise UserError(
                f"{folder / WEIGHTS} has {name} of shape {shown}, and {CONFIG} says {shape}: "
                "fetch or train the dictionary anew."
            )
