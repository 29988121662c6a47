"""How texts are drawn: one declaration for `unmask.sample`, `unmask.infill` and the verb."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.base.config import CheckedSettings, option
from unmask.base.errors import UserError

MOST_STEPS = 1_000_000
CacheMode = Literal["none", "exact", "approximate"]


@dataclass(frozen=True, kw_only=True)
class Sampling(CheckedSettings):
    """How texts are drawn: the settings of `unmask.sample` and `unmask.infill`.

    Both take one of these, or its fields as keyword arguments. Names are checked here; from Python
    there is more than names: a plan, an order or a remasking may be a function of a
    `unmask.StepState` (`unmask.sampling.state` says what it returns), an order a permutation of the
    positions as well, a corrector a function of a `unmask.sampling.correctors.WrittenText`,
    guidance a number for each step or a function of the share of steps that are done, and a length
    may be given per row.

    >>> careful = unmask.Sampling(steps=64, plan="linear", remask="cap=0.02")
    >>> careful.steps, careful.order
    (64, 'confidence')
    """

    steps: int = option(16, "Denoising steps.", least=1, most=MOST_STEPS)
    guidance: Any = option(
        0.0, "Strength of classifier-free guidance, 0 for none, or a schedule such as up=0.8."
    )
    classifier: Any = option(
        None,
        "What guides towards an attribute: the file of a probe; in Python also a function of "
        "tokens and times to log p(attribute).",
    )
    classifier_guidance: Any = option(
        1.0, "Strength of the classifier, or a schedule such as up=2; 0 for none."
    )
    judged: Any = option(
        16,
        "Tokens of each position that the classifier judges: so many of the likeliest, none of the "
        "others being written, or all, or first-order for all by one gradient.",
    )
    rates: bool = option(
        False,
        "Guide the rates of un-masking too, not normalised; with plan ancestral and order random.",
    )
    plan: Any = option(
        "smdm",
        "How many masks a step commits: smdm, llada, linear, cosine, one, threshold=0.9 or "
        "ancestral.",
        plugin="plan",
    )
    order: Any = option(
        "confidence",
        "Which masks are committed first: confidence, entropy, margin, left or random.",
        plugin="order",
    )
    remask: Any = option(
        "none",
        "Which written tokens become masks again: none, cap, rescale, conf, loop or low; low=0.2 "
        "sets its number.",
        plugin="remasking",
    )
    corrector: Any = option(
        "none",
        "What rewrites written tokens after each step: none, uniform=K, margin=K, gumbel=K,T or "
        "accepted=T, for K tokens and the temperature T of their choice.",
        plugin="corrector",
    )
    length: Any = option(None, "Positions of a row, prompt included; by default the context.")
    block: int | None = option(
        None,
        "Positions of a block, filled from left to right; by default one block, or those that the "
        "network's attention has.",
        least=1,
    )
    temperature: float | None = option(
        None,
        "0: the likeliest token, the default; 1 for models that are not masked or causal.",
        least=0,
    )
    top_k: int | None = option(None, "Draw among the k likeliest tokens.", least=1)
    top_p: float | None = option(
        None,
        "Draw among the likeliest tokens that together have this probability.",
        above=0,
        most=1,
    )
    stochastic: float = option(
        1.0,
        "Share of the steps that draw; the last ones take the likeliest token.",
        least=0,
        most=1,
    )
    clamp: bool = option(
        False,
        "Gaussian models: whether each step heads for the token vector nearest to its guess.",
    )
    fixed: Mapping[int, Any] | None = option(
        None, "Texts or token ids by the position at which they stand."
    )
    planted: Any = option(
        None, "Texts or token ids by the step that writes them and the position they start at."
    )
    forbid: Any = option((), "Tokens that are never written.")
    require: Any = option((), "Phrases that every text contains.")
    cache: CacheMode = option(
        "none",
        "What is kept between steps: exact changes nothing, and keeps finished blocks where "
        "attention is block-causal; approximate is faster and changes texts.",
    )
    drafts: int | None = option(
        None,
        "Tokens that the diffusion reading drafts at once and the causal one verifies, for the "
        "causal reading of a network that has both; texts are distributed as without.",
        least=1,
    )
    chat: bool = option(False, "Whether prompts are turns of the model's chat.")
    seed: int = option(0, "Seed of whatever is drawn.", least=0)
    keep_states: bool = option(True, "Whether the trajectory has the canvas of every step.")
    guesses: int = option(
        0, "How many of the likeliest tokens the trajectory keeps of every prediction.", least=0
    )
    watch: Any = option(None, "Called after every step with the trajectory so far.")

    def _problems(self) -> Iterator[str]:
        # Imported late: a command line reads the fields without waiting for torch.
        from unmask.sampling.attributes import read_judged
        from unmask.sampling.correctors import get_corrector
        from unmask.sampling.guidance import guidance_schedule
        from unmask.sampling.orders import get_order
        from unmask.sampling.plans import get_plan
        from unmask.sampling.planting import check_plants
        from unmask.sampling.remasking import get_remasking

        if self.watch is not None and not callable(self.watch):
            yield f"'watch' is {self.watch!r:.60}, expected a function"
        if self.classifier is not None and not (
            isinstance(self.classifier, str | Path) or callable(self.classifier)
        ):
            yield f"'classifier' is {self.classifier!r:.60}, expected a function or a probe's file"
        if self.rates and (self.plan, self.order) != ("ancestral", "random"):
            yield "'rates' is on, which needs plan 'ancestral' and order 'random'"
        for check in (
            lambda: get_plan(self.plan),
            lambda: get_order(self.order),
            lambda: get_remasking(self.remask),
            lambda: get_corrector(self.corrector),
            lambda: read_judged(self.judged),
            lambda: check_plants(self.planted),
            lambda: guidance_schedule(
                self.classifier_guidance, max(1, min(self.steps, MOST_STEPS))
            ),
            lambda: guidance_schedule(self.guidance, max(1, min(self.steps, MOST_STEPS))),
        ):
            try:
                check()
            except UserError as error:
                yield str(error).removesuffix(".")
