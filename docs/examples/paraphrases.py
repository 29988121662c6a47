"""A measure of another package, whole: does a model answer five paraphrases of a question alike?

Two phrasings are answered alike if both answers are right, or both wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import unmask
from unmask.base.config import option
from unmask.blocks.tidy import group_by
from unmask.evaluation.metrics import is_contained
from unmask.measures.inputs import QUESTIONS, ModelInputs, Questions
from unmask.measures.measure import Job, Measure, Stage
from unmask.measures.settings import StateSettings
from unmask.results.comparison import Comparison, Factor, Quantity


@dataclass(frozen=True, kw_only=True)
class ParaphraseSettings(StateSettings):
    """What is asked, and how texts are drawn.

    Not over `QuestionSettings`: its `limit` would take each fact in another phrasing.
    """

    facts: int = option(30, "Facts of each split.", least=2)
    phrasings: int = option(5, "Phrasings of each fact, where it has as many.", least=2)
    steps: int = option(16, "Sampling steps.", least=1)


def list_jobs(inputs: ModelInputs, settings: ParaphraseSettings) -> Iterator[Job]:
    return inputs.ask_each("paraphrases", lambda model: ask(model, inputs.data, settings))


def ask(model: unmask.Model, questions: Questions, settings: ParaphraseSettings) -> Iterator[dict]:
    rows = [
        columns | {"ids": ids[:at], "true": fact.completion, "length": length}
        for columns, fact, ids, at, length in questions.encode(model, settings.length)
    ]
    for name, split in group_by(rows, "split").items():
        facts = [same for same in group_by(split, "fact").values() if len(same) > 1]
        if len(facts) < 2:  # a fact cannot be its own control
            raise unmask.UserError(
                f"{name} has {len(facts)} facts in several phrasings: expected at least 2."
            )
        facts = facts[: settings.facts]
        asked = [dict(row) for same in facts for row in same[: settings.phrasings]]
        prompts = [row["ids"] for row in asked]
        texts = unmask.sample(model, prompts, steps=settings.steps, length=asked[0]["length"])
        for row, text in zip(asked, texts.tokens.tolist(), strict=True):
            written = model.tokenizer.decode(text[len(row["ids"]) :])
            row["hit"] = is_contained(written, row["true"])
        facts = list(group_by(asked, "fact").values())
        for fact, other in zip(facts, facts[1:] + facts[:1], strict=True):  # of two facts: control
            columns = {name: fact[0][name] for name in ("split", "direction", "trained", "fact")}
            for i, j in combinations(range(min(len(fact), len(other))), 2):
                for pair, hit in (("one", fact[j]["hit"]), ("two", other[j]["hit"])):
                    yield columns | {"pair": pair, "alike": fact[i]["hit"] == hit}


MEASURE = Measure(
    name="paraphrases",
    title="Are paraphrases answered alike?",
    help="Share of pairs of phrasings of a fact that are both answered right, or both wrong.",
    settings=ParaphraseSettings,
    tables={"paraphrases": "paraphrases/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    comparison=Comparison(
        metrics={"alike": Quantity("answered alike", "%")},
        variant=Factor("pair", "phrasings", {"one": "of one fact", "two": "of two facts"}),
        against=[("one", "two")],
        title="How often two phrasings are answered alike",
    ),
    method=__doc__,
    stages=[Stage(sizes={"quick": {"facts": 3, "steps": 4}, "laptop": {"facts": 8}})],
)
