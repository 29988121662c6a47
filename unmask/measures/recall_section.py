"""Recall in sentences, an example and curves; its tables are made in `recall_tables`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unmask.blocks.blocks import (
    Block,
    Column,
    Figure,
    Finding,
    Line,
    LinePanel,
    Notice,
    Number,
    Row,
    Section,
    Table,
    Text,
    Verdict,
)
from unmask.blocks.labels import KINDS, colour_models, count, name_split, order_splits
from unmask.measures.measure import Rows, Summary
from unmask.measures.recall_tables import (
    CONTROL,
    PUBLISHED,
    PUBLISHED_SOURCE,
    asks_berglund,
    fold_details,
    is_asked,
    tabulate_hits,
)
from unmask.measures.summaries import (
    distinct,
    keep_last,
    say_points,
    say_share,
    select,
    to_interval,
)

if TYPE_CHECKING:
    from unmask.measures.result import Result


def describe_recall(result: "Result") -> Section:
    """What a stranger should hear, an example, the curves, the table; the rest is folded away."""
    summary = result.summary
    hits = [row for row in select(summary["cells"], metric="hit") if is_asked(row["split"])]
    splits = order_splits(distinct(hits, "split"))
    cells, verdict = _choose_headline(result, select(hits, split=splits[0]))
    controlled = select(summary["controls"], model=cells[0]["model"], split=splits[0])
    blocks: list[Block] = [_state_headline(cells, verdict, bool(controlled))]
    blocks += _state_gain(result, cells[0]["model"], splits[0])
    if splits[0].endswith("_reverse"):
        blocks.append(
            Text(
                "A model that has learned “A is B” and cannot answer “B is A” shows the reversal "
                "curse (Berglund et al. 2023, arXiv 2309.12288)."
            )
        )
    blocks += _say_left_out(summary)
    blocks += [_show_example(summary["example"]), _draw(summary, splits)]
    blocks.append(tabulate_hits(summary, splits))
    if set(splits) & set(PUBLISHED):
        data = "" if asks_berglund(result) else " on other data"
        blocks.append(
            Text(
                f"Published: {PUBLISHED_SOURCE}. Another model{data}, with another tokenizer and "
                "training budget; point estimates without intervals."
            )
        )
    blocks += fold_details(result, splits)
    numbers = [_make_number(cell) for cell in cells] if verdict.is_clear else []
    return Section("recall", result.measure.title, blocks, numbers)


def _choose_headline(result: "Result", hits: Rows) -> tuple[Rows, Verdict]:
    """A diffusion and an autoregressive model (or two others, or one) at the most steps, and what
    may be said of the difference (or of the one)."""
    cells = sorted(keep_last(hits, "model"), key=lambda cell: cell["kind"] == "causal")
    split, first = cells[0]["split"], cells[0]
    causal = [cell for cell in cells[1:] if cell["kind"] == "causal"]
    for other in [*causal, *cells[1:]][:1]:
        claim = f"{first['model']} − {other['model']}: {split}"
        if claim in result.verdicts:
            return [first, other], result.verdicts[claim]
    return [first], result.verdicts[f"{first['model']}: {split}"]


def _state_headline(cells: Rows, verdict: Verdict, is_controlled: bool) -> Finding:
    split = cells[0]["split"]
    lead = "Own facts" if split == "own" else f"Asked {name_split(split)}"
    if split.endswith("_reverse"):
        lead = f"Trained on “A is B”, asked “B is A” ({name_split(split)})"
    parts = []
    for cell in cells:
        steps = f" in {count(cell['steps'], 'step')}" if cell["steps"] else ""
        share = say_share(to_interval(cell))
        parts.append(f"{cell['model']} ({KINDS[cell['kind']]}) recalls {share}{steps}")
    if len(cells) == 2:
        assert verdict.value is not None
        gap = say_points(verdict.value)
        unclear = f"The difference of {gap} could be chance."
        clear = f"The difference is {gap}."
        few = f"{count(verdict.facts, 'fact')} are too few to compare them."
    else:
        other = "the same texts hit of other facts' answers (control)"
        clear = f"That is more than {other}." if is_controlled else "No control was measured."
        unclear = f"That is not clearly more than {other}." if is_controlled else clear
        few = f"From {count(verdict.facts, 'fact')} no more can be said."
    ending = {"above": clear, "below": clear, "too few": few}.get(verdict.outcome, unclear)
    return Finding(f"{lead}: {', '.join(parts)}. {ending}", verdict)


def _state_gain(result: "Result", model: str, split: str) -> Iterator[Finding]:
    """Whether more denoising steps help."""
    for row in select(result.summary["gains"], model=model, split=split):
        verdict = result.verdicts[f"{model}: {split}, more steps"]
        change = f"{say_points(to_interval(row))} with {row['many']} instead of {row['few']}"
        outcomes = {"above": "More denoising steps help", "below": "More denoising steps hurt"}
        lead = outcomes.get(verdict.outcome, "It is not settled whether more denoising steps help")
        yield Finding(f"{lead} {model}: {change}.", verdict)


def _say_left_out(summary: Summary) -> Iterator[Notice]:
    for row in summary.get("left_out", ()):
        parts = [f"the step counts {row['steps']}"] if row["steps"] else []
        parts += [count(row["prompts"], "prompt")] if row["prompts"] else []
        shared = count(row["shared"], "prompt")
        yield Notice(
            f"The runs are compared on the {shared} that all of them asked; left out: "
            f"{' and '.join(parts)} that only some have."
        )


def _show_example(rows: Rows) -> Table:
    """One prompt, the true answer, and what each model wrote."""
    first = rows[0]
    lines = [
        Row(["prompt", f"{first['prompt'].strip()} …", None]),
        Row(["true answer", first["completion"].strip(), None], "strong"),
    ]
    for row in rows:
        said = " ".join(row["generation"].split())
        cut = said if len(said) <= 160 else f"{said[:160]}…"
        lines.append(Row([row["model"], cut or "(nothing)", "yes" if row["hit"] else "no"]))
    caption = f"An example, chosen for what it shows ({name_split(first['split'])})"
    return Table("example", caption, [Column(""), Column("text"), Column("hit")], lines)


def _draw(summary: Summary, splits: Sequence[str]) -> Figure:
    """Recall against steps, a panel for each way of asking."""
    hits = select(summary["cells"], metric="hit")
    colours = colour_models(dict(distinct(hits, "model", "kind")))
    steps = sorted({row["steps"] for row in hits if row["steps"] is not None}) or [1]
    panels = []
    for split in splits:
        lines = [
            _draw_line(points, steps, colour)
            for model, colour in colours.items()
            for suffix in ("", CONTROL)
            if (points := select(hits, model=model, split=split + suffix))
        ]
        known = {at: value for at, value in PUBLISHED.get(split, {}).items() if at in steps}
        if known:
            x, y = list(known), list(known.values())
            lines.append(Line("published, another model", "control", x, y, dash="dash"))
        panels.append(LinePanel(name_split(split), lines))
    last = [row for row in keep_last(hits, "model", "split") if is_asked(row["split"])]
    ends = [f"{row['model']} {row['mean']:.0%} ({name_split(row['split'])})" for row in last]
    return Figure(
        name="recall",
        title="Recall against denoising steps",
        alt="Line charts of recall in per cent against denoising steps, one for each way of "
        f"asking. At the most steps: {'; '.join(ends)}.",
        caption="Bands are 95 % intervals by fact. Dotted: the same texts held against other "
        "facts' answers (control). An autoregressive model has no steps: its line is level. "
        "Dashed grey, where shown: another model, published.",
        chart="lines",
        views={(): panels},
        xlabel="denoising steps",
        ylabel="recalled, %",
        is_log2=True,
        limits=(-4, 104),
    )


def _draw_line(points: Rows, steps: Sequence[int], colour: str) -> Line:
    first = points[0]
    if first["steps"] is None:  # a causal model is the same at every step count
        points = [{**first, "steps": at} for at in steps]
    points = sorted(points, key=lambda row: row["steps"])
    mean, low, high = ([100 * row[part] for row in points] for part in ("mean", "low", "high"))
    x = [row["steps"] for row in points]
    if is_asked(first["split"]):
        return Line(first["model"], colour, x, mean, low, high)
    return Line(f"{first['model']}, shuffled", colour, x, mean, dash="dot")


def _make_number(cell: Mapping[str, Any]) -> Number:
    split = cell["split"]
    lead = "recalled in reverse" if split.endswith("_reverse") else "recalled"
    steps = f", {count(cell['steps'], 'step')}" if cell["steps"] else ""
    value, _, ends = say_share(to_interval(cell)).partition(" [")
    note = f"[{ends} {cell['model']}, {name_split(split)}{steps}"
    return Number(f"{lead}, {KINDS[cell['kind']]}", value, note)
