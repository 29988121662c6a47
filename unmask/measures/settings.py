"""Settings that several measures share."""

from dataclasses import dataclass

from unmask.base.config import CheckedSettings, option


@dataclass(frozen=True, kw_only=True)
class MachineSettings(CheckedSettings):
    """Where a model runs."""

    dtype: str = option("auto", "float32, bfloat16, …; auto suits the file and the device.")
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps.", is_identity=False)


@dataclass(frozen=True, kw_only=True)
class QuestionSettings(MachineSettings):
    """Which prompts are asked, on what canvas."""

    splits: tuple[str, ...] = option((), "Splits of the corpus; the four tests by default.")
    limit: int | None = option(None, "Prompts of each split; all by default.", least=1)
    length: int | None = option(
        None, "Positions of the canvas; 52 by default, or what the longest text needs.", least=2
    )
