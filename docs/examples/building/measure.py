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


MORE = Comparison({"more": Quantity("more words", digits=1, has_sign=True)}, chance={"more": 0.0})
MEASURE = Measure(name="words", title="Are answers as long as they should be?",
                  help="Words that answers have too many.", settings=WordSettings, inputs=QUESTIONS,
                  tables={"words": "words/1"}, jobs=list_jobs, comparison=MORE)  # fmt: skip
