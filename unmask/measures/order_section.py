"""How answers un-mask: the animation, the order map, and when each kind of token comes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unmask.blocks.blocks import (
    Block,
    Column,
    Control,
    Dot,
    DotPanel,
    Figure,
    Finding,
    Fold,
    MapPanel,
    Notice,
    Row,
    Section,
    Table,
    Text,
    TextPanel,
    make_views,
)
from unmask.blocks.labels import KINDS, count, name_split, order_splits
from unmask.measures.measure import Rows
from unmask.measures.summaries import distinct, select, to_interval

if TYPE_CHECKING:
    from unmask.measures.result import Result

_METRICS = {
    "when": Column("committed at"),
    "first_third": Column("first third, %", 0, is_percent=True),
    "second_third": Column("second third, %", 0, is_percent=True),
    "last_third": Column("last third, %", 0, is_percent=True),
    "confidence": Column("confidence"),
}
_COLOURS = {"word": "p1", "place": "p2", "frequency": "p3"}


def describe_order(result: "Result") -> Section:
    """A sentence for each model, then texts, the map, and kinds of tokens."""
    blocks: list[Block] = [*_state_order(result), *_say_left_out(result)]
    texts, kinds = result.rows("unmasking"), result.summary["kinds"]
    blocks += [
        Text(
            "A masked diffusion model starts from masks after the prompt. At each step it guesses "
            "all of them and keeps the guesses it is surest of."
        ),
        _animate(texts),
        _draw_map(result.summary["map"]),
        _draw_kinds(kinds),
        _tabulate(kinds),
    ]
    method = Text(
        "Only tokens up to the first end of a text count. Times go from 0, the first step, to 1, "
        "the text's last; intervals are 95 % t intervals by fact, over all ways of asking and all "
        "training seeds. With the plan smdm the filling after the answer is often committed first, "
        "so that all answers look late: compare kinds with each other."
    )
    return Section("order", result.measure.title, [*blocks, Fold("Method", [method])])


def _state_order(result: "Result") -> Iterator[Finding]:
    for row in result.summary["differences"]:
        model, verdict = row["model"], result.verdicts[row["model"]]
        size = f"{abs(row['mean']):.2f} of the steps"
        ends = f"[{row['low']:.2f}, {row['high']:.2f}]".replace("-", "−")
        said = {
            "above": "commits the beginning of an answer before its end: the last quarter comes "
            f"{size} after the first {ends}",
            "below": "commits the end of an answer before its beginning: the last quarter comes "
            f"{size} before the first {ends}",
            "too few": f"was watched on {count(row['facts'], 'fact')}, too few to say whether it "
            "commits beginnings before ends",
        }.get(
            verdict.outcome,
            "does not clearly commit beginnings of answers before their ends: the last quarter "
            f"comes {size} apart from the first {ends}",
        )
        yield Finding(f"{model} ({KINDS[row['kind']]}) {said}.", verdict)


def _say_left_out(result: "Result") -> Iterator[Notice]:
    """Models that were given, but have no order."""
    given = {name for record in result.records for name in record.inputs.get("models", {})}
    measured = {name.rpartition(": ")[2] for name in result.kinds}  # pooled: "RUN: NAME"
    if missing := sorted(given - measured - set(result.kinds)):
        yield Notice(
            f"Left out: {', '.join(missing)}. An autoregressive model writes from left to right, "
            "one token per step."
        )


def _animate(rows: Rows) -> Figure:
    """The texts, a panel for each model; a long answer asked in reverse comes first."""
    rows = [row for row in rows if row["seed"] == rows[0]["seed"]]
    models, splits = distinct(rows, "model"), order_splits(distinct(rows, "split"))
    longest = {split: max(len(row["completion"] or "") for row in select(rows, split=split))
               for split in splits}  # fmt: skip
    splits.sort(key=lambda split: (not split.endswith("_reverse"), -longest[split]))
    prompts = {split: distinct(select(rows, split=split), "prompt") for split in splits}
    numbers = list(range(max(map(len, prompts.values()))))

    def fill(split: str, number: int) -> list[TextPanel]:
        if number >= len(prompts[split]):
            return []
        panels = []
        for model in models:
            tokens = select(rows, model=model, split=split, prompt=prompts[split][number])
            if tokens:
                panels.append(_show_text(model, sorted(tokens, key=lambda row: row["position"])))
        return panels

    views = make_views([splits, numbers], fill)
    shown = [panel for panels in views.values() for panel in panels]
    hits = sum(isinstance(panel, TextPanel) and panel.is_hit for panel in shown)
    return Figure(
        name="unmasking",
        title="A text un-masks",
        alt=f"{count(len(shown), 'text')} that appear token by token, {hits} with the true answer. "
        "Each token is coloured by the probability it had when it was written.",
        caption="Bold: given. The colour of a token is the model's confidence when it wrote it; "
        "the number is the step.",
        chart="unmasking",
        views=views,
        controls=[
            Control("asked", [name_split(split) for split in splits]),
            Control("text", [str(number + 1) for number in numbers]),
        ],
    )


def _show_text(model: str, tokens: Rows) -> TextPanel:
    first = tokens[0]
    return TextPanel(
        title=model,
        pieces=["⏎" if row["is_end"] else row["piece"] for row in tokens],
        steps=[row["step"] for row in tokens],
        confidence=[row["confidence"] for row in tokens],
        expected=(first["completion"] or "").strip(),
        is_hit=bool(first["hit"]),
    )


def _draw_map(rows: Rows) -> Figure:
    """When the tokens of an answer come, by their position in it: the share of texts by step."""
    models, splits = distinct(rows, "model"), order_splits(distinct(rows, "split"))
    steps = range(1, max(row["step"] for row in rows) + 1)

    def fill(split: str) -> list[MapPanel]:
        return [_map_model(rows, model, split, steps) for model in models]

    return Figure(
        name="order-map",
        title="Order map",
        alt="A heatmap for each model and way of asking: rows are the positions of an answer's "
        "tokens, columns the denoising steps; dark cells say that most texts commit that token at "
        "that step.",
        caption="Writing from left to right would be a diagonal.",
        chart="heatmap",
        views=make_views([splits], fill),
        controls=[Control("asked", [name_split(split) for split in splits])],
        xlabel="denoising step",
        ylabel="share of texts",
    )


def _map_model(rows: Rows, model: str, split: str, steps: Sequence[int]) -> MapPanel:
    cells = select(rows, model=model, split=split)
    shares = {(row["place"], row["step"]): row["share"] for row in cells}
    texts = dict(distinct(cells, "place", "texts"))
    places = range(1, max(texts, default=0) + 1)
    return MapPanel(
        title=model,
        x=[str(step) for step in steps],
        y=[f"token {place}" for place in places],
        z=[[shares.get((place, step), 0.0) for step in steps] for place in places],
        notes=[count(texts.get(place, 0), "text") for place in places],
    )


def _draw_kinds(rows: Rows) -> Figure:
    times = select(rows, metric="when")
    panels = []
    for model in distinct(times, "model"):
        dots = [
            Dot(row["token_kind"], row["by"], _COLOURS[row["by"]], to_interval(row),
                count(row["tokens"], "token"))
            for row in select(times, model=model)
        ]  # fmt: skip
        panels.append(DotPanel(model, dots))
    first, last = (end(times, key=lambda row: row["mean"]) for end in (min, max))
    return Figure(
        name="order",
        title="When each kind of token is committed",
        alt="Dots with intervals: the mean time of each kind of token, 0 the first step and 1 the "
        f"last. Earliest: {first['token_kind']}, {first['mean']:.2f}; latest: "
        f"{last['token_kind']}, {last['mean']:.2f}.",
        caption="By kind of word, position in the answer, and frequency; 95 % intervals by fact.",
        chart="dots",
        views={(): panels},
        xlabel="committed at (0 first step, 1 last)",
        limits=(0, 1),
    )


def _tabulate(rows: Rows) -> Table:
    """A row for each kind of token."""
    lines = []
    for model, by, kind, tokens in distinct(rows, "model", "by", "token_kind", "tokens"):
        cells = {
            row["metric"]: to_interval(row)
            for row in select(rows, model=model, by=by, token_kind=kind)
        }
        others = [cells[name].mean for name in list(_METRICS)[1:]]
        lines.append(Row([model, kind, tokens, cells["when"], *others]))
    columns = [Column("model"), Column("kind of token"), Column("tokens"), *_METRICS.values()]
    return Table("kinds", "When kinds of tokens are committed", columns, lines, most=13)
