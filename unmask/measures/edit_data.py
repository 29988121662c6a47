"""Settings of the measure `edit`, and the requests and texts that it makes of what it is given."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.base.config import option, option_of
from unmask.base.errors import UserError
from unmask.editing.settings import Editing
from unmask.measures.inputs import Member, find_corpus
from unmask.measures.settings import GroupSettings
from unmask.representation.settings import choose_layers

if TYPE_CHECKING:
    from unmask.data.corpus import Corpus
    from unmask.editing.requests import EditRequest

CONTROLS = ("layer", "key", "delta", "tuned", "tuned-layer")
MOST_TEXTS = 5000
"""Documents of a file to gather moments on."""


@dataclass(frozen=True, kw_only=True)
class EditSettings(GroupSettings):
    """Which facts are edited, how, and how the edited model is asked."""

    layer: str = option(
        "auto", "The layer that is edited: auto (the middle one), 3, or 0,1,2 to share each edit."
    )
    facts: int = option(
        20, "Facts of each group; they are edited in one direction and the other in turn.", least=1
    )
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


@dataclass(frozen=True)
class EditData:
    """What is edited, texts to gather moments on, and texts on which nothing should change."""

    requests: "list[EditRequest]"
    texts: list[str]
    other_texts: list[str]
    corpus: "Corpus | None" = None
    """Where requests come from; a file of requests has none."""


def read_edit_data(data: Any, settings: EditSettings, families: Any) -> tuple[EditData, str, str]:
    from unmask.base.identity import digest_values
    from unmask.base.seeds import python_stream
    from unmask.editing.requests import list_other_texts, read_requests

    for family in families:  # before the time that data take
        for seed in range(len(family.members)):
            choose_layers(family.name, Member(family, seed).config.layers, settings.layer)
    corpus, texts, others = None, list[str](), list[str]()
    if isinstance(data, str | Path) and str(data).endswith(".json"):
        requests, source = read_requests(data)[settings.skip :][: settings.facts], str(data)
        if settings.recalled:
            raise UserError(
                f"{source} does not say how its facts were trained: leave recalled out, or give a "
                "corpus."
            )
    else:
        corpus = find_corpus(data, families)
        source, requests = corpus.source, choose_requests(corpus, settings)
        if "train" in corpus.splits:
            texts = list(dict.fromkeys(corpus.training_texts()))
            # Texts about one fact stand together: a part of them is to be about all.
            python_stream(settings.seed, "moments").shuffle(texts)
        others = list_other_texts(corpus, settings.text_rows, settings.seed)
    if not requests:
        raise UserError(
            f"no fact of {source} is left to be edited after the first {settings.skip}: expected a "
            "smaller skip."
        )
    texts = _read_texts(settings.moment_text, MOST_TEXTS) or texts
    others = _read_texts(settings.other_text, settings.text_rows) or others
    if settings.moments != "identity" and not texts:
        raise UserError(
            f"{source} has no training texts to gather moments of keys on: use --moments identity, "
            "--moment-text FILE, or a corpus with its training split."
        )
    kept = EditData(requests, texts, others, corpus)
    return kept, source, digest_values([*requests, *texts, *others])


def _read_texts(path: str | None, most: int) -> list[str]:
    from unmask.data.text import read_documents

    return [] if path is None else list(islice(read_documents([path]), most))


def choose_requests(
    corpus: "Corpus", settings: EditSettings, only: set[str] | None = None
) -> "list[EditRequest]":
    """The requests of a corpus, of some of its facts."""
    from unmask.editing.requests import make_requests

    names = ("groups", "facts", "objects", "paraphrases", "neighbours", "seed", "skip")
    return make_requests(corpus, **{name: getattr(settings, name) for name in names}, only=only)
