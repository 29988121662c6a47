"""Linear probes that say whether a half-written text has an attribute, for guidance by them.

A probe reads the mean state of a row at one site of the network it guides and adds a weight for
each of its numbers: log p(y | tokens) = log sigmoid(w . mean state + b). It is trained on texts
noised as the sampler meets them, at every share of masks alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.files import replace_file
from unmask.base.reading import read_tensors
from unmask.base.streams import RowStreams
from unmask.net.model import Model
from unmask.net.sites import find_sites
from unmask.sampling.canvas import Prompt, encode_prompt, list_prompt_rows

FORMAT = "1"
ROWS_AT_ONCE = 64


@dataclass(frozen=True, repr=False)
class StateProbe:
    """log p(attribute | tokens) from the mean state of a row at a site."""

    model: Model
    site: str
    weight: Float[Tensor, "D"]
    bias: float
    runs_network = True
    """Its rows count as network calls."""

    def __repr__(self) -> str:
        return f"StateProbe({self.model.name}, {self.site}, {len(self.weight)} weights)"

    def __call__(self, tokens: Int[Tensor, "N L"], t: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        means = [
            find_mean_state(self.model, self.site, rows) for rows in tokens.split(ROWS_AT_ONCE)
        ]
        return self._read(torch.cat(means))

    def expand(self, tokens: Int[Tensor, "N L"], t: Float[Tensor, "N"]) -> Float[Tensor, "N L V"]:
        """What each token at each position adds to log p, to first order in its embedding."""
        net = self.model.net
        table = net.embedding.weight
        with torch.inference_mode(False), torch.enable_grad():
            tokens = tokens.clone()
            leaf = table.detach()[tokens].requires_grad_()
            with net.patch({"embed": lambda x: leaf.to(x.dtype)}):
                mean = find_mean_state(self.model, self.site, tokens)
            (slope,) = torch.autograd.grad(self._read(mean).sum(), leaf)
        slope, table = slope.double(), table.detach().double()
        gains = slope @ table[: net.config.logit_rows].T
        return gains - (slope * table[tokens]).sum(-1, keepdim=True)

    def _read(self, mean: Float[Tensor, "N D"]) -> Float[Tensor, "N"]:
        weight = self.weight.to(mean.device)
        return torch.nn.functional.logsigmoid(mean.double() @ weight + self.bias)

    def save(self, path: str | Path) -> None:
        """Write it as one safetensors file; the network is not part of it."""
        from safetensors.torch import save_file

        tensors = {
            "weight": self.weight.cpu(),
            "bias": torch.tensor([self.bias], dtype=torch.float64),
        }
        with replace_file(path) as draft:
            save_file(tensors, draft, {"unmask.probe": FORMAT, "site": self.site})

    @classmethod
    def load(cls, path: str | Path, model: Model) -> "StateProbe":
        """The probe in a file, for the model it was trained on."""
        if not Path(path).is_file():
            raise UserError(f"{path} is not there: expected the file of a trained probe.")
        tensors, notes = read_tensors(path, "a probe", "train it anew")
        if notes.get("unmask.probe") != FORMAT or set(tensors) != {"weight", "bias"}:
            raise UserError(f"{path} does not hold a probe of this version: train it anew.")
        weight, width = tensors["weight"].double(), model.net.config.width
        try:
            (site,) = find_sites(notes.get("site", ""), model.net.config.layers)
            is_other = weight.shape != (width,) or tensors["bias"].shape != (1,)
        except UserError:
            is_other = True
        if is_other:
            raise UserError(
                f"the probe in {path} reads {weight.numel()} numbers at "
                f"{notes.get('site', 'no site')}, but the model {model.name} has {width} numbers "
                f"in {model.net.config.layers} layers: use the model it was trained on."
            )
        return cls(model, site, weight, float(tensors["bias"]))


def train_probe(
    model: Model,
    texts: Sequence[Prompt],
    labels: Sequence[bool],
    site: str | None = None,
    draws: int = 4,
    penalty: float = 1e-3,
    seed: int = 0,
) -> StateProbe:
    """A probe that tells texts with an attribute from others, however much of them is masked.

    Args:
        model: A masked model, whose states are read.
        texts: Texts or rows of token ids, cut at the model's context.
        labels: Whether each has the attribute.
        site: Where states of the model's width are read; by default after the middle layer.
        draws: Noised versions of each text.
        penalty: Of the squared weights, which act on standardised states.
        seed: Of the noise.
    """
    labels = [bool(label) for label in labels]
    rows = [encode_prompt(model, text) for text in list_prompt_rows(texts)]
    if len(rows) != len(labels) or len(set(labels)) < 2 or not all(rows):
        raise UserError(
            f"{len(rows)} texts with {len(labels)} labels were given, {sum(labels)} of them with "
            "the attribute: expected a label for each text, some with and some without, and no "
            "text empty."
        )
    mask_id, config = model.require_mask(), model.net.config
    (site,) = find_sites(site or f"layers.{(config.layers - 1) // 2}.resid_out", config.layers)
    states = []
    for draw in range(draws):
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = [row[: config.context] for row in rows[start : start + ROWS_AT_ONCE]]
            streams = RowStreams.make(seed, [(draw, start + i) for i in range(len(some))])
            tokens, real = _noise(some, mask_id, streams)
            with torch.inference_mode():
                mean = find_mean_state(model, site, tokens.to(model.device), real.to(model.device))
            states.append(mean.double().cpu())
    targets = torch.tensor(labels * draws).double()
    weight, bias = fit_logistic(torch.cat(states).clone(), targets, penalty)
    return StateProbe(model, site, weight, bias)


def _noise(
    rows: list[list[int]], mask_id: int, streams: RowStreams
) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """Rows with a share of their tokens masked, drawn evenly, and which positions are theirs."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [mask_id] * (longest - len(row)) for row in rows])
    real = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
    hidden = streams.at("values").uniform(longest) < streams.at("share").uniform(1)
    return torch.where(hidden, mask_id, tokens), real


def find_mean_state(
    model: Model, site: str, tokens: Int[Tensor, "B L"], real: Bool[Tensor, "B L"] | None = None
) -> Float[Tensor, "B D"]:
    """The mean over a row's positions of its states at a site, masks included."""
    net = model.net
    with net.capture(site) as states:
        net.run_tokens(tokens, real, t=model.convert_time(model.find_time(tokens, real)))
    x = states[site]
    if x.ndim != 3 or x.shape[:2] != tokens.shape or x.shape[2] != net.config.width:
        raise UserError(
            f"the site {site} has the shape {tuple(x.shape)}: expected a state of "
            f"{net.config.width} numbers for each position, such as layers.0.resid_out."
        )
    if real is None:
        return x.mean(1)
    return (x * real[..., None]).sum(1) / real.sum(-1, keepdim=True)


def fit_logistic(
    states: Float[Tensor, "N D"], targets: Float[Tensor, "N"], penalty: float
) -> tuple[Float[Tensor, "D"], float]:
    """Weights and bias of a logistic regression with a penalty on standardised weights."""
    mean, spread = states.mean(0), states.std(0) + 1e-6
    x = (states - mean) / spread
    parameters = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([parameters], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = x @ parameters[:-1] + parameters[-1]
        error = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
        total = error + penalty * parameters[:-1].square().sum()
        total.backward()
        return total

    optimiser.step(loss)
    weight = parameters.detach()[:-1] / spread
    return weight, float(parameters.detach()[-1] - weight @ mean)
