"""What measures are asked about: models with data, or run folders of another measure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.config import CheckedSettings
from unmask.base.errors import UserError
from unmask.base.identity import digest_values
from unmask.base.runs import DIGESTS, DTYPES
from unmask.measures.contract import LEAKS, Argument, Job

if TYPE_CHECKING:
    from unmask.data.corpus import Corpus
    from unmask.data.facts import Fact
    from unmask.evaluation.questions import Split
    from unmask.measures.result import Result
    from unmask.net.config import NetConfig
    from unmask.net.families import Family
    from unmask.net.model import Model

MODELS = Argument(
    "models",
    "Models to compare: names, folders, files or hub ids. NAME=DIR,DIR,… is one model trained with "
    "several seeds.",
    "MODEL…",
    is_list=True,
)


@dataclass(frozen=True)
class Member:
    """One checkpoint of a model: one of its training seeds."""

    family: "Family"
    seed: int

    @property
    def key(self) -> str:
        return f"{self.family.name}-{self.seed}"

    @property
    def config(self) -> "NetConfig":
        """The shape of its network, read without the weights."""
        from unmask.net.loading import inspect
        from unmask.net.model import Model

        place = self.family.members[self.seed]
        return place.net.config if isinstance(place, Model) else inspect(place)[0].config

    @property
    def columns(self) -> dict[str, Any]:
        """Which model a row is about; its opening only where the model's runs have several."""
        columns = {"model": self.family.name, "kind": self.family.kind, "seed": self.seed}
        several = {"opening": self.family.openings[self.seed]}
        return columns | (several if max(self.family.openings) else {})


@dataclass
class ModelInputs:
    """Models, and the data they are asked about; a checkpoint is loaded when it is needed."""

    families: "list[Family]"
    data: Any
    source: str
    """Where the data came from."""
    digest: str
    """The digest of exactly what is asked."""
    device: str = "auto"
    dtype: str = "auto"
    _loaded: "dict[str, Model]" = field(default_factory=dict)

    def members(self) -> list[Member]:
        return [Member(family, i) for family in self.families for i in range(len(family.members))]

    def load(self, member: Member) -> "Model":
        """The member's model; the one before it is let go."""
        from unmask.net.loading import load
        from unmask.net.model import Model

        place = member.family.members[member.seed]
        if isinstance(place, Model):
            return place
        if member.key not in self._loaded:
            self._loaded.clear()
            self._loaded[member.key] = load(place, self.device, self.dtype)
        return self._loaded[member.key]

    def ask_each(
        self, table: str, ask: "Callable[[Model], Iterable[Mapping[str, Any]]]"
    ) -> Iterator[Job]:
        """A job for each checkpoint: the rows that `ask` gives for it, with its columns."""

        def work(member: Member) -> Mapping[str, Any]:
            return {table: [member.columns | dict(row) for row in ask(self.load(member))]}

        for member in self.members():
            yield Job(member.key, partial(work, member))

    def _find_dtype(self, place: "str | Model") -> str:
        """What a checkpoint computes in; it is not loaded for this."""
        from unmask.base.devices import name_dtype
        from unmask.net.loading import find_dtype
        from unmask.net.model import Model

        if isinstance(place, Model):
            return name_dtype(place.net.embedding.weight.dtype)
        return name_dtype(find_dtype(place, self.device, self.dtype))

    def record(self) -> dict[str, Any]:
        dtypes = {each.name: map(self._find_dtype, each.members) for each in self.families}
        return {
            **record_models(self.families),
            DTYPES: {name: ", ".join(dict.fromkeys(own)) for name, own in dtypes.items()},
            "data": self.source,
            DIGESTS: digest_families(self.families) | {"the data": {"contents": self.digest}},
            **self._record_leaks(),
        }

    def _record_leaks(self) -> dict[str, Any]:
        """A sentence on each model whose training stated facts the way they are asked in reverse,
        or was too long to be searched for that.

        As far as the record of its training says what that was.
        """
        from unmask.training.shown import describe_leaks

        if not isinstance(self.data, Questions):
            return {}
        questions = [fact for _, fact in self.data.facts() if fact.trained == "reverse"]
        # Other lines of a fact name it in other forms.
        others = [x for own in self.data.corpus.splits.values() for x in own if x.trained == "same"]
        leaks = {}
        for family in self.families if questions else ():
            places = [place for place in family.members if isinstance(place, str)]
            if sentence := describe_leaks(family.name, places, [*others, *questions]):
                leaks[family.name] = sentence
        return {LEAKS: leaks} if leaks else {}


def record_models(families: "Iterable[Family]") -> dict[str, Any]:
    """Models by name, and where they lie."""
    return {"models": {family.name: list(map(str, family.places)) for family in families}}


def digest_families(families: "Iterable[Family]") -> dict[str, Mapping[str, str]]:
    """Digests of everything that the models compute from."""
    return {name: parts for family in families for name, parts in family.digests.items()}


@dataclass(frozen=True)
class ModelsAndData:
    """Models, and data: `read_data` gives them, their source, and the values of their digest."""

    read_data: "Callable[[Any, Any, list[Family]], tuple[Any, str, Iterable[object]]]"
    help: str
    is_required: bool = False
    is_text: bool = False
    """Whether the data are files of text; a shipped model has some of its own."""

    def parameters(self) -> Sequence[Argument]:
        data = Argument("data", self.help, is_option=True, is_required=self.is_required)
        return (MODELS, data)

    def read(self, given: Mapping[str, Any], settings: CheckedSettings) -> ModelInputs:
        from unmask.base.devices import resolve_dtype
        from unmask.net.families import parse_families

        device, dtype = (getattr(settings, name, "auto") for name in ("device", "dtype"))
        if dtype not in ("auto", "stored"):
            resolve_dtype(dtype)  # a loaded model has its own, but a name must be one
        families, data = parse_families(given["models"]), given.get("data")
        if data is None and self.is_required:
            raise UserError(f"no data were given: expected {self.help[0].lower()}{self.help[1:]}")
        data, source, contents = self.read_data(data, settings, families)
        return ModelInputs(families, data, source, digest_values(contents), device, dtype)


@dataclass(frozen=True)
class Questions:
    """Facts in splits: all of the corpus, and the prompts of the splits that are asked."""

    corpus: "Corpus"
    splits: "list[Split]"

    @property
    def names(self) -> list[str]:
        return [split.name for split in self.splits]

    def facts(self) -> "list[tuple[str, Fact]]":
        """The facts asked, each with its split."""
        return [(split.name, fact) for split in self.splits for fact in split.facts]

    def encode(
        self, model: "Model", length: int | None
    ) -> "Iterator[tuple[dict[str, Any], Fact, list[int], int, int]]":
        """For each fact its columns, its tokens, where the answer begins, and the canvas."""
        from unmask.evaluation import questions

        questions.check_scored(model)
        facts, tokenizer = self.facts(), questions.require_tokenizer(model)
        encoded = questions.encode_facts([fact for _, fact in facts], tokenizer)
        canvas = questions.choose_length(model, list(encoded.values()), length)
        for split, fact in facts:
            columns = {"split": split} | fact.columns
            yield columns, fact, encoded[fact].ids, encoded[fact].prompt_length, canvas


def name_splits(corpus: "Corpus", two_way: bool = False, far: bool = False) -> tuple[str, ...]:
    """The splits that are asked unless others are named: the tests, or one's own facts.

    Of the tests, those in near phrasings; with `two_way` also facts trained both ways, if there are
    any (the positive control), and with `far` also the tests in far phrasings.
    """
    from unmask.data.corpus import list_near
    from unmask.data.reversal_corpus import TWO_WAY
    from unmask.data.sources import name_tests

    tests = name_tests(corpus)
    more = filter(corpus.splits.get, TWO_WAY) if two_way else ()
    return tuple(dict.fromkeys((*list_near(tests), *more, *(tests if far else ()))))


def read_questions(
    data: Any, settings: Any, families: "list[Family]", two_way: bool = False, far: bool = False
) -> tuple[Questions, str, list[object]]:
    """The splits that `settings` names (`splits`, `limit`, `controls`, as far as it has them).

    Where it names none, those of `name_splits`.
    """
    from unmask.evaluation.questions import choose_splits, digest_splits, refuse_controls

    corpus = find_corpus(data, families)
    names = getattr(settings, "splits", ()) or name_splits(corpus, two_way, far)
    refuse_controls(names)
    limit, controls = getattr(settings, "limit", None), getattr(settings, "controls", False)
    splits = choose_splits(corpus, names, limit, controls)
    # Canvases and controls may depend on facts that are not asked.
    contents = [digest_splits(splits), *corpus.splits.items()]
    return Questions(corpus, splits), corpus.source, contents


def find_corpus(data: Any, families: "list[Family]") -> "Corpus":
    """A corpus, facts of one's own, a path to either, or what a shipped model was trained on."""
    from unmask.data.corpus import Corpus
    from unmask.data.facts import Fact
    from unmask.data.reversal_corpus import make_reversal_corpus
    from unmask.data.sources import read_asked, split_own

    if isinstance(data, Corpus):
        return data
    facts = [data] if isinstance(data, Fact) else data
    if isinstance(facts, list) and facts and isinstance(facts[0], Fact):
        return split_own("facts given", facts)
    if isinstance(data, str | Path):
        return read_asked(data)
    if data is not None:
        raise UserError(
            f"the data are a {type(data).__name__}: expected a path, a corpus, a fact or facts."
        )
    recipe = families[0].read_shipped_recipe()
    if recipe is None:
        raise UserError(
            f"no data were given, and {families[0].name} did not come with this package: name a "
            "corpus folder or a file of facts by --data."
        )
    return make_reversal_corpus(recipe["facts"], recipe["seed"])


QUESTIONS = ModelsAndData(
    read_questions,
    "A corpus folder (this project's or Berglund's) or a file of facts; by default the corpus that "
    "a shipped model was trained on.",
)
read_all_tests = partial(read_questions, two_way=True)
ALL_TESTS = replace(QUESTIONS, read_data=read_all_tests)
"""Questions with facts trained both ways: the positive control."""
NEAR_AND_FAR = replace(QUESTIONS, read_data=partial(read_questions, two_way=True, far=True))
"""Questions with the tests in far phrasings."""


@dataclass(frozen=True)
class RunInputs:
    """Finished runs of another measure, by the names that tell them apart."""

    results: "dict[str, Result]"

    def record(self) -> dict[str, Any]:
        # A run that was made anew in the same folder, or has come further, is another one.
        places, digests = {}, {}
        for name, result in self.results.items():
            contents = [(record.settings, record.inputs) for record in result.records]
            rows = result.tables[result.measure.name].num_rows
            places[name] = str(result.folder)
            digests[f"the run {name}"] = {"contents": digest_values([*contents, rows])}
        return {"runs": places, DIGESTS: digests}

    def __iter__(self) -> "Iterator[tuple[str, Result]]":
        return iter(self.results.items())


@dataclass(frozen=True)
class RunFolders:
    """Run folders of the measure named `of`."""

    of: str

    def parameters(self) -> Sequence[Argument]:
        help = f"Folders of `unmask {self.of}`; several are compared."
        return (Argument("runs", help, "RUN…", is_list=True),)

    def read(self, given: Mapping[str, Any], settings: CheckedSettings) -> RunInputs:
        from unmask.measures.result import Result, name_folders
        from unmask.measures.runner import read_result

        results = []
        for run in given["runs"]:
            if not isinstance(run, Result | str | Path):
                raise UserError(f"a run is {run!r:.60}: expected a folder of `unmask {self.of}`.")
            results.append(run if isinstance(run, Result) else read_result(run))
            if (other := results[-1].measure.name) != self.of:
                raise UserError(
                    f"{results[-1].folder} is a run of `unmask {other}`: expected one of `unmask "
                    f"{self.of}`."
                )
        if not results:
            raise UserError(f"no run was given: expected folders of `unmask {self.of}`.")
        names = name_folders([result.folder for result in results])
        return RunInputs(dict(zip(names, results, strict=True)))
