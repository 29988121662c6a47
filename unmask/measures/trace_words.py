"""What effects are called on a page of traces, by what was done to the states."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """What effects are called: states that are put back give something back, and states that are
    replaced in the clean run cost something."""

    done: str
    effect: str
    most: str
    colours: str


RESTORING = Words(
    "restored",
    "given back",
    "the most that its states give back",
    "Purple states give the answer back, orange ones take it away.",
)
REPLACING = Words(
    "replaced",
    "cost",
    "the most that replacing its states costs",
    "Purple: the answer loses by it, orange: it gains.",
)


REPLACED = {
    "ablate": ("Corrupted states", "Corrupting {}"),
    "zero": ("Zeros", "Setting {} to zero"),
    "mean": ("Means over the positions of all facts' texts", "Setting {} to the mean"),
}
"""What is put into the clean run, by mode, and what that is called."""


def choose_words(mode: str) -> Words:
    """The words of a run's mode."""
    return RESTORING if mode == "restore" else REPLACING
