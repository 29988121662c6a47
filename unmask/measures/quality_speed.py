"""What texts cost the judge against how fast they are drawn: the rounds that are timed.

Every model and sampler draws one batch in a round, in turn, so that whatever else the machine does
is spread over all alike; a first round is not counted. A round is what intervals of speed are over.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unmask.base.memory import watch_memory
from unmask.blocks import tidy
from unmask.blocks.blocks import ReportBlock, Text
from unmask.measures.measure import Rows
from unmask.results.comparison import KIND, MODEL, Comparison, Factor, Quantity

if TYPE_CHECKING:
    from unmask.net.model import Model

AXIS = Factor("speed", "tokens a second")
SPEED = Comparison(
    metrics={
        "speed": Quantity("tokens a second", is_short=True, least=0.0),
        "memory": Quantity("memory beyond the weights, MB", is_short=True, least=0.0),
    },
    groups=(MODEL, KIND),
    variant=Factor("sampler", "sampler"),
    counted="rounds",
    title="Speed",
    names=("speed", ""),
    means="Tokens a second and memory of a batch, with intervals by round",
    most=100,
)


@dataclass(frozen=True)
class TimedWay:
    """A model, and how it draws."""

    columns: dict[str, Any]
    model: "Model"
    sampler: str
    steps: int | None


def time_ways(
    ways: Sequence[TimedWay], prompts: Sequence[str], length: int, rounds: int, seed: int
) -> Iterator[dict[str, Any]]:
    """A row for each round and way: seconds and memory of one batch, a text for each prompt."""
    for number in range(rounds + 1):
        turn = number % len(ways)  # nobody always follows the same neighbour
        for way in [*ways[turn:], *ways[:turn]]:
            row = _time_batch(way, prompts, length, seed)
            if number:
                names = {"sampler": way.sampler, "steps": way.steps, "fact": str(number)}
                yield way.columns | names | row


def _time_batch(way: TimedWay, prompts: Sequence[str], length: int, seed: int) -> dict[str, Any]:
    from unmask.evaluation.quality import draw_texts
    from unmask.training.speed import wait_for

    known, device = way.model.require_tokenizer(), way.model.device
    given = sum(len(known.encode(prompt, added="nothing").ids) for prompt in prompts)
    with watch_memory(device) as find_memory:
        wait_for(device)
        start = time.perf_counter()
        drawn = list(draw_texts(way.model, prompts, way.sampler, way.steps, length, seed))
        wait_for(device)
        seconds, memory = time.perf_counter() - start, find_memory()
    tokens = sum(len(each.tokens) for each in drawn) - given
    megabytes = None if memory is None else memory / 1e6
    return {"tokens": tokens, "seconds": seconds, "speed": tokens / seconds, "memory": megabytes}


def describe_speed(speeds: Rows, means: Rows, compare: Comparison) -> Iterator[ReportBlock]:
    """Where diffusion is ahead and where not, the figure of cost against speed, the table.

    `speeds` are the means of what was timed, `means` those of what the judge says.
    """
    if not speeds:
        return
    names = ("model", "sampler", "steps")
    known = {tuple(row[x] for x in names): row for row in speeds if row["metric"] == "speed"}
    points = [
        {**row, "speed": float(f"{known[key]['mean']:.3g}")}
        for row in means
        if (key := tuple(row[x] for x in names)) in known and known[key]["mean"] > 0
    ]
    costs = tidy.select(points, metric="per_token")
    yield from _state(costs, known)

    def name_line(row: tidy.Record) -> str:
        return f"{row['model']}, {row['sampler']}"

    order = list(dict.fromkeys(map(name_line, points)))
    by_speed = replace(
        compare, title="Cost and variety of texts by tokens a second", names=("by speed", "")
    )
    yield by_speed.draw(
        points,
        AXIS,
        line=name_line,
        colour=lambda row: f"p{1 + order.index(name_line(row))}",
        panel=lambda row: "",
        is_log2=True,
    )
    yield SPEED.tabulate(speeds, steps="steps")


def _state(costs: Rows, speeds: dict[tuple, tidy.Record]) -> Iterator[Text]:
    """Against each causal model that writes token by token: what is faster, and what that costs."""

    def time(row: tidy.Record) -> tidy.Record:
        return speeds[row["model"], row["sampler"], row["steps"]]

    causal = [row for row in costs if row["steps"] is None and "drafts" not in row["sampler"]]
    others = [row for row in costs if row["steps"] is not None]
    for base in causal if others else ():
        faster = [row for row in others if time(row)["low"] > time(base)["high"]]
        slower = [row for row in others if time(row)["high"] < time(base)["low"]]
        text = (
            f"{base['model']}, token by token, draws {tidy.say(time(base), digits=0)} tokens a "
            f"second at {tidy.say(base, 'nats')} a token under the judge. Of {len(others)} ways of "
            f"drawing by diffusion {len(faster)} are faster"
        )
        if faster:
            best = min(faster, key=lambda row: row["mean"])
            ahead = [row for row in faster if row["high"] < base["low"]]
            text += (
                f", and {len(ahead)} of these cost less; the cheapest of them ({best['model']}, "
                f"{best['sampler']}, {best['steps']} steps) draws "
                f"{tidy.say(time(best), digits=0)} tokens a second at {tidy.say(best, 'nats')}"
            )
        if slower:
            best = min(slower, key=lambda row: row["mean"])
            text += f". Of {len(slower)} that are slower the cheapest: {tidy.say(best, 'nats')}"
        yield Text(f"{text}. A low cost at a low entropy is repetition.")
