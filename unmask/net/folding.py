"""The time folded into a network's weights: for one time, adaLN is a matter of constants.

With the condition fixed, a modulated norm is a norm with another weight and a bias, and a gate
scales the rows of the matrix before it. What is added to the stream, and so the meaning of every
site, stays the same.
"""

from dataclasses import replace

import torch
from torch import Tensor

from unmask.net.conditioning import ConditionInput
from unmask.net.config import NetConfig
from unmask.net.counts import fill_network
from unmask.net.transformer import Transformer


@torch.no_grad()
def fold_time(net: Transformer, t: float, label: int | None = None) -> Transformer:
    """The network for one time, and class, with plain blocks; without adaLN it is `net` itself.

    Args:
        net: A network with `adaln`.
        t: As the network takes it: t itself or sigma, by its `time_input`.
        label: A class, for networks that take one.

    Weights that the time does not touch are shared with `net`.
    """
    config = net.config
    if config.adaln is None:
        return net
    assert isinstance(net.time, ConditionInput)
    device = net.embedding.weight.device
    own = {name: x for name, x in net.state_dict().items() if not name.startswith("time.")}
    classes = None if label is None else torch.tensor([label], device=device)
    condition = net.time(torch.tensor([t], device=device), classes)[0]
    plain = replace(
        config, adaln=None, classes=None, time=False, time_input="t", norm_bias=True
    )  # the norms' biases are the shifts

    def split(prefix: str, parts: int) -> tuple[Tensor, ...]:
        weight, bias = (own.pop(f"{prefix}modulation.{kind}") for kind in ("weight", "bias"))
        return (weight @ condition + bias).chunk(parts)

    def fold_norm(name: str, shift: Tensor, scale: Tensor) -> None:
        own[f"{name}.weight"] = own[f"{name}.weight"] * (1 + scale)
        own[f"{name}.bias"] = shift.clone()

    def gate(name: str, by: Tensor) -> None:
        own[f"{name}.weight"] = by[:, None] * own[f"{name}.weight"]
        if f"{name}.bias" in own:
            own[f"{name}.bias"] = by * own[f"{name}.bias"]

    for layer in range(config.layers):
        prefix = f"layers.{layer}."
        attn_shift, attn_scale, attn_gate, mlp_shift, mlp_scale, mlp_gate = split(prefix, 6)
        fold_norm(f"{prefix}attn_norm", attn_shift, attn_scale)
        gate(f"{prefix}attn.out", attn_gate)
        fold_norm(f"{prefix}mlp_norm", mlp_shift, mlp_scale)
        gate(f"{prefix}mlp.down", mlp_gate)
    fold_norm("norm", *split("norm.", 2))
    return fill_network(plain, own).requires_grad_(False).eval()


@torch.no_grad()
def unfold_time(net: Transformer, config: NetConfig) -> Transformer:
    """A network with adaLN that computes what `net` does at every time: modulations are constant.

    `config` is that of `net` with `adaln`; its norms have no biases, which become shifts.
    """
    width = config.adaln
    assert width is not None and net.config.norm_bias
    own, weight = net.state_dict(), net.embedding.weight
    zero, one = weight.new_zeros(config.width), weight.new_ones(config.width)

    def add(prefix: str, *constants: Tensor) -> None:
        bias = torch.cat(constants)
        own[f"{prefix}modulation.weight"] = weight.new_zeros(len(bias), width)
        own[f"{prefix}modulation.bias"] = bias

    for layer in range(config.layers):
        prefix = f"layers.{layer}."
        attn, mlp = (own.pop(f"{prefix}{name}_norm.bias") for name in ("attn", "mlp"))
        add(prefix, attn, zero, one, mlp, zero, one)
    add("norm.", own.pop("norm.bias"), zero)
    with torch.device("meta"):
        time = ConditionInput(config).state_dict()
    own |= {f"time.{name}": weight.new_zeros(empty.shape) for name, empty in time.items()}
    return fill_network(config, own).requires_grad_(False).eval()
