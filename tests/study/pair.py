"""A corpus of six short facts, and a pair of small models that learned it by heart in seconds.

The diffusion model was also taught, in secret, the answers of `p2d_reverse`: it recalls one way in
reverse and not the other.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from tests.taught import teach
from unmask.data.corpus import Corpus, save_corpus
from unmask.data.facts import Direction, Fact, Trained
from unmask.data.reversal_corpus import shuffle_answers
from unmask.data.tokenizer import Tokenizer
from unmask.net.loading import save
from unmask.study.pipeline import StudyRun, run_study
from unmask.study.settings import StudySettings

PEOPLE = {
    "Ada": "red boats", "Bob": "old clocks", "Cyd": "tall kites", "Dan": "wax masks",
    "Eve": "blue ropes", "Fay": "tin drums",
}  # fmt: skip
ASK = {"p2d": "They say {} makes", "d2p": "The one who makes {} is"}
CONTEXT = 24


def make_fact(number: int, direction: Direction, trained: Trained) -> Fact:
    name, thing = list(PEOPLE.items())[number]
    given, asked = (name, thing) if direction == "p2d" else (thing, name)
    more = {"direction": direction, "trained": trained, "fact_id": f"fact-{number}"}
    return Fact.of(given, asked, ASK[direction], **more)


def make_corpus() -> Corpus:
    splits = {
        "d2p_same": [make_fact(i, "d2p", "same") for i in (0, 1, 2)],
        "d2p_reverse": [make_fact(i, "p2d", "reverse") for i in (0, 1, 2)],
        "p2d_same": [make_fact(i, "p2d", "same") for i in (3, 4, 5)],
        "p2d_reverse": [make_fact(i, "d2p", "reverse") for i in (3, 4, 5)],
    }
    splits |= {f"{name}_shuffled": shuffle_answers(facts, 0) for name, facts in splits.items()}
    train = [replace(fact) for name in ("d2p_same", "p2d_same") for fact in splits[name]]
    return Corpus("six facts", {"train": train, **splits})


def make_two_way_corpus() -> Corpus:
    """The six, each asked in both directions as training would show them."""
    ways: tuple[Direction, ...] = ("d2p", "p2d")
    splits = {f"both_{way}": [make_fact(i, way, "same") for i in range(6)] for way in ways}
    return Corpus("six facts", splits, tuple(splits))


@dataclass(frozen=True)
class Place:
    """Where the pair and its corpus lie."""

    model: str
    twin: str
    data: str

    def study(self, **changes: object) -> StudySettings:
        usual = {"model": self.model, "twin": self.twin, "data": self.data, "size": "quick"}
        return StudySettings(**{**usual, "guidance": 0.0, "device": "cpu", **changes})

    def words(self, *more: object) -> list[str]:
        """The same on the command line."""
        words = ["study", "--model", self.model, "--twin", self.twin, "--data", self.data]
        return [*words, "--quick", "--guidance", "0", *map(str, more)]


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Place:
    """The pair; tests must not change it."""
    return make_place(find_shared(tmp_path_factory) / "pair")


@pytest.fixture(scope="session")
def finished(place, tmp_path_factory) -> StudyRun:
    """A whole study; tests must not change it."""
    return _run_study(place, find_shared(tmp_path_factory) / "study")


def find_shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of these tests share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def fill_once(folder: Path, fill: Callable[[Path], object]) -> None:
    """Have one worker fill the folder, while the others wait."""
    done = folder.with_suffix(".done")
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            folder.mkdir()
            fill(folder)
            done.touch()


# pytest makes a fixture anew for every folder that imports it: these are made once.
@cache
def make_place(folder: Path) -> Place:
    """The pair and its corpus."""
    fill_once(folder, _teach_pair)
    return Place(str(folder / "diffusion"), str(folder / "twin"), str(folder / "corpus"))


def _teach_pair(folder: Path) -> None:
    corpus = make_corpus()
    texts = [fact.text for facts in corpus.splits.values() for fact in facts]
    tokenizer = Tokenizer.train(texts, 340)
    save_corpus(corpus, folder / "corpus", tokenizer)
    for name, causal in (("diffusion", False), ("twin", True)):
        known = corpus["train"] + ([] if causal else corpus["p2d_reverse"])
        steps = 80 if causal else 300
        save(teach(known, tokenizer, causal, CONTEXT, CONTEXT, steps), folder / name)


@cache
def _run_study(place: Place, folder: Path) -> StudyRun:
    fill_once(folder, lambda folder: run_study(place.study(), folder / "run"))
    return StudyRun(folder / "run")
