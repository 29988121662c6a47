"""AdamW with decay groups, Muon for layers' matrices on request; rates, clipping, an average."""

import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unmask.base.errors import UserError
from unmask.training.parallel import full_tensor, is_sharded, local_shard
from unmask.training.recipe import OptimiserSettings, ScheduleSettings
from unmask.training.tables import OPTIMISERS

Named = list[tuple[str, nn.Parameter]]


class Optimiser:
    """Moves the parameters along their gradients; a bad step is skipped on the device itself."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], settings: OptimiserSettings):
        self.settings = settings
        self.named: Named = [(name, weight) for name, weight in named if weight.requires_grad]
        self.parameters = [weight for _, weight in self.named]
        self.parts = split_parameters(self.named, settings)
        is_own = settings.name in OPTIMISERS.own
        sharded = any(is_sharded(weight) for weight in self.parameters)
        kinds = {weight.device.type for weight in self.parameters}
        # The fused AdamW can divide and drop gradients itself, so that nobody waits for the device
        # to know whether a step counts. Other optimisers must be asked not to step.
        self.asks_device = (
            is_own and len(self.parts) == 1 and not sharded and kinds <= {"cpu", "cuda"}
        )
        self._prime()

    def measure(self) -> Tensor:
        """The length of the whole gradient."""
        return full_tensor(nn.utils.get_total_norm(self._gradients()))

    def set_rate(self, share: float) -> None:
        """Let the next steps have this share of the rate."""
        for part in self.parts:
            for group in part.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(self.settings.rate * share)
                else:
                    group["lr"] = self.settings.rate * share

    def step(self, norm: Tensor, bad: Tensor) -> None:
        """Move on, the gradient cut to the longest allowed, unless the step is bad."""
        longest = self.settings.clip or float("inf")
        excess = (norm / longest).clamp(min=1.0).float()
        if self.asks_device:
            (adamw,) = self.parts
            adamw.grad_scale, adamw.found_inf = excess, bad.float()  # ty: ignore
            adamw.step()
        elif not bool(bad):
            torch._foreach_mul_(self._gradients(), 1 / float(excess))
            for part in self.parts:
                part.step()
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the optimisers' state by the name of its parameter."""
        names: dict[Tensor, str] = {weight: name for name, weight in self.named}
        return {
            f"{names[weight]}.{key}": value
            for part in self.parts
            for weight, state in part.state.items()
            for key, value in state.items()
            if isinstance(value, Tensor)
        }

    def _gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self.parameters if weight.grad is not None]

    def _prime(self) -> None:
        """Let the optimisers lay out their state now, all zeros, so that a checkpoint can fill it.

        One step of no length on no gradient; then what it counted is forgotten. torch's own helpers
        (`torch.distributed.checkpoint.state_dict`) take the same step inside, but want the module
        that owns the parameters, leave their count at 1 and put another tensor in the place of the
        rate, which a captured step would not read.
        """
        for weight in self.parameters:
            weight.grad = torch.zeros_like(weight)
        self.set_rate(0.0)
        for part in self.parts:
            part.step()
            part.zero_grad(set_to_none=True)
        self.set_rate(1.0)
        for value in self.tensors().values():
            value.zero_()


def _make_theirs(named: Named, settings: OptimiserSettings) -> torch.optim.Optimizer:
    """An optimiser of another package: what its function makes, or a class of torch's kind."""
    make = OPTIMISERS.find(settings.name)
    if isinstance(make, type) and issubclass(make, torch.optim.Optimizer):
        return make([weight for _, weight in named], lr=settings.rate)  # ty: ignore
    made = make(named, settings)
    if not isinstance(made, torch.optim.Optimizer):
        raise UserError(
            f"the optimiser {settings.name} returned {type(made).__name__}: expected a "
            "torch.optim.Optimizer over the parameters that it was given."
        )
    return made


def split_parameters(named: Named, settings: OptimiserSettings) -> list[torch.optim.Optimizer]:
    """Matrices decay, vectors do not; with Muon the layers' matrices get an optimiser of their own.

    Muon's update is given the size of AdamW's, so that one rate fits both.
    """
    if settings.name not in OPTIMISERS.own:
        return [_make_theirs(named, settings)]
    inner = [
        weight
        for name, weight in named
        if settings.name == "muon" and ".layers." in f".{name}" and weight.ndim == 2
    ]
    taken = {id(weight) for weight in inner}
    rest = [weight for _, weight in named if id(weight) not in taken]
    groups = [
        {"params": [weight for weight in rest if weight.ndim >= 2], "weight_decay": settings.decay},
        {"params": [weight for weight in rest if weight.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    parts: list[torch.optim.Optimizer] = []
    if groups:
        betas = (settings.betas[0], settings.betas[1])
        # On CUDA the rate is a tensor, which a captured step reads anew each time.
        device, on_cuda = rest[0].device, rest[0].device.type == "cuda"
        rate = torch.tensor(settings.rate, device=device) if on_cuda else settings.rate
        parts.append(
            torch.optim.AdamW(groups, rate, betas, settings.eps, fused=True, capturable=on_cuda)
        )
    if inner:
        parts.append(
            torch.optim.Muon(
                inner, lr=settings.rate, weight_decay=settings.decay, adjust_lr_fn="match_rms_adamw"
            )
        )
    return parts


def rate_at(step: int, total: int | None, schedule: ScheduleSettings) -> float:
    """The rate of a step (from 0) as a share of the highest; `total` None: not known yet.

    It rises in a straight line over the warm-up. Then `cosine` falls along half a wave to the floor
    at the last step, `wsd` stays and falls in a straight line over its last steps.
    """
    if step < schedule.warmup:
        return (step + 1) / (schedule.warmup + 1)
    if schedule.name == "constant" or total is None:
        return 1.0
    start = schedule.warmup
    if schedule.name == "wsd":
        start = max(start, total - round(schedule.decay * total))
    left = 1.0 - min(1.0, max(0.0, (step - start) / max(1, total - 1 - start)))
    shape = left if schedule.name == "wsd" else (1 - math.cos(math.pi * left)) / 2
    return schedule.floor + (1 - schedule.floor) * shape


class Average:
    """A moving average of the parameters."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], decay: float):
        self.decay = decay
        self.named: Named = [(name, weight) for name, weight in named if weight.requires_grad]
        self.kept = [weight.detach().clone() for _, weight in self.named]

    @torch.no_grad()
    def update(self, bad: Tensor) -> None:
        """Take the newest weights in, unless the step was bad; nothing waits for the device."""
        share = torch.where(bad, 0.0, 1 - self.decay)
        now = [local_shard(weight) for _, weight in self.named]
        kept = [local_shard(kept) for kept in self.kept]
        torch._foreach_lerp_(kept, now, [share] * len(kept))

    def tensors(self) -> dict[str, Tensor]:
        return {name: kept for (name, _), kept in zip(self.named, self.kept, strict=True)}

    @contextmanager
    def in_place(self) -> Generator[None]:
        """Inside the block the network has the average's weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for (_, weight), kept in zip(self.named, self.kept, strict=True):
            current, average = local_shard(weight), local_shard(kept)
            before = current.clone()
            current.copy_(average)
            average.copy_(before)
