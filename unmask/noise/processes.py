"""The kinds of noise by name: the one table that recipes, models and samplers look into."""

from collections.abc import Iterator
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.plugins import Registry
from unmask.data.tokenizer import Tokenizer
from unmask.noise.gaussian import Gaussian
from unmask.noise.hybrid import Hybrid
from unmask.noise.masked import Masked
from unmask.noise.process import NoiseKind, Process
from unmask.noise.settings import NoiseConfig
from unmask.noise.uniform import Uniform

PROCESSES = Registry[type[NoiseKind]](
    "noise",
    {"masked": Masked, "uniform": Uniform, "hybrid": Hybrid, "gaussian": Gaussian},
    lambda thing: isinstance(thing, type) and issubclass(thing, Process),
    "a class over unmask.Process, or over one of its kinds such as unmask.Masked",
)
"""A process of one's own works under its name in recipes, models and measures."""


def make_process(
    kind: str,
    config: NoiseConfig,
    num_logits: int,
    mask_id: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> Process:
    """The discrete process of that kind, for a network with that many rows of logits."""
    process = PROCESSES.get(kind)
    if process is None or not issubclass(process, Process):
        known = PROCESSES.load_each()
        discrete = " or ".join(name for name, other in known if issubclass(other, Process))
        raise UserError(f"a {kind} model has no noise on tokens: expected {discrete}.")
    if process.settings:
        config = replace(config, settings={**process.settings, **config.settings})
    schedule = config.make_closed_schedule()
    return process.from_config(config, schedule, num_logits, mask_id, tokenizer)


def find_noise_problems(kind: str, config: NoiseConfig) -> Iterator[str]:
    """Settings of its own that a kind of noise does not have."""
    known = PROCESSES[kind].settings if kind in PROCESSES else {}
    for name in config.settings.keys() - known.keys():
        have = f"known: {', '.join(known)}" if known else "it has none"
        yield f"'noise.settings' has {name!r}, which {kind} noise does not know ({have})"


def make_gaussian(config: NoiseConfig, table: Float[Tensor, "V d"]) -> Gaussian:
    """The Gaussian process over a table of token vectors."""
    return Gaussian(table, config.make_schedule("sigmoid"), config.evidence)
