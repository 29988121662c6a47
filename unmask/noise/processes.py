"""The kinds of noise by name: the one table that recipes, models and samplers look into."""

from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError, suggest
from unmask.noise.gaussian import Gaussian
from unmask.noise.hybrid import Hybrid
from unmask.noise.masked import Masked
from unmask.noise.process import NoiseKind, Process
from unmask.noise.settings import NoiseConfig
from unmask.noise.uniform import Uniform

PROCESSES: dict[str, type[NoiseKind]] = {
    "masked": Masked,
    "uniform": Uniform,
    "hybrid": Hybrid,
    "gaussian": Gaussian,
}
"""A process of one's own is added here, by any name, and works in recipes and models."""


def get_noise(kind: str) -> type[NoiseKind]:
    """The noise of that name."""
    if kind not in PROCESSES:
        raise UserError(f"noise {kind!r} is unknown: {suggest(kind, PROCESSES)}")
    return PROCESSES[kind]


def make_process(
    kind: str, config: NoiseConfig, num_logits: int, mask_id: int | None = None
) -> Process:
    """The discrete process of that kind, for a network with that many rows of logits."""
    process = PROCESSES.get(kind)
    if process is None or not issubclass(process, Process):
        discrete = [name for name, other in PROCESSES.items() if issubclass(other, Process)]
        raise UserError(f"a {kind} model has no noise on tokens: expected {' or '.join(discrete)}.")
    return process.from_config(config, config.make_closed_schedule(), num_logits, mask_id)


def make_gaussian(config: NoiseConfig, table: Float[Tensor, "V d"]) -> Gaussian:
    """The Gaussian process over a table of token vectors."""
    return Gaussian(table, config.make_schedule("sigmoid"), config.evidence)
