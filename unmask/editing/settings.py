"""How facts are written into a network: the update, the partial reveals, and the search."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from unmask.base.config import CheckedSettings, option, option_of
from unmask.representation.settings import Extraction


@dataclass(frozen=True, kw_only=True)
class Editing(Extraction):
    """What a fact is written with: settings of `unmask.edit`.

    The search for values has those of `unmask.Extraction`, with the reference's weight of the KL
    (Meng et al. 2022). Its norm term, 0.5 ||delta|| / ||v0||^2, is off: it hardly weighs where
    values are long, and forbids any edit where they are shorter than 1, as in small networks.

    >>> from unmask.editing.settings import Editing
    >>> settings = Editing(ridge=20.0, reveal="cycle")
    >>> settings.kl, settings.clamp
    (0.0625, 4.0)
    """

    kl: float = option(0.0625, "Weight of what else is said of the subject (KL).", least=0)
    method: Literal["update", "null-space", "rome"] = option(
        "update",
        "`update`: least harm under the moments (r-ROME, EMMET, with a ridge MEMIT); `null-space`: "
        "only where keys of text hardly point (AlphaEdit); `rome`: as published, for comparison.",
    )
    ridge: float = option(
        0.0, "Trades hitting the values for disturbing other keys less; 0 hits exactly.", least=0
    )
    null_share: float = option(
        0.02,
        "Of `null-space`: the share of the moments' trace that the directions written in may hold.",
        above=0,
        most=1,
    )
    reveal: Literal["none", "cycle", "random"] = option(
        "none",
        "Tokens of the object that a masked model is shown at each step of the search: none, step "
        "modulo length of them, or a random number; which ones is drawn. A causal model always "
        "sees those before.",
    )
    bare_weight: float | None = option(
        None,
        "Weight in its key of the prompt without a prefix: as much as any other by default "
        "(ROME's); MEMIT's is 0.5.",
        least=0,
        most=1,
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.reveal != "none" and self.revealed != (0.0,):
            yield "'reveal' and 'revealed' both show parts of the object: leave one out"
        if self.reveal != "none" and self.stop != "steps":
            yield (
                f"'stop' is {self.stop!r}, but with reveal={self.reveal} a step's loss is about "
                "some tokens of the object only: expected steps"
            )


CONTROLS = ("layer", "key", "delta", "tuned", "tuned-layer")


@dataclass(frozen=True, kw_only=True)
class EditWorkSettings(CheckedSettings):
    """Which facts are edited, how, and how the edited model is asked."""

    layer: str = option("auto", "The edited layer: auto (the middle), 3, or 0,1,2 to share edits.")
    facts: int = option(20, "Facts of each group, edited in one direction and the other.", least=1)
    skip: int = option(0, "Facts at the beginning of each group to leave out.", least=0)
    recalled: bool = option(False, "Edit only facts that the model recalls, asked as trained.")
    objects: Literal["fresh", "swap"] = option(
        "fresh", "New objects: fresh ones, which no training text has, or another fact's (swap)."
    )
    method: Literal["update", "null-space", "rome"] = option_of(Editing, "method")
    ridge: float = option_of(Editing, "ridge")
    null_share: float = option_of(Editing, "null_share")
    moments: Literal["states", "clean", "identity"] = option(
        "states", "Disturb least keys of noised states, of clean text, or of all directions alike."
    )
    moment_tokens: int = option(20_000, "Tokens of text to gather these keys' moments on.", least=1)
    moment_text: str | None = option(
        None, "Text (.txt, .jsonl, also .xz, .zst) to gather them on; else the training texts."
    )
    shrink: float = option(0.0, "Share of the identity mixed into the moments.", least=0, most=1)
    reveal: Literal["none", "cycle", "random"] = option_of(Editing, "reveal")
    search_steps: int = option_of(Editing, "search_steps")
    lr: float = option_of(Editing, "lr")
    clamp: float = option_of(Editing, "clamp")
    kl: float = option_of(Editing, "kl")
    prefixes: int = option_of(Editing, "prefixes")
    bare_weight: float | None = option_of(Editing, "bare_weight")
    paraphrases: int = option(2, "Other phrasings that are asked for each edit.", least=0)
    neighbours: int = option(3, "Other facts that are asked for each edit.", least=0)
    steps: int = option(8, "Denoising steps of a generation.", least=1)
    write_all: bool = option(False, "Also write answers to other phrasings and neighbours.")
    controls: tuple[str, ...] = option(
        (),
        "Controls: the edit in a random layer (layer), with the wrong subject's key (key) or "
        "another fact's delta (delta), or the statement learned by the model's own loss, in the "
        "whole network (tuned) or the edited projections (tuned-layer).",
        choices=lambda: CONTROLS,
    )
    tune_updates: int = option(100, "Updates of a learned statement, at most.", least=1)
    tune_lr: float = option(1e-4, "Adam's learning rate of a learned statement.", above=0)
    other_text: str | None = option(
        None, "Unseen text to measure KL and bits on; by default statements about other people."
    )
    text_rows: int = option(8, "Texts of it that are used; 0: none.", least=0)
    step_counts: tuple[int, ...] = option((), "Further numbers of denoising steps.", least=1)
    lengths: tuple[int, ...] = option((), "Further lengths of the canvas, in positions.", least=2)
    examples: int = option(4, "Edits whose answers are shown.", least=0, is_identity=False)
    seed: int = option(0, "Seed of objects, neighbours, prefixes and moments.", least=0)
