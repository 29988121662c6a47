"""What stands beside the harness's own results: errors of likelihoods, signals of wrong answers."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask.blocks import tidy
from unmask.results.signals import NAMES, judge_signals

Signals = dict[str, float | None]
"""What the drawing of one text says of it, by name; empty where that is not kept."""
SignalledText = tuple[str, Signals]


def summarise_errors(errors: Sequence[float]) -> dict[str, float]:
    """How many likelihoods were asked for, and their standard errors, nats."""
    if not errors:
        return {"requests": 0}
    mean, largest = sum(errors) / len(errors), max(errors)
    return {"requests": len(errors), "mean": mean, "largest": largest}


def add_signals(report: dict[str, Any], drawn: Sequence[Mapping[str, list[Signals]]]) -> None:
    """Give each document the signals of its texts, and the report what they are worth.

    A document is logged once for each filter. Equal requests were answered in the order of their
    documents, each as often as the task repeats it.
    """
    left: dict[str, list[Signals]] = defaultdict(list)
    for each in drawn:
        for arguments, signals in each.items():
            left[arguments] += signals
    known: dict[tuple[str, Any], list[Signals]] = {}
    for task, samples in report["samples"].items():
        for one in samples:
            if (place := (task, one["doc_id"])) not in known:
                known[place] = own = []
                for arguments, texts in zip(one["arguments"], one["resps"], strict=True):
                    queue = left[repr(tuple(arguments))]
                    own += queue[: len(texts)]
                    del queue[: len(texts)]
            if known[place]:
                one["signals"] = known[place]
    report["signals"] = [
        row for task, own in report["samples"].items() for row in _judge(task, own)
    ]


def _judge(task: str, samples: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """AUROC of each signal of a document's first text, for metrics that say right or wrong."""
    rows = [
        one | one["signals"][0] | {"fact": one["doc_id"]} for one in samples if "signals" in one
    ]
    for key, own in tidy.group_by(rows, lambda row: row.get("filter")).items():
        for metric in own[0].get("metrics", ()):
            if all(row[metric] in (0, 1) for row in own):
                for row in judge_signals(own, metric):
                    yield {"task": task, "filter": key, "rule": metric} | row


def format_signals(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table like the harness's own: AUROC with its interval."""
    lines = ["|Task|Metric|Signal of wrong answers|AUROC|95 % interval|Wrong|Documents|"]
    lines.append("|---|---|---|---:|---|---:|---:|")
    for row in rows:
        ends = f"{row['low']:.2f} to {row['high']:.2f}"
        names = (row["task"], row["rule"], NAMES[row["metric"]], f"{row['mean']:.2f}", ends)
        lines.append("|" + "|".join((*names, str(row["wrong"]), str(row["facts"]))) + "|")
    return "\n".join(lines)
