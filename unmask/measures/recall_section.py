"""Recall in sentences, an example and tables."""

from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.measures.measure import Described, Rows
from unmask.measures.recall_figures import (
    PUBLISHED_SOURCE,
    draw_curves,
    draw_ways,
    list_cells,
)
from unmask.measures.recall_summary import (
    CONTROL,
    FILE_CONTROL,
    METRICS,
    RULES,
    is_asked,
    widen,
)
from unmask.results.summaries import mark_outcome

if TYPE_CHECKING:
    from unmask.measures.result import Result

SAYS = {
    "hit": "contained, the study's rule",
    "content": "content, in whatever words",
    "surname": "the surname alone",
}
"""What the rules of sentences ask for."""
KEYS: dict[str, tidy.Get] = {"asked": tidy.name_asked, "model": "model"}
PERCENT = Column("recalled, %", 1, is_percent=True)


def describe_recall(result: "Result") -> Sequence[Described]:
    """What a stranger should hear, the curves, the table, an example; the rest is folded away."""
    summary = result.summary
    headline = tidy.select(summary["cells"], is_headline=True)
    answers = [row for row in headline if is_asked(row["split"])]
    splits = labels.order_splits(tidy.distinct(answers, "split"))
    cells, models = list_cells(result, headline, splits), _choose_models(answers, splits[0])
    last = [cell for cell in cells if cell["is_last"]]
    findings = list(_state(summary, answers, splits))
    sizes = " or ".join(
        f"{labels.count(prompts, 'prompt')} about {labels.count(facts, 'fact')}"
        for prompts, facts in tidy.distinct(answers, "prompts", "facts")
    )
    caption = f"Answers recalled, %, by the rule of each way of asking; {sizes} each"
    last.sort(key=lambda cell: ("plain", "published", "control").index(cell["role"]))
    has_curves = len({row["steps"] for row in answers} - {None}) > 1
    matches = _arrange([row for row in summary["cells"] if row["metric"] in RULES], splits)
    caption_of_rules = "When a text counts as the answer, at the most steps"
    is_clear = findings[0].is_clear
    return [
        *(_state_story(models) if is_clear else ()),
        blocks.FirstScreen(draw_ways(last, splits)),
        *findings,
        *_say_more(result, answers, splits),
        *([draw_curves(cells, splits)] if has_curves else ()),
        _show_example(summary["example"]),
        _tabulate_cells("hits", caption, last, splits),
        _tabulate("matches", caption_of_rules, matches, KEYS, 16),
        *_tabulate_phrasings(summary, answers, _list_near(splits)),
        *_fold_details(result, answers, splits),
        *(_make_numbers(models) if is_clear else ()),
    ]


def _state(summary: Any, answers: Rows, splits: Sequence[str]) -> Iterator[blocks.Finding]:
    """Both reversed ways by their rule and the one beside it, more steps, and guidance."""
    for split in _list_near(splits):
        rules = tidy.distinct(tidy.select(summary["pairs"], split=split), "metric")
        first = next(row["metric"] for row in answers if row["split"] == split)
        for rule in [first, *(each for each in rules if each != first)]:
            cells = tidy.select(summary["cells"], split=split, metric=rule)
            yield _compare(summary, _choose_models(cells, split), rule)
    first, *_ = _choose_models(answers, splits[0])
    where = {"split": splits[0], "metric": first["metric"]}
    for row in tidy.select(summary["gains"], model=first["model"], **where):
        yield _find_change(row, f"{row['many']} denoising steps", f"{row['few']}", first["model"])
    strengths = {cell["model"]: cell["guidance"] for cell in answers}
    for row in _keep_last(tidy.select(summary["pairs"], **where), "one", "other")[:1]:
        one, other = (f"guidance {strengths[row[side]] or 0:g}" for side in ("one", "other"))
        if (name := row["one"].removesuffix(one)) + other == row["other"]:
            yield _find_change(row, one, other, name.removesuffix(", "))


def _find_change(row: tidy.Record, one: str, other: str, model: str) -> blocks.Finding:
    text = f"With {one} instead of {other}, recall of {model} changes by"
    return blocks.Finding(f"{text} {tidy.say(widen(row), 'points')}.", row["outcome"])


def _choose_models(cells: Rows, split: str) -> Rows:
    """A diffusion and an autoregressive model, or two others, or one, at the most steps; of
    several strengths of guidance the lowest."""
    models: dict[str, Any] = {}
    for cell in _keep_last(tidy.select(cells, split=split), "model"):
        strength = cell["guidance"] or 0.0
        name = cell["model"].removesuffix(f", guidance {strength:g}")
        if name not in models or strength < models[name]["guidance"]:
            models[name] = cell
    first, *others = sorted(models.values(), key=lambda cell: labels.is_causal(cell["kind"]))
    return [first, *sorted(others, key=lambda cell: not labels.is_causal(cell["kind"]))[:1]]


def _compare(summary: Any, cells: Rows, rule: str) -> blocks.Finding:
    """How much more one model recalls than another, or than its control."""
    split, first = cells[0]["split"], cells[0]
    lead = "Trained on “A is B”, asked “B is A”" if labels.is_reversed(split) else "Asked"
    shares = []
    for cell in cells:
        steps = f" in {labels.count(cell['steps'], 'step')}" if cell["steps"] else ""
        kind = labels.KINDS[cell["kind"]]
        shares.append(f"{cell['model']} ({kind}) recalls {tidy.say_share(cell['mean'])}{steps}")
    where = {"split": split, "metric": rule, "steps": first["steps"]}
    if len(cells) == 2:
        where |= {"one": first["model"], "other": cells[1]["model"]}
        gaps, ending = tidy.select(summary["pairs"], **where), "The difference is {}."
    else:
        gaps = tidy.select(summary["controls"], **where, model=first["model"])
        ending = "Compared with other facts' answers in the same texts (control) that is {}."
    text = f"{lead} ({labels.name_split(split)}; {SAYS[rule]}): {', '.join(shares)}. "
    if not gaps:
        return blocks.Finding(f"{text}No control was measured.", "not measured")
    (gap,) = map(widen, gaps)
    return blocks.Finding(text + ending.format(tidy.say(gap, "points")), gap["outcome"])


def _state_story(cells: Rows) -> Iterator[blocks.FirstScreen]:
    """What a stranger understands, where it is clear."""
    if len(cells) == 2 and labels.is_reversed(cells[0]["split"]):
        is_alike = cells[0]["kind"] == cells[1]["kind"]
        one, other = (
            f"{name} recalls {tidy.say_share(cell['mean'])}"
            for cell in cells
            for name in [cell["model"] if is_alike else f"the {labels.KINDS[cell['kind']]} model"]
        )
        yield blocks.FirstScreen(f"Taught “A is B”, asked “B is A”: {one}, {other}")


def _say_more(result: "Result", answers: Rows, splits: Sequence[str]) -> Iterator[Any]:
    """What the curse is, what intervals are for, and what pooled or old runs do not have."""
    if labels.is_reversed(splits[0]):
        yield blocks.Text(
            "A model that has learned “A is B” and cannot answer “B is A” shows the reversal curse "
            "(Berglund et al. 2023, arXiv 2309.12288)."
        )
    for row in result.summary.get("left_out", ()):
        parts = [f"the step counts {row['steps']}"] if row["steps"] else []
        parts += [labels.count(row["prompts"], "prompt")] if row["prompts"] else []
        yield blocks.Notice(
            f"The runs are compared on the {labels.count(row['shared'], 'prompt')} that all of "
            f"them asked; left out: {' and '.join(parts)} that only some have."
        )
    more = "" if answers[0]["low_phrasings"] is None else " and phrasings"
    text = f"Intervals are for other facts{more}"
    several = {row["model"]: row for row in answers if row["seeds"] > 1}
    runs = [
        f"{model}: {labels.count(row['seeds'], 'training run')}"
        + (f" from {row['openings']} adaptations" if row["openings"] > 1 else "")
        for model, row in several.items()
    ]
    text += f", and for other trainings ({'; '.join(runs)})" if runs else ""
    yield blocks.Text(f"{text}.")


def _keep_last(rows: Rows, *by: str) -> Rows:
    """The rows with the most steps of their group; a causal model has no steps."""
    groups = tidy.group_by(rows, *by).values()
    pairs = [(group, max(row["steps"] or 0 for row in group)) for group in groups]
    return [row for group, most in pairs for row in group if (row["steps"] or 0) == most]


def _arrange(rows: Rows, splits: Sequence[str], *by: str) -> list[dict[str, Any]]:
    """What was asked with the most steps, by way of asking."""
    answers = [row for row in rows if is_asked(row["split"])]
    last = map(widen, _keep_last(answers, *(by or ("model", "split"))))
    return sorted(last, key=lambda row: splits.index(row["split"]))


def _tabulate_cells(name: str, caption: str, cells: Rows, splits: Sequence[str]) -> blocks.Table:
    """Recall by steps and model, a column for each way of asking."""
    return tidy.tabulate_means(
        name,
        caption,
        [{**cell, "metric": cell["split"]} for cell in cells],
        {"steps": "steps", "model": "name"},
        {split: Column(labels.name_split(split), 1, is_percent=True) for split in splits},
        role=lambda cell: cell["role"],
        most=32,
    )


def _tabulate(name: str, caption: str, rows: Rows, keys: Any, most: int) -> blocks.Table:
    """Means, a column for each metric that was measured."""
    measured = {row["metric"] for row in rows}
    heads = {name: each.head() for name, each in METRICS.items() if name in measured}
    return tidy.tabulate_means(name, caption, rows, keys, heads, most=most)


def _list_near(splits: Sequence[str]) -> Sequence[str]:
    """The ways of asking that sentences are about: those reversed, or the first."""
    near = [each for each in splits if labels.is_reversed(each) and not each.endswith("_far")]
    return near[:2] or splits[:1]


def _tabulate_phrasings(
    summary: Any, answers: Rows, splits: Sequence[str]
) -> Iterator[blocks.Table]:
    """For each way of asking its phrasings, by the rules of its sentences and beside a control."""
    for split in splits:
        own = _keep_last(tidy.select(summary["templates"], split=split), "model")
        control = _keep_last(tidy.select(summary["templates"], split=split + CONTROL), "model")
        if not own:
            continue
        rules = tidy.distinct(tidy.select(summary["pairs"], split=split), "metric")
        rules = rules or tidy.distinct(tidy.select(answers, split=split), "metric")
        heads = {rule: METRICS[rule].head() for rule in rules}
        heads[CONTROL] = Column(f"{RULES[rules[0]].label}, another's, %", 1, is_percent=True)
        control = [{**row, "metric": CONTROL} for row in tidy.select(control, metric=rules[0])]
        names = {row["phrasing"]: row["template"] for row in own}
        first = [cell["model"] for cell in _choose_models(answers, split)]
        rows = [{**row, "template": names[row["phrasing"]]} for row in [*own, *control]]
        rows.sort(key=lambda row: (row["model"] not in first, str(row["phrasing"])))
        caption = f"{labels.name_split(split)}, by phrasing; intervals by fact. Control: the same "
        caption += "texts held against another fact's answer"
        keys: dict[str, tidy.Get] = {"phrasing": "template", "model": "model"}
        most = len(names) * len(first)
        yield tidy.tabulate_means(f"phrasings-{split}", caption, rows, keys, heads, most=most)


def _fold_details(result: "Result", answers: Rows, splits: Sequence[str]) -> Iterator[blocks.Fold]:
    """All steps, phrasings, other metrics, differences, runs, and steps per token."""
    summary = result.summary
    by_study = list_cells(result, tidy.select(summary["cells"], metric="hit"), splits)
    steps = [cell for cell in by_study if cell["role"] != "control"]
    caption = "Answers recalled by the study's rule, %, by the number of steps"
    if any(cell["role"] == "published" for cell in steps):
        caption += f". Published: {PUBLISHED_SOURCE}; another model and training, no intervals"
    yield blocks.Fold("By the number of steps", [_tabulate_cells("steps", caption, steps, splits)])
    others = [split for split in splits if split not in _list_near(splits)]
    if tables := list(_tabulate_phrasings(summary, answers, others)):
        yield blocks.Fold("By phrasing, the other ways of asking", tables)
    others = _arrange([row for row in summary["cells"] if row["metric"] not in RULES], splits)
    table = _tabulate("metrics", "Other metrics, at the most steps", others, KEYS, 12)
    bleu = blocks.Text(f"BLEU: `{summary['method'][0]['bleu']}`.")
    yield blocks.Fold("Other metrics", [table, *_count_uncontrolled(summary["cells"]), bleu])
    columns: dict[Any, tidy.Get] = {"models": lambda row: f"{row['one']} − {row['other']}"}
    columns |= {"asked": tidy.name_asked, "counted": lambda row: RULES[row["metric"]].label}
    columns |= {Column("points", 1, is_percent=True, has_sign=True): tidy.to_interval}
    caption = "Differences at the most steps, paired by fact"
    if pairs := _arrange(summary["pairs"], splits, "one", "other", "split"):
        table = tidy.tabulate("pairs", caption, pairs, columns, mark_outcome)
        yield blocks.Fold("Differences between models", [table])
    if runs := _arrange(summary["runs"], splits):
        columns = KEYS | {"counted": lambda row: RULES[row["metric"]].label}
        columns |= {name: name for name in ("opening", "seed") if name in runs[0]}
        caption = "Answers recalled at the most steps"
        table = tidy.tabulate("runs", caption, runs, columns | {PERCENT: "mean"}, most=32)
        yield blocks.Fold("Each training run by itself", [table])
    if budgets := _arrange(summary["budgets"], splits):
        columns = KEYS | {"steps": "steps", Column("tokens of the answer", 1): "tokens"}
        columns |= {"steps per token": "per_token"}
        caption = "On average; steps are also spent on what follows the answer"
        table = tidy.tabulate("budgets", caption, budgets, columns)
        yield blocks.Fold("Steps per token of the answer", [table])


def _count_uncontrolled(cells: Rows) -> Iterator[blocks.Text]:
    """Prompts whose shuffled answer is their own fact's."""
    prompts = dict(tidy.distinct(tidy.select(cells, metric="hit"), "split", "prompts"))
    for ending, of in ((CONTROL, ""), (FILE_CONTROL, " of Berglund's file")):
        missing = {split: n - prompts.get(split + ending, n) for split, n in prompts.items()}
        counts = [f"{n} of {labels.name_split(split)}" for split, n in missing.items() if n]
        if counts:
            yield blocks.Text(
                f"The shuffling{of} left some prompts an answer of their own fact, which is no "
                f"control ({', '.join(counts)}): they are left out of what is said about it."
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
    columns = [Column(""), Column("text"), Column("contained")]
    shown = [blocks.Row(line, "strong" if i == 1 else "plain") for i, line in enumerate(lines)]
    return blocks.Table("example", caption, columns, shown)


def _make_numbers(cells: Rows) -> Iterator[blocks.Number]:
    """Recall of the headline's models, for the top of a page."""
    for cell in map(widen, cells):
        lead = "recalled in reverse" if labels.is_reversed(cell["split"]) else "recalled"
        value, _, ends = tidy.say(cell, "%").partition(" [")
        note = f"[{ends} {cell['model']}, {tidy.name_asked(cell)}"
        note += f", {labels.count(cell['steps'], 'step')}" if cell["steps"] else ""
        yield blocks.Number(f"{lead}, {labels.KINDS[cell['kind']]}", value, note)
