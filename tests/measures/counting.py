"""A measure without a network: it counts, so that tests of the machinery are quick."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.base.config import option
from unmask.measures.measure import Argument, Job, Measure
from unmask.measures.settings import MachineSettings
from unmask.results.comparison import KIND, MODEL, Comparison, Quantity


@dataclass(frozen=True, kw_only=True)
class CountingSettings(MachineSettings):
    """What is counted."""

    facts: int = option(8, "Facts of each model.", least=1)
    shift: float = option(0.0, "Added to every value.")
    words: tuple[str, ...] = option((), "Words.")
    sizes: tuple[int, ...] = option((1, 2), "Sizes.", least=1)


@dataclass(frozen=True)
class CountingInputs:
    models: Sequence[str]
    worked: list[str] = field(default_factory=list)
    """Keys of the jobs that were worked on, in their order."""

    def record(self) -> dict[str, Any]:
        return {"models": list(self.models)}


class Counting:
    """Models by name; nothing is loaded."""

    def parameters(self) -> Sequence[Argument]:
        return (Argument("models", "Names.", "MODEL…", is_list=True),)

    def read(self, given: Mapping[str, Any], settings: Any) -> CountingInputs:
        return CountingInputs(given["models"])


def list_jobs(inputs: CountingInputs, settings: CountingSettings) -> Iterator[Job]:
    for number, model in enumerate(inputs.models):

        def work(number=number, model=model) -> Mapping[str, Any]:
            inputs.worked.append(model)
            columns = {"model": model, "kind": "masked" if number == 0 else "causal", "seed": 0}
            rows = [
                columns | {"fact": f"f{i}", "value": settings.shift + i + number}
                for i in range(settings.facts)
            ]
            return {"counting": rows, "more": [columns | {"rows": len(rows)}]}

        yield Job(model, work)


MEASURE = Measure(
    name="counting",
    title="How far models count",
    help="Count.",
    settings=CountingSettings,
    tables={"counting": "counting/1", "more": "counting-more/1"},
    inputs=Counting(),
    jobs=list_jobs,
    comparison=Comparison(
        metrics={"value": Quantity("counts to", digits=1)},
        groups=(MODEL, KIND),
        chance={"value": 0.0},
        title="How far models count",
        means="Counted",
    ),
)
