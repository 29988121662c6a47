"""Recall in sentences, an example, curves and tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.measures.measure import Described, Rows
from unmask.measures.recall_details import (
    CONTROL,
    FILE_CONTROL,
    MATCHES,
    arrange_last,
    choose_published,
    fold_details,
    is_asked,
    keep_last,
)

if TYPE_CHECKING:
    from unmask.measures.result import Result


MOST_CONTROLLED = 4
"""Models whose controls are drawn as well; of more, the table alone has them."""


def describe_recall(result: "Result") -> Sequence[Described]:
    """What a stranger should hear, an example, the curves, the table; the rest is folded away."""
    summary = result.summary
    hits = [row for row in tidy.select(summary["cells"], metric="hit") if is_asked(row["split"])]
    splits = labels.order_splits(tidy.distinct(hits, "split"))
    shown, verdict = _choose_headline(result, tidy.select(hits, split=splits[0]))
    cells = _list_cells(result, splits)
    has_curves = len({cell["steps"] for cell in cells} - {None}) > 1
    sizes = [
        f"{labels.count(prompts, 'prompt')} about {labels.count(facts, 'fact')}"
        for prompts, facts in tidy.distinct(hits, "prompts", "facts")
    ]
    return [
        *_state_story(shown, verdict),
        blocks.FirstScreen(_draw_ways(cells, splits)),
        _state_headline(shown, verdict, bool(summary["controls"])),
        *_state_gain(result, shown[0]["model"], splits[0]),
        *_say_more(result, splits),
        *([draw_curves(cells, splits)] if has_curves else ()),
        _show_example(summary["example"]),
        _tabulate_hits(
            "hits",
            f"Answers recalled, % [95 % interval by fact]; each way asked: {' or '.join(sizes)}",
            sorted((cell for cell in cells if cell["is_last"]), key=_find_place),
            splits,
        ),
        *_count_runs(hits),
        tidy.tabulate_means(
            "matches",
            "Match rules, at the most steps: the true answer is contained in the text, or begins "
            "it, or is all of it",
            arrange_last(summary["cells"], splits, "model", "split"),
            {"asked": tidy.name_asked, "model": "model"},
            MATCHES,
            most=16,
        ),
        *([_fold_steps(cells, splits)] if has_curves else ()),
        *fold_details(result, hits, splits),
        *(_make_numbers(shown) if verdict.is_clear else ()),
    ]


def _fold_steps(cells: Rows, splits: Sequence[str]) -> blocks.Fold:
    shown = [cell for cell in cells if cell["role"] != "control"]
    caption = "Answers recalled, %, by the number of steps"
    return blocks.Fold("By the number of steps", [_tabulate_hits("steps", caption, shown, splits)])


def _tabulate_hits(name: str, caption: str, cells: Rows, splits: Sequence[str]) -> blocks.Table:
    """Recall by steps and model, a column for each way of asking."""
    return tidy.tabulate_means(
        name,
        caption,
        [cell | {"metric": cell["split"]} for cell in map(dict, cells)],
        {"steps": "steps", "model": "name"},
        {split: Column(labels.name_split(split), 1, is_percent=True) for split in splits},
        role=lambda cell: cell["role"],
        most=32,
    )


def _find_place(cell: Mapping[str, Any]) -> int:
    """Models come first, then published numbers, then the controls."""
    return ("plain", "published", "control").index(cell["role"])


def _count_runs(hits: Rows) -> Iterator[blocks.Text]:
    """How many training runs each model has, and what that makes of its intervals."""
    parts = []
    for row in {row["model"]: row for row in hits if row["seeds"] > 1}.values():
        openings, seeds = row["openings"], labels.count(row["seeds"], "training run")
        if openings > 1:
            seeds += f" from {openings} adaptations"
            parts.append(f"{row['model']}: {seeds} (for other adaptations)")
        else:
            parts.append(f"{row['model']}: {seeds} (for other training seeds)")
    if parts:
        yield blocks.Text(
            "Models trained several times, whose intervals are for other facts and for what stands "
            f"in brackets. {'; '.join(parts)}."
        )


def _choose_headline(result: "Result", hits: Rows) -> tuple[Rows, blocks.Verdict]:
    """A diffusion and an autoregressive model (or two others, or one) at the most steps, and what
    may be said of the difference (or of the one)."""
    first, *others = sorted(
        keep_last(hits, "model"), key=lambda cell: labels.is_causal(cell["kind"])
    )
    others.sort(key=lambda cell: not labels.is_causal(cell["kind"]))
    for other in others[:1]:
        claim = f"{first['model']} − {other['model']}: {first['split']}"
        if claim in result.verdicts:
            return [first, other], result.verdicts[claim]
    return [first], result.verdicts[f"{first['model']}: {first['split']}"]


def _state_story(cells: Rows, verdict: blocks.Verdict) -> Iterator[blocks.FirstScreen]:
    """What a stranger understands, where it is clear."""
    if len(cells) == 2 and verdict.is_clear and labels.is_reversed(cells[0]["split"]):
        is_alike = cells[0]["kind"] == cells[1]["kind"]
        one, other = (
            f"{name} recalls {100 * cell['mean']:.0f} %"
            for cell in cells
            for name in [cell["model"] if is_alike else f"the {labels.KINDS[cell['kind']]} model"]
        )
        yield blocks.FirstScreen(f"Taught “A is B”, asked “B is A”: {one}, {other}")


def _state_headline(cells: Rows, verdict: blocks.Verdict, has_control: bool) -> blocks.Finding:
    split = cells[0]["split"]
    way = labels.name_split(split)
    lead = f"Trained on “A is B”, asked “B is A” ({way})"
    if not labels.is_reversed(split):
        lead = f"Asked {way}" if split != "own" else "Own facts"
    parts = []
    for cell in cells:
        steps = f" in {labels.count(cell['steps'], 'step')}" if cell["steps"] else ""
        share = tidy.say(cell, "%")
        parts.append(f"{cell['model']} ({labels.KINDS[cell['kind']]}) recalls {share}{steps}")
    if len(cells) == 2:
        assert verdict.value is not None
        ending = f"The difference is {tidy.say(verdict.value, 'points')}."
    elif has_control and verdict.value is not None:
        more = tidy.say(verdict.value, "points")
        ending = f"That is {more} compared with other facts' answers in the same texts (control)."
    else:
        ending = "No control was measured."
    return blocks.Finding(f"{lead}: {', '.join(parts)}. {ending}", verdict)


def _state_gain(result: "Result", model: str, split: str) -> Iterator[blocks.Finding]:
    """Whether more denoising steps help."""
    for row in tidy.select(result.summary["gains"], model=model, split=split):
        yield blocks.Finding(
            f"With {row['many']} denoising steps instead of {row['few']}, recall of {model} "
            f"changes by {tidy.say(row, 'points')}.",
            result.verdicts[f"{model}: {split}, more steps"],
        )


def _say_more(result: "Result", splits: Sequence[str]) -> Iterator[blocks.ReportBlock]:
    """What the curse is, and what pooled runs do not share."""
    if labels.is_reversed(splits[0]):
        yield blocks.Text(
            "A model that has learned “A is B” and cannot answer “B is A” shows the reversal curse "
            "(Berglund et al. 2023, arXiv 2309.12288)."
        )
    for row in result.summary.get("left_out", ()):
        parts = [f"the step counts {row['steps']}"] if row["steps"] else []
        parts += [labels.count(row["prompts"], "prompt")] if row["prompts"] else []
        shared = labels.count(row["shared"], "prompt")
        yield blocks.Notice(
            f"The runs are compared on the {shared} that all of them asked; left out: "
            f"{' and '.join(parts)} that only some have."
        )


def _show_example(rows: Rows) -> blocks.Table:
    """One prompt, the true answer, and what each model wrote."""
    first = rows[0]
    lines = [("prompt", f"{first['prompt'].strip()} …", None)]
    lines.append(("true answer", first["completion"].strip(), None))
    for row in rows:
        text = shorten(row["generation"], 160, placeholder="…") or "(nothing)"
        lines.append((row["model"], text, "yes" if row["hit"] else "no"))
    caption = f"An example, chosen for what it shows ({tidy.name_asked(first)})"
    columns = [Column(""), Column("text"), Column("hit")]
    shown = [blocks.Row(line, "strong" if i == 1 else "plain") for i, line in enumerate(lines)]
    return blocks.Table("example", caption, columns, shown)


def _list_cells(result: "Result", splits: Sequence[str]) -> list[dict[str, Any]]:
    """Recall of models, of their controls, and published numbers; the most steps come first."""
    hits = tidy.select(result.summary["cells"], metric="hit")
    colours = labels.colour_models(dict(tidy.distinct(hits, "model", "kind")))
    cells: list[dict[str, Any]] = []
    for row in hits:
        shown = {"name": row["model"], "role": "plain", "colour": colours[row["model"]]}
        is_file = row["split"].endswith(FILE_CONTROL)
        split = row["split"].removesuffix(FILE_CONTROL).removesuffix(CONTROL)
        if not is_asked(row["split"]):
            ending = "Berglund's shuffled file" if is_file else "shuffled"
            shown |= {"name": f"{row['model']}, {ending}", "role": "control"}
        cells.append({**row, "split": split, "is_file": is_file} | shown)
    counts = {row["steps"] for row in hits} - {None}
    for split, percents in choose_published(result, splits).items():
        for steps, percent in percents.items():
            if steps in counts:
                value = {"mean": percent / 100, "low": math.nan, "high": math.nan}
                shown = {"name": "published", "role": "published", "colour": "control"}
                cells.append({"split": split, "steps": steps} | value | shown)
    names, most = tidy.distinct(cells, "name"), max(counts, default=0)
    cells.sort(key=lambda cell: (-(cell["steps"] or most), names.index(cell["name"])))
    return [cell | {"is_last": cell["steps"] in (None, most)} for cell in cells]


def _draw_ways(cells: Rows, splits: Sequence[str]) -> blocks.Figure:
    """Recall of each model at the most steps, every way of asking on one scale."""
    last = [cell for cell in cells if cell["role"] == "plain" and cell["is_last"]]
    rows = [{**cell, **{end: 100 * cell[end] for end in tidy.ENDS}} for cell in last]
    rows.sort(key=lambda cell: splits.index(cell["split"]))
    steps = max((cell["steps"] or 0 for cell in rows), default=0)
    after = f" in {labels.count(steps, 'step')}" if steps else ""
    return tidy.draw_dots(
        rows,
        "ways",
        "Answers recalled, each way of asking",
        f"Dots are shares of prompts answered{after}, with 95 % intervals by fact. Reversed: "
        "training showed the fact the other way round only.",
        label=tidy.name_asked,
        group="name",
        colour="colour",
        note=lambda cell: labels.count(cell["facts"], "fact"),
        panel=lambda cell: "",
        xlabel="recalled, %",
        limits=(0, 100),
    )


def draw_curves(cells: Rows, splits: Sequence[str]) -> blocks.Figure:
    """Recall against steps, a panel for each way of asking."""
    counts = sorted({cell["steps"] for cell in cells} - {None}) or [1]
    points = []
    names = {cell["name"] for cell in cells if cell["role"] == "plain"}
    has_controls = len(names) <= MOST_CONTROLLED
    shown = [
        cell
        for cell in cells
        if cell["role"] != "control" or (has_controls and not cell["is_file"])
    ]
    for cell in sorted(shown, key=lambda cell: splits.index(cell["split"])):
        if cell["role"] != "plain":  # no band
            cell = {**cell, "low": cell["mean"], "high": cell["mean"]}
        # A causal model is the same at every step count.
        steps = counts if cell["steps"] is None else [cell["steps"]]
        points += [{**cell, "steps": at} for at in steps]
    return tidy.draw_lines(
        points,
        "recall",
        "Recall against denoising steps",
        "Bands are 95 % intervals by fact. Dotted, where shown: the same texts held against other "
        "facts' answers (control). An autoregressive model has no steps: its line is level. Dashed "
        "grey, where shown: another model, published.",
        x="steps",
        line="name",
        colour="colour",
        dash=lambda cell: {"control": "dot", "published": "dash"}.get(cell["role"], "solid"),
        scale=100,
        panel=lambda cell: labels.name_split(cell["split"]),
        xlabel="denoising steps",
        ylabel="recalled, %",
        is_log2=True,
        limits=(-4, 104),
    )


def _make_numbers(cells: Rows) -> Iterator[blocks.Number]:
    """Recall of the headline's models, for the top of a page."""
    for cell in cells:
        split = cell["split"]
        lead = "recalled in reverse" if labels.is_reversed(split) else "recalled"
        steps = f", {labels.count(cell['steps'], 'step')}" if cell["steps"] else ""
        value, _, ends = tidy.say(cell, "%").partition(" [")
        note = f"[{ends} {cell['model']}, {labels.name_split(split)}{steps}"
        yield blocks.Number(f"{lead}, {labels.KINDS[cell['kind']]}", value, note)
