"""Texts that un-mask and the order of their tokens, in sentences and figures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unmask.blocks import blocks, labels, tidy
from unmask.measures.measure import Described, Rows

if TYPE_CHECKING:
    from unmask.measures.result import Result

METRICS = {
    "when": blocks.Column("committed at"),
    "first_third": blocks.Column("first third of steps, %", 0, is_percent=True),
    "last_third": blocks.Column("last third, %", 0, is_percent=True),
    "confidence": blocks.Column("confidence"),
}
GROUPS = {"word": "kind of word", "place": "position in the answer", "frequency": "frequency"}
COLOURS = {"word": "p1", "place": "p2", "frequency": "p3"}


def describe(result: "Result") -> Sequence[Described]:
    """Texts for the first screen; a sentence for each model, the map, and kinds of tokens."""
    kinds = result.summary["kinds"]
    return [
        blocks.FirstScreen(_animate(result.rows("unmasking"))),
        *_state_order(result),
        *_say_left_out(result),
        tidy.draw_map(
            result.summary["map"],
            "order-map",
            "Order map",
            "Writing from left to right would be a diagonal.",
            x="step",
            y=lambda row: f"token {row['place']}",
            ends=("share",),
            note=lambda row: labels.count(row["texts"], "text"),
            choose=[tidy.ASKED],
            xlabel="denoising step",
            ylabel="share of texts",
        ),
        tidy.draw_dots(
            tidy.select(kinds, metric="when"),
            "order",
            "When each kind of token is committed",
            "By kind of word, position in the answer, and frequency; 95 % intervals by fact.",
            label="token_kind",
            group=lambda row: GROUPS[row["by"]],
            colour=lambda row: COLOURS[row["by"]],
            note=lambda row: labels.count(row["tokens"], "token"),
            xlabel="committed at (0 first step, 1 last)",
            limits=(0, 1),
        ),
        tidy.tabulate_means(
            "kinds",
            "When kinds of tokens are committed",
            kinds,
            {"model": "model", "kind of token": "token_kind", "tokens": "tokens"},
            METRICS,
        ),
        *_show_classes(result),
    ]


def _state_order(result: "Result") -> Iterator[blocks.Finding]:
    for row in result.summary["differences"]:
        yield blocks.Finding(
            f"{row['model']} ({labels.KINDS[row['kind']]}) commits the last quarter of an answer "
            f"{tidy.say_difference(row, 'of the steps', 'later', 'earlier')} than its first "
            f"({labels.count(row['facts'], 'fact')}).",
            result.verdicts[row["model"]],
        )


def _show_classes(result: "Result") -> Iterator[blocks.Table]:
    """How much later classes of words come than others."""
    if rows := result.summary["classes"]:
        yield tidy.tabulate(
            "classes",
            "When words are committed, compared with other words (neither function words nor "
            "names), in shares of the steps; + is later",
            rows,
            {
                "model": "model",
                "word": "word",
                blocks.Column("later by", has_sign=True): tidy.to_interval,
                "facts": "facts",
            },
            role=result.mark(lambda row: f"{row['model']}: {row['word']}"),
        )


def _say_left_out(result: "Result") -> Iterator[blocks.Notice]:
    """Models that were given, but have no order."""
    given = {name for record in result.records for name in record.inputs.get("models", {})}
    measured = {name.rpartition(": ")[2] for name in result.kinds}  # pooled: "RUN: NAME"
    if missing := sorted(given - measured - set(result.kinds)):
        yield blocks.Notice(
            f"Left out: {', '.join(missing)}. An autoregressive model writes from left to right, "
            "one token per step; its texts are shown beside the others."
        )


def _animate(rows: Rows) -> blocks.Figure:
    """Texts of a fact asked both ways, a panel for each model; a long answer in reverse is first.

    Of each way of asking those facts come first that show most: recalled by a diffusion model both
    ways, and not by an autoregressive one in reverse.
    """
    texts = tidy.group_by(tidy.select(rows, seed=rows[0]["seed"]), "split", "fact", "model")
    facts: dict[str, list[str]] = {}
    for split, fact, _ in texts:
        facts.setdefault(split, [])
        facts[split] += [] if fact in facts[split] else [fact]
    answers = {split: tokens[0]["completion"] or "" for (split, _, _), tokens in texts.items()}
    splits = labels.order_splits(list(facts))
    splits.sort(key=lambda split: (not labels.is_reversed(split), -len(answers[split])))

    def count_hits(split: str, fact: str) -> int:
        ways = (split, labels.turn_split(split))
        first = [tokens[0] for key, tokens in texts.items() if key[0] in ways and key[1] == fact]
        return sum(
            2 * bool(row["hit"]) if not labels.is_causal(row["kind"])
            else not row["hit"] and labels.is_reversed(row["split"])
            for row in first
        )  # fmt: skip

    for split, own in facts.items():
        own.sort(key=lambda fact: -count_hits(split, fact))
    numbers = range(max(map(len, facts.values())))

    def fill(split: str, number: int) -> list[blocks.TextPanel]:
        chosen = facts[split][number : number + 1]
        ways = [split, labels.turn_split(split)]
        panels = [
            _show_text(model, tokens)
            for way in ways
            for (on, fact, model), tokens in texts.items()
            if on == way and fact in chosen
        ]
        is_both = len({panel.way for panel in panels}) > 1
        return panels if is_both else [replace(panel, way="") for panel in panels]

    return blocks.Figure(
        name="unmasking",
        title="One fact, asked both ways",
        caption="A diffusion model guesses all masks at each step and keeps the guesses it is "
        "surest of; an autoregressive one writes from left to right. Point at a token, or go to it "
        "by arrow keys, for what else it could be.",
        chart="unmasking",
        views=blocks.make_views([splits, numbers], fill),
        controls=[
            blocks.Control("asked", [labels.name_split(split) for split in splits]),
            blocks.Control("fact", [str(number + 1) for number in numbers]),
        ],
    )


def _show_text(model: str, tokens: Rows) -> blocks.TextPanel:
    first, tokens = tokens[0], sorted(tokens, key=lambda row: row["position"])
    return blocks.TextPanel(
        title=f"{model} ({labels.KINDS[first['kind']]})",
        pieces=["⏎" if row["is_end"] else row["piece"] for row in tokens],
        steps=[row["step"] for row in tokens],
        confidence=[row["confidence"] for row in tokens],
        expected=(first["completion"] or "").strip(),
        is_hit=bool(first["hit"]),
        way=labels.name_split(first["split"]),
        guesses=[_read_guesses(row) for row in tokens],
        is_causal=labels.is_causal(first["kind"]),
    )


def _read_guesses(row: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """What stood to be written in a token's place, step by step."""
    steps = zip(row["guesses"] or (), row["guesses_p"] or (), strict=True)
    return [list(zip(pieces, p, strict=True)) for pieces, p in steps]
