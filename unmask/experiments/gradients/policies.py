"""Policies to try surrogates on: tables without shared parameters, and small networks.

| policy     | logits                                                                            |
|------------|-----------------------------------------------------------------------------------|
| `table`    | drawn, a table of their own for every canvas: parameters are the logits           |
| `language` | such a table that holds the conditionals of a drawn language: a perfect model     |
| `network`  | a drawn Transformer's, all spread alike: parameters are its weights               |
| `trained`  | a Transformer's that was fitted to the conditionals of a drawn language           |
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call, jacrev, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from unmask.base.seeds import torch_stream
from unmask.experiments.gradients.canvases import Lattice
from unmask.net.config import NetConfig
from unmask.net.transformer import Transformer

FITTING = {"steps": 120, "rate": 2e-2}
"""How networks are fitted to languages."""

CanvasLogits = Float[Tensor, "R L V"]


def draw_policies(
    name: str, lattice: Lattice, scale: float, seeds: Sequence[int]
) -> list[tuple[CanvasLogits, Float[Tensor, "Q P"] | None]]:
    """Each policy's logits, and how they move with its parameters; None where they are these."""
    shared = (name, scale, lattice.tokens, lattice.length)
    streams = [torch_stream(seed, *shared) for seed in seeds]
    if name == "table":
        shape = (lattice.num_rows, lattice.length, lattice.tokens)
        drawn = (torch.randn(shape, generator=each, dtype=torch.float64) for each in streams)
        return [(scale * logits, None) for logits in drawn]
    if name == "language":
        return [(find_conditionals(lattice, scale, each), None) for each in streams]
    nets = [make_small_network(lattice, each) for each in streams]
    if name == "trained":
        fit(nets, lattice, [find_conditionals(lattice, scale, each) for each in streams])
    policies = []
    for net in nets:
        logits = _read(net, lattice).detach()
        factor = scale / logits.std() if name == "network" else 1.0
        policies.append((factor * logits, factor * find_jacobian(net, lattice)))
    return policies


def find_conditionals(lattice: Lattice, scale: float, stream: torch.Generator) -> CanvasLogits:
    """Log-probabilities of each token at each mask, given what a canvas shows of a drawn language.

    Texts have log-probabilities that are normal with deviation `scale`. With tokens of the prompt
    hidden the language is another one.
    """
    many = len(lattice.prompt_rows)
    drawn = torch.randn(many, len(lattice.texts), generator=stream, dtype=torch.float64)
    chance = (scale * drawn).softmax(-1)
    canvases = torch.cat((lattice.canvases, lattice.canvases[-1:].expand(many - 1, -1)))
    shown = canvases[:, None] < lattice.mask  # [R, 1, L]
    agrees = ((canvases[:, None] == lattice.texts) | ~shown).all(-1)  # [R, X]
    language = torch.zeros(lattice.num_rows, dtype=torch.long)
    language[lattice.prompt_rows] = torch.arange(many)
    weights = agrees * chance[language]  # [R, X]
    tokens = torch.nn.functional.one_hot(lattice.texts, lattice.tokens).double()
    mass = torch.einsum("rx,xlv->rlv", weights, tokens)
    # A written token is certain, and nothing reads it: any finite logits will do there.
    return mass.clamp(min=1e-30).log().masked_fill(shown[:, 0, :, None], 0.0)


def make_small_network(lattice: Lattice, stream: torch.Generator) -> Transformer:
    """A small Transformer whose random logits depend on all that it reads."""
    config = NetConfig(
        vocab_size=lattice.tokens + 1 + lattice.prompt,
        num_logits=lattice.tokens,
        width=12,
        layers=2,
        heads=2,
        mlp_width=24,
        context=lattice.prompt + lattice.length,
        positions="learned",
        mlp="gelu",
    )
    net = Transformer(config, int(torch.randint(2**31, (), generator=stream))).double()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim > 1:
                inner = 1 if name.startswith(("embedding", "position")) else weight.shape[1]
                weight.normal_(0.0, inner**-0.5, generator=stream)
    return net


def fit(nets: Sequence[Transformer], lattice: Lattice, wanted: Sequence[CanvasLogits]) -> None:
    """Fit networks to conditionals, one each, every canvas and mask counting alike."""
    rows = _list_inputs(lattice)
    masked = rows[:, lattice.prompt :] == lattice.mask
    known = masked.any(-1)
    rows, masked = rows[known], masked[known]
    targets = torch.stack([each[known].softmax(-1) for each in wanted]).float()
    stacked, _ = stack_module_state([net.float() for net in nets])

    def find_loss(weights: dict[str, Tensor], target: Tensor) -> Tensor:
        logits = functional_call(nets[0], weights, (rows,))[:, lattice.prompt :]
        losses = -(target * logits.log_softmax(-1)).sum(-1)
        return (losses * masked).sum() / masked.sum()

    optimiser = torch.optim.Adam(stacked.values(), lr=FITTING["rate"])
    with sdpa_kernel(SDPBackend.MATH):
        for step in range(int(FITTING["steps"])):
            for group in optimiser.param_groups:
                group["lr"] = FITTING["rate"] * (1 - step / FITTING["steps"])
            loss = vmap(find_loss)(stacked, targets).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    for number, net in enumerate(nets):
        net.load_state_dict({name: each[number] for name, each in stacked.items()})
        net.double()


def find_jacobian(net: Transformer, lattice: Lattice) -> Float[Tensor, "Q P"]:
    """Derivatives of all logits in all weights; Q runs over rows, positions and tokens."""
    weights = {name: each.detach() for name, each in net.named_parameters()}

    def read_one(weights: dict[str, Tensor], row: Int[Tensor, "L"]) -> Tensor:
        return functional_call(net, weights, (row[None],))[0, lattice.prompt :]

    with sdpa_kernel(SDPBackend.MATH):  # the other kernels have no rule for vmap
        parts = vmap(partial(jacrev(read_one), weights))(_list_inputs(lattice))
    flat = [part.flatten(3) for part in parts.values()]  # [R, L, V, p]
    return torch.cat(flat, dim=-1).flatten(0, 2)


def measure_fit(lattice: Lattice, logits: CanvasLogits, wanted: CanvasLogits) -> float:
    """Mean KL(language || policy) over canvases and masks, in nats."""
    canvases = _list_inputs(lattice)[:, lattice.prompt :]
    gap = wanted.log_softmax(-1) - logits.log_softmax(-1)
    return float((wanted.softmax(-1) * gap).sum(-1)[canvases == lattice.mask].mean())


def _read(net: Transformer, lattice: Lattice) -> CanvasLogits:
    return net(_list_inputs(lattice))[:, lattice.prompt :]


def _list_inputs(lattice: Lattice) -> Int[Tensor, "R L"]:
    """What a network reads for each row: the prompt, tokens of it hidden or not, and the canvas."""
    prompt = lattice.mask + 1 + torch.arange(lattice.prompt)
    hidden = torch.where(lattice.hidden_prompts, lattice.mask, prompt)
    shown = prompt.expand(lattice.num_canvases - 1, -1)
    canvases = lattice.canvases
    starts: Sequence[Tensor] = [canvases[-1:].expand(len(hidden), -1)]
    rows = torch.cat((shown, canvases[:-1]), 1), torch.cat((hidden, *starts), 1)
    return torch.cat(rows)
