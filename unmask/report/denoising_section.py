"""Un-masking on the page: texts that appear step by step, and when each kind of token comes."""

from functools import cache, partial
from typing import Any

from unmask.evaluation.commits import summarise_commits
from unmask.report.artefacts import ORDER, UNMASKING, Row, StudyFolder
from unmask.report.blocks import Figure, Section, Words, make_blocks
from unmask.report.recall_section import name_asked

_MOST_PLACES = 24
"""Positions of an answer that the order map shows."""


def tell_denoising(run: StudyFolder, prefix: str = "") -> Section:
    """The section of how answers un-mask."""
    order = cache(partial(run.rows, ORDER))

    def count_prompts() -> Words:
        prompts = len({row["prompt"] for row in order()})
        return Words(f"Over {prompts} prompts, which tokens come when?")

    blocks = make_blocks(
        (
            lambda: Words(
                "A masked diffusion model starts from a canvas of masks behind the prompt. At each "
                "step it guesses all of them and keeps the guesses it is surest of. Press play."
            ),
            lambda: _animate(run.rows(UNMASKING), f"{prefix}unmasking"),
            count_prompts,
            lambda: _draw_map(order(), f"{prefix}order-map"),
            lambda: _draw_kinds(order(), f"{prefix}order"),
        ),
        run.advice,
    )
    return Section(f"{prefix}denoising-section", "How answers un-mask", blocks)


def _animate(rows: list[Row], name: str) -> Figure:
    texts: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        texts.setdefault((row["split"], row["prompt"]), []).append(row)
    examples: list[dict[str, Any]] = []
    for (split, _), tokens in texts.items():
        tokens.sort(key=lambda row: row["position"])
        first = tokens[0]
        examples.append(
            {
                "label": f"{name_asked(split)}: {first['completion'].strip()}",
                "hit": first["hit"],
                "wanted": first["completion"].strip(),
                "steps": max(first["steps"], *(row["step"] for row in tokens)),
                "pieces": ["⏎" if row["is_end"] else row["piece"] for row in tokens],
                "at": [row["step"] for row in tokens],
                "p": [row["confidence"] for row in tokens],
            }
        )
    right = sum(example["hit"] for example in examples)
    return Figure(
        name=name,
        title="A text un-masks",
        alt=f"{len(examples)} texts that appear token by token; {right} of them hold the true "
        "answer. Each token is coloured by the probability it had when it was written.",
        caption="Bold: given. The colour of a token is the model's confidence when it wrote it; "
        "the number is the step.",
        chart="unmasking",
        data={"examples": examples},
    )


def _draw_map(rows: list[Row], name: str) -> Figure:
    """When the tokens of an answer come, by their place in it: the share of prompts by step."""
    starts: dict[str, int] = {}
    for row in rows:
        key = row["prompt"]
        starts[key] = min(starts.get(key, row["position"]), row["position"])
    splits = list(dict.fromkeys(row["split"] for row in rows))
    last = max(row["step"] for row in rows)
    views = {}
    for number, split in enumerate(splits):
        mine = [row for row in rows if row["split"] == split]
        places = 1 + min(
            _MOST_PLACES - 1, max(row["position"] - starts[row["prompt"]] for row in mine)
        )
        counts = [[0] * last for _ in range(places)]
        for row in mine:
            place = row["position"] - starts[row["prompt"]]
            if place < places:
                counts[place][row["step"] - 1] += 1
        totals = [sum(each) for each in counts]
        z = [
            [count / total if total else 0.0 for count in each]
            for each, total in zip(counts, totals, strict=True)
        ]
        hover = [[f"{total} texts" for _ in range(last)] for total in totals]
        views[str(number)] = {
            "x": list(range(1, last + 1)),
            "y": [f"token {place + 1}" for place in range(places)],
            "z": z,
            "note": hover,
        }
    return Figure(
        name=name,
        title="Order map",
        alt="A heatmap for each way of asking: rows are the places of an answer's tokens, columns "
        "the denoising steps; dark cells say that most texts commit that token at that step.",
        caption="Left to right writing would be a diagonal.",
        chart="heatmap",
        data={
            "controls": [{"label": "asked", "options": [name_asked(each) for each in splits]}],
            "views": views,
            "xlabel": "denoising step",
            "value": "share of texts",
            "signed": False,
        },
    )


def _draw_kinds(rows: list[Row], name: str) -> Figure:
    lines = summarise_commits(rows)
    colours = {by: f"p{i}" for i, by in enumerate(dict.fromkeys(line.by for line in lines))}
    first, last = (f(lines, key=lambda line: line.when.mean) for f in (min, max))
    return Figure(
        name=name,
        title="When each kind of token is committed",
        alt="Dots with intervals: the mean time of each kind of token, 0 the first step and 1 the "
        f"last. Earliest: {first.kind}, {first.when.mean:.2f}; latest: {last.kind}, "
        f"{last.when.mean:.2f}.",
        caption="By kind of word, place in the answer, and frequency; 95 % intervals by prompt.",
        chart="dots",
        data={
            "xlabel": "committed at (0 first step, 1 last)",
            "range": [0, 1],
            "rows": [
                {
                    "label": f"{line.kind} ({line.tokens})",
                    "group": line.by,
                    "colour": colours[line.by],
                    "mean": line.when.mean,
                    "low": line.when.low,
                    "high": line.when.high,
                }
                for line in lines
            ],
        },
    )
