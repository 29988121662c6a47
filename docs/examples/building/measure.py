"""A measure: how many words more than the true answer has does a model write?"""

from dataclasses import dataclass

import unmask
from unmask.base.config import option
from unmask.measures.inputs import QUESTIONS
from unmask.measures.measure import Measure
from unmask.measures.settings import QuestionSettings
from unmask.results.comparison import Comparison, Quantity


@dataclass(frozen=True, kw_only=True)
class WordSettings(QuestionSettings):
    steps: int = option(8, "Sampling steps.", least=1)


def list_jobs(inputs, settings):
    def ask(model):
        for columns, fact, ids, at, length in inputs.data.encode(model, settings.length):
            text = unmask.sample(model, [ids[:at]], steps=settings.steps, length=length).texts[0]
            yield columns | {"more": len(text.split()) - len(fact.text.split())}

    return inputs.ask_each("words", ask)


MORE = Quantity("more words", digits=1, has_sign=True)
LONG = Comparison(metrics={"more": MORE}, chance={"more": 0.0}, title="Words too many")
MEASURE = Measure(name="words", title="Words too many", help="Are there many?", inputs=QUESTIONS,
    settings=WordSettings, tables={"words": "v/1"}, jobs=list_jobs, comparison=LONG)  # fmt: skip
