"""What a study is asked: a model and its twin, the facts, and how much of everything."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unmask.base.config import option
from unmask.measures.settings import MachineSettings

SHIPPED_MODEL, SHIPPED_TWIN = "reversal-mdm", "reversal-ar"
"""The names of the pair that comes with the package; recipes of the same names train it."""
CORPUS = Path("data") / "corpus"
"""Where a study keeps the corpus that it makes."""

Size = Literal["quick", "laptop", "full"]


@dataclass(frozen=True, kw_only=True)
class StudySettings(MachineSettings):
    """What decides the numbers of a study; each measure has its own settings for each size."""

    model: str | None = option(
        None, "The diffusion model: name, folder, file or hub id; by default the shipped one."
    )
    twin: str | None = option(None, "Its autoregressive twin; by default the shipped one.")
    data: str | None = option(
        None, "A corpus folder or a file of facts; by default a corpus is made."
    )
    facts: int = option(30, "Facts in each group of a corpus that is made.", least=1)
    size: Size = option("laptop", "How much is measured; full is for a GPU.")
    within: float | None = option(
        None,
        "Minutes that it may take at the size laptop: numbers of facts and prompts are chosen by "
        "the speed that it measures.",
        above=0,
        is_identity=False,
    )
    guidance: float | tuple[float, ...] = option(
        0.0,
        "Guidance where texts are drawn, or several strengths; traces and knock-out have none.",
        least=0,
    )
    metric: str = option(
        "logp",
        "What effects of traces are measured in.",
        choices=lambda: ("p", "logp", "logit_difference", "normalised"),
    )
    seed: int = option(0, "Seed of the corpus, the noise and the tests.", least=0)
    dtype: str = option(
        "auto", "float32, bfloat16, …; auto: bfloat16 for recall and traces on a GPU, else float32."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.guidance, tuple) and len(set(self.guidance)) == 1:
            object.__setattr__(self, "guidance", self.guidance[0])  # as recall records it

    @property
    def pair(self) -> tuple[str, str | None]:
        """The models that were named, else the shipped pair."""
        if self.model is None:
            return SHIPPED_MODEL, SHIPPED_TWIN
        return self.model, self.twin

    def _problems(self):
        if self.within is not None and self.size != "laptop":
            yield f"within was given for the size {self.size}, only laptop has sizes to choose"
        if self.model is None and self.twin is not None:
            yield f"a twin {self.twin} was given without a diffusion model: name it by --model"
        if self.model is not None and self.model == self.twin:
            yield f"{self.model} was given as the model and as its twin"
