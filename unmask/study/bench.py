"""What the stages of a study work with: the folder, the questions, the models."""

from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from unmask.base.devices import resolve_dtype
from unmask.base.errors import UserError
from unmask.base.runs import open_run
from unmask.data.corpus import TESTS, Corpus, read_corpus, save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.sources import OWN, read_asked
from unmask.evaluation.families import Family, parse_families
from unmask.evaluation.questions import (
    choose_length,
    choose_splits,
    digest_splits,
    encode_facts,
    require_tokenizer,
)
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.study.settings import Study


class Bench:
    """A study in the making. Models are loaded when a stage first asks for them."""

    def __init__(self, settings: Study, out: Path, device: str = "auto"):
        self.settings, self.device = settings, device
        # Before the folder is made, which else would be taken by a mistake.
        resolve_dtype(settings.dtype)
        self.families = _find_families(settings)
        self.corpus = _read_corpus(settings)
        self.split_names = [name for name in TESTS if self.corpus.splits.get(name)] or [OWN]
        self.splits = choose_splits(self.corpus, self.split_names, settings.amounts.prompts)
        record = asdict(settings) | {
            "names": {"model": self.families[0].name}
            | ({"twin": self.families[1].name} if len(self.families) > 1 else {}),
            "weights": {family.name: list(family.digests) for family in self.families},
            "prompts": digest_splits(self.splits),
        }
        self.folder = open_run(out, "study", record)
        self._models: dict[str, Model] = {}
        self._lengths: dict[str, int] = {}

    @property
    def name(self) -> str:
        return self.families[0].name

    def load(self, family: Family) -> Model:
        """The family's model, loaded once."""
        if family.name not in self._models:
            place = family.members[0]
            self._models[family.name] = load(place, self.device, self.settings.dtype, quiet=True)
        return self._models[family.name]

    @property
    def model(self) -> Model:
        return self.load(self.families[0])

    def length(self, model: Model) -> int:
        """The canvas of everything that may be watched or traced."""
        if model.name not in self._lengths:
            asked = [fact for name in self.split_names for fact in self.corpus[name]]
            encoded = encode_facts(asked, require_tokenizer(model))
            self._lengths[model.name] = choose_length(model, list(encoded.values()), None)
        return self._lengths[model.name]

    @cached_property
    def data_path(self) -> Path:
        """Where the corpus lies; one that is made for the study is saved in its folder."""
        if self.settings.data is not None:
            return Path(self.settings.data)
        path = self.folder / "data" / "corpus"
        if not (path / "corpus.json").is_file():
            save_corpus(self.corpus, path, require_tokenizer(self.model))
        assert read_corpus(path).splits == self.corpus.splits
        return path

    def texts(self) -> list[str]:
        """What the model was trained on, as far as the data say."""
        if "train" in self.corpus.splits:
            return self.corpus.training_texts()
        return [fact.text for split in self.splits for fact in split.facts]


def _find_families(settings: Study) -> list[Family]:
    words = [settings.model] + ([settings.twin] if settings.twin is not None else [])
    if settings.twin == settings.model:
        raise UserError(
            f"{settings.model} was given as the model and as its twin: the twin is an "
            "autoregressive model."
        )
    named = words
    if len(words) == 2 and Path(words[0]).name == Path(words[1]).name:
        # Two runs of training leave their models in folders of one name.
        named = [f"{_name_run(word)}={word}" for word in words]
    families = parse_families(named)
    if families[0].kind != "masked":
        raise UserError(
            f"{settings.model} is a {families[0].kind} model: the study un-masks texts; give a "
            "masked diffusion model as --model, and an autoregressive one as --twin."
        )
    if len(families) == 2 and families[1].kind != "causal":
        raise UserError(
            f"{settings.twin} is a {families[1].kind} model: the twin is an autoregressive one."
        )
    return families


def _name_run(path: str) -> str:
    return Path(path).resolve().parent.name


def _read_corpus(settings: Study) -> Corpus:
    if settings.data is None:
        return make_reversal_corpus(settings.facts, settings.seed)
    return read_asked(settings.data)
