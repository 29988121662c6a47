"""A measure of another package, whole: is a model as sure of its answers as it is right?

Each prompt is continued once; confidence is the mean probability of the answer's tokens as written.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import unmask
from unmask.base.config import option
from unmask.evaluation.metrics import is_contained
from unmask.measures.inputs import QUESTIONS, ModelInputs, Questions
from unmask.measures.measure import Job, Measure, Stage
from unmask.measures.settings import QuestionSettings
from unmask.results.comparison import Comparison, Quantity


# 1. Settings: the verb's options, their defaults, ranges and help.
@dataclass(frozen=True, kw_only=True)
class CalibrationSettings(QuestionSettings):
    """How texts are drawn."""

    steps: int = option(16, "Sampling steps.", least=1)


# 2. Jobs: the parts of a run, here one for each checkpoint. A part that is there is not made again.
def list_jobs(inputs: ModelInputs, settings: CalibrationSettings) -> Iterator[Job]:
    return inputs.ask_each("calibration", lambda model: ask(model, inputs.data, settings))


def ask(model: unmask.Model, questions: Questions, settings: CalibrationSettings) -> Iterator[dict]:
    facts = list(questions.encode(model, settings.length))
    prompts = [ids[:at] for _, _, ids, at, _ in facts]
    texts = unmask.sample(model, prompts, steps=settings.steps, length=facts[0][-1])
    for i, (columns, fact, ids, at, _) in enumerate(facts):
        hit = is_contained(model.tokenizer.decode(texts.tokens[i, at:].tolist()), fact.completion)
        sure = float(texts.confidence[i, at : len(ids)].mean())
        yield columns | {"confidence": sure, "hit": hit, "gap": sure - hit}


# 3. The comparison: statistics, outcomes, figure, tables and sentences follow from it.
COMPARISON = Comparison(
    metrics={
        "gap": Quantity("confidence minus hits", "points", has_sign=True),
        "confidence": Quantity("confidence", "%"),
        "hit": Quantity("hits", "%"),
    },
    chance={"gap": 0.0},
    title="Confidence minus hits; 0 is a calibrated model",
)


# 4. The record that everything else is derived from; an entry point names it.
MEASURE = Measure(
    name="calibration",
    title="Is a model as sure as it is right?",
    help="Confidence of answers against how often they are true.",
    settings=CalibrationSettings,
    tables={"calibration": "calibration/1"},
    inputs=QUESTIONS,
    jobs=list_jobs,
    comparison=COMPARISON,
    method=__doc__,
    stages=[Stage(sizes={"quick": {"limit": 3, "steps": 4}, "laptop": {"limit": 14}})],
)
