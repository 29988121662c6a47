"""The settings of what is minimised, of every objective."""

from collections.abc import Iterator
from dataclasses import dataclass

from unmask.objectives.masked import SubjectRule

PREFERENCE = "preference"
"""The objective that compares two responses."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What is minimised, and over which positions."""

    name: str = "auto"
    rate: float | None = None
    """The share of positions that `fixed_rate` masks."""
    subject: SubjectRule = "usual"
    """Under masked noise, whether the entity that stands first in a fact's line is never masked,
    masked without loss, or never masked while the other one is."""
    response_only: bool = False
    """Fine-tuning: prompts are given, never noised or predicted."""
    filling: bool = True
    """Whether the end tokens after the one that closes a row are learned as well; under `joint`,
    by the diffusion reading."""
    diffusion_weight: float = 0.3
    """`joint`: the weight of the masked loss beside the next token's, which has 1."""
    drop_prompt: float = 0.0
    """Chance that a row's whole prompt is hidden, for standard guidance."""
    contaminated: float = 0.0
    """The chance that a fact's row under masked noise shows tokens of another line's answer among
    its own. What it has to predict stays its own."""
    whole_entities: float = 0.0
    """The chance that in a fact's row under masked noise all tokens of the subject are masked
    together or not at all, and all of the object likewise."""
    anchored: bool = False
    """Whether rows of text keep to the predictions of `start.model`, in place of their tokens."""
    short: float = 0.0
    """Chance that a step's rows are cut to a length drawn evenly (SMDM's stochastic length), never
    so short that nothing is left to learn."""
    antithetic: bool = True
    """Times spread evenly over the rows of a step, all processes and micro-batches together."""
    self_condition: float = 0.5
    """Gaussian: chance that a row sees its own first guess."""
    noise_steps: int | None = None
    """Uniform and hybrid noise: the bound in so many discrete steps (D3PM). None: in
    continuous time."""
    auxiliary: float = 0.0
    """Uniform and hybrid noise: how often the plain cross-entropy is added; D3PM's is 0.001."""
    softness: float = 0.3
    """Under `curriculum`, the temperature of the soft tokens that a network reads at first; it
    falls in a straight line to 0, tokens as they are, in the first half of the training (DUO)."""
    warped: bool = False
    """Gaussian noise: times are drawn where the loss changes, by a map learned beside it (CDCD)."""
    clean_blocks: bool = False
    """Masked networks with blocks: those before a noised one are read clean, as when a text is
    written block by block (BD3-LM); a step then costs twice as much."""
    mask_inputs: float = 0.0
    """The chance that a token is read as a mask under `next_token`; what is predicted stays."""
    orders: int | None = None
    """How many orders `fixed_orders` has; the first is from left to right."""
    beta: float = 0.1
    """How sharply `preference` tells a chosen response from a rejected one; DPO's beta."""
    masks: int = 8
    """Masks of each response under `preference`, each a row that the network reads."""


def find_preference_problems(
    settings: ObjectiveSettings, name: str, has_both: bool, has_start: bool
) -> Iterator[str]:
    """What is wrong with a recipe that compares responses, or has two and compares none.

    `has_both` says whether rows have two responses, `has_start` whether there is a model to start
    from.
    """
    if has_both != (name == PREFERENCE):
        yield f"'data.source' preferences and 'objective.name' {PREFERENCE} need each other"
    elif has_both:
        if not has_start:
            yield "'objective.name' preference starts from a model: name it by 'start.model'"
        for other in ("short", "drop_prompt", "clean_blocks"):
            if getattr(settings, other):
                yield f"'objective.{other}' does not go with the objective {PREFERENCE}"
