"""An optimiser: Lion (Chen et al. 2023), from named parameters and the recipe's settings."""

import torch


class Lion(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in (each for each in group["params"] if each.grad is not None):
                kept = self.state[weight].setdefault("kept", torch.zeros_like(weight))
                weight.mul_(1 - group["lr"] * group["decay"])
                weight.sub_(group["lr"] * torch.lerp(weight.grad, kept, group["first"]).sign())
                kept.lerp_(weight.grad, 1 - group["second"])


def lion(named, settings):
    """The recipe's optimiser.rate, .betas and .decay; the loop sets the rate of each step."""
    first, second = settings.betas
    values = {"lr": settings.rate, "first": first, "second": second, "decay": settings.decay}
    return Lion([weight for _, weight in named], values)
