"""What a stage leaves behind."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Its artefacts, relative to the run folder, and what it could not measure, a sentence each."""

    artefacts: tuple[str, ...]
    notes: tuple[str, ...] = ()
