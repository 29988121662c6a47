"""How answers un-mask: the animation, the order map, and when each kind of token comes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unmask.blocks import blocks, labels, tidy
from unmask.measures.measure import Rows

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


def describe_order(result: "Result") -> Sequence[blocks.Block]:
    """A sentence for each model, then texts, the map, and kinds of tokens."""
    kinds = result.summary["kinds"]
    return [
        *_state_order(result),
        *_say_left_out(result),
        blocks.Text(
            "A masked diffusion model starts from masks after the prompt. At each step it guesses "
            "all of them and keeps the guesses it is surest of."
        ),
        _animate(result.rows("unmasking")),
        _draw_map(result.summary["map"]),
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
    ]


def _state_order(result: "Result") -> Iterator[blocks.Finding]:
    for row in result.summary["differences"]:
        yield blocks.Finding(
            f"{row['model']} ({labels.KINDS[row['kind']]}) commits the last quarter of an answer "
            f"{tidy.say(row, 'of the steps', has_sign=True)} later than its first "
            f"({labels.count(row['facts'], 'fact')}).",
            result.verdicts[row["model"]],
        )


def _say_left_out(result: "Result") -> Iterator[blocks.Notice]:
    """Models that were given, but have no order."""
    given = {name for record in result.records for name in record.inputs.get("models", {})}
    measured = {name.rpartition(": ")[2] for name in result.kinds}  # pooled: "RUN: NAME"
    if missing := sorted(given - measured - set(result.kinds)):
        yield blocks.Notice(
            f"Left out: {', '.join(missing)}. An autoregressive model writes from left to right, "
            "one token per step."
        )


def _animate(rows: Rows) -> blocks.Figure:
    """The texts, a panel for each model; a long answer asked in reverse comes first."""
    texts = tidy.group_by(
        [row for row in rows if row["seed"] == rows[0]["seed"]], "split", "prompt", "model"
    )
    prompts: dict[str, list[str]] = {}
    # Recalled ones first: they show more.
    by_hit = sorted(texts, key=lambda key: not texts[key][0]["hit"])
    for split, prompt in dict.fromkeys(key[:2] for key in by_hit):
        prompts.setdefault(split, []).append(prompt)
    answers = {split: tokens[0]["completion"] or "" for (split, _, _), tokens in texts.items()}
    splits = labels.order_splits(list(prompts))
    splits.sort(key=lambda split: (not split.endswith("_reverse"), -len(answers[split])))
    numbers = range(max(map(len, prompts.values())))

    def fill(split: str, number: int) -> list[blocks.TextPanel]:
        chosen = prompts[split][number : number + 1]
        return [
            _show_text(model, tokens)
            for (on, prompt, model), tokens in texts.items()
            if on == split and prompt in chosen
        ]

    figure = blocks.Figure(
        name="unmasking",
        title="A text un-masks",
        alt="",
        caption="Bold: given. The colour of a token is the model's confidence when it wrote it; "
        "the number is the step.",
        chart="unmasking",
        views=blocks.make_views([splits, numbers], fill),
        controls=[
            blocks.Control("asked", [labels.name_split(split) for split in splits]),
            blocks.Control("text", [str(number + 1) for number in numbers]),
        ],
    )
    return replace(figure, alt=tidy.describe_figure(figure))


def _show_text(model: str, tokens: Rows) -> blocks.TextPanel:
    first, tokens = tokens[0], sorted(tokens, key=lambda row: row["position"])
    return blocks.TextPanel(
        title=model,
        pieces=["⏎" if row["is_end"] else row["piece"] for row in tokens],
        steps=[row["step"] for row in tokens],
        confidence=[row["confidence"] for row in tokens],
        expected=(first["completion"] or "").strip(),
        is_hit=bool(first["hit"]),
    )


def _draw_map(rows: Rows) -> blocks.Figure:
    """When the tokens of an answer come, by their position in it: the share of texts by step."""
    return tidy.draw_map(
        rows,
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
    )
