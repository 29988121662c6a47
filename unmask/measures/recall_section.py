"""Recall in sentences, figures, an example and tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from unmask.blocks import blocks, labels, tidy
from unmask.blocks.blocks import Column
from unmask.measures.measure import Described, Rows
from unmask.measures.recall_signals import describe_signals
from unmask.measures.recall_summary import (
    CONTROL,
    FILE_CONTROL,
    METRICS,
    RULES,
    keep_last,
    name_base,
    widen,
)
from unmask.results.comparison import ASKED, Comparison, Factor, Quantity

if TYPE_CHECKING:
    from unmask.measures.result import Result

PUBLISHED_SOURCE = (
    "Rai 2025, How is bidirectional information retrieved and generated in masked diffusion "
    "language models?, Table 3: SMDM-1028M fine-tuned on Berglund's set, guidance 0.8, context 52"
)
PUBLISHED: dict[str, dict[int, float]] = {
    "d2p_same": {1: 91.3, 2: 97.0, 4: 96.3, 8: 97.3, 16: 98.0, 32: 97.7},
    "d2p_reverse": {1: 0.0, 2: 0.7, 4: 17.0, 8: 27.3, 16: 31.0, 32: 29.7},
    "p2d_same": {1: 0.0, 2: 2.3, 4: 25.0, 8: 37.7, 16: 42.0, 32: 43.0},
    "p2d_reverse": {1: 40.3, 2: 79.0, 4: 87.7, 8: 87.3, 16: 88.3, 32: 90.0},
}
"""Per cent by the study's rule, by split and steps."""
ENDINGS = {"": "", CONTROL: ", shuffled", FILE_CONTROL: ", Berglund's shuffled file"}
"""How a model is called whose texts are held against the true answer, or against a control's."""
BESIDE = {"content": "hit", "hit": "surname"}
"""By the rule that is told first of a way of asking, the one that is told beside it."""
MOST_DRAWN = 4
"""Models whose controls are drawn as well; of more, the table alone has them."""
RECALL = Comparison(
    metrics=RULES,
    groups=(ASKED,),
    variant=Factor("name", "model"),
    title="Recall",
    names=("matches", "differences"),
    means="Answers recalled, at the most steps, by when a text counts as the answer; shuffled: the "
    "same texts held against other facts' answers (control)",
    differences="Differences, paired by fact",
    most=32,
)
WAYS = Comparison(
    metrics={"recalled": Quantity("recalled", "%")},
    groups=(ASKED,),
    title="Answers recalled, each way of asking",
    caption="At the most steps, with 95 % intervals: descriptions by content where it was judged, "
    "names contained. Reversed: training showed the other way round only.",
    names=("ways", ""),
)
CURVES = replace(
    WAYS,
    title="Recall against denoising steps",
    caption="Bands are 95 % intervals. Dotted: the same texts held against other facts' answers "
    "(control). Dashed grey: another model, published. An autoregressive model has no steps.",
    names=("recall", ""),
    axis=Factor("steps", "denoising steps"),
)


def describe_recall(result: "Result") -> Sequence[Described]:
    """What a stranger should hear, the curves, an example, the tables; the rest is folded away."""
    summary = result.summary
    cells = [_name_texts(row) for row in summary["cells"]]
    splits = labels.order_splits(tidy.distinct(cells, "split"))
    cells.sort(key=lambda cell: splits.index(cell["split"]))
    last, headline = keep_last(cells, "model", "split"), tidy.select(cells, is_headline=True)
    answers = tidy.select(last, is_headline=True, ending="")
    pair = _choose_pair(tidy.select(answers, split=splits[0]))
    gaps = _list_gaps(summary, splits)
    findings = list(_state(last, gaps))
    by_study = tidy.select(cells, metric="hit", ending="")
    has_curves = len({cell["steps"] for cell in headline} - {None}) > 1
    return [
        *(_head(pair, splits) if findings[0].is_clear else ()),
        blocks.FirstScreen(_draw_ways(answers)),
        *findings,
        *(blocks.Notice(row["text"]) for row in summary.get("left_out", ())),
        *([draw_curves([*headline, *_list_published(result, headline)])] if has_curves else ()),
        _show_example(summary["example"]),
        _tabulate(sorted(last, key=lambda cell: list(ENDINGS).index(cell["ending"]))),
        _tabulate_steps([*by_study, *_list_published(result, by_study)], splits),
        *_tabulate_phrasings(summary, last, _list_near(last)),
        *describe_signals(summary.get("signals", ())),
        *_fold_details(summary, tidy.select(last, ending=""), gaps),
    ]


def _name_texts(row: tidy.Record) -> dict[str, Any]:
    """A cell with the widest interval it has, and what its texts are held against apart."""
    split = name_base(row["split"])
    ending = row["split"].removeprefix(split)
    return widen(row) | {"split": split, "ending": ending, "name": row["model"] + ENDINGS[ending]}


def _list_gaps(summary: Any, splits: Sequence[str]) -> Rows:
    """Differences at the most steps: between models, to controls, and to the fewest steps."""
    gaps = [
        {**row, "model": row["one"], "minus": row["other"]}
        for row in keep_last(summary["pairs"], "one", "other", "split")
    ]
    for row in keep_last(summary["controls"], "model", "split"):
        gaps.append({**row, "minus": row["model"] + ENDINGS[CONTROL]})
    for row in summary["gains"]:
        gaps.append({**row, "minus": f"{row['model']}, {labels.count(row['few'], 'step')}"})
    gaps.sort(key=lambda row: splits.index(row["split"]))
    return [widen(row) | {"name": row["model"]} for row in gaps]


def _list_published(result: "Result", cells: Rows) -> Rows:
    """Published numbers of what was asked, beside Berglund's data alone."""
    sources = [record.inputs.get("data", "") for record in result.records]
    if not all(source.startswith("reversal-curse files") for source in sources):
        return []
    shown = {"model": "published", "name": "published", "ending": None, "kind": "masked"}
    ends = {"metric": "hit", "low": math.nan, "high": math.nan}
    return [
        shown | ends | {"split": split, "steps": steps, "mean": share / 100}
        for split, steps in tidy.distinct(tidy.select(cells, metric="hit"), "split", "steps")
        if (share := PUBLISHED.get(split, {}).get(steps)) is not None
    ]


def _choose_pair(cells: Rows) -> Rows:
    """A diffusion model at the least guidance, and an autoregressive one; without one another
    diffusion model at the same guidance, where there is one."""
    ranked = sorted(
        cells, key=lambda cell: (labels.is_causal(cell["kind"]), cell["guidance"] or 0.0)
    )
    causal = [cell for cell in ranked[1:] if labels.is_causal(cell["kind"])]
    alike = [cell for cell in ranked[1:] if cell["guidance"] == ranked[0]["guidance"]]
    return [*ranked[:1], *(causal or alike)[:1]]


def _list_near(cells: Rows) -> Sequence[str]:
    """The ways of asking that sentences are about: those reversed, or the first."""
    splits = tidy.distinct(cells, "split")
    near = [each for each in splits if labels.is_reversed(each) and not each.endswith("_far")]
    return near[:2] or splits[:1]


def _state(last: Rows, gaps: Rows) -> Iterator[blocks.Finding]:
    """How much more one model recalls than another, or than its control: in both reversed ways, by
    the rule that is told first and the one beside it; the other ways where they are chosen."""
    near = _list_near(last)
    others = [each for each in tidy.distinct(last, "split") if not each.endswith("_far")]
    for split in dict.fromkeys([*near, *others]):
        for finding in _state_way(last, gaps, split):
            ways = [labels.name_split(split)]
            yield replace(finding, ways=ways, is_further=split not in near)


def _state_way(last: Rows, gaps: Rows, split: str) -> Iterator[blocks.Finding]:
    """The sentences of one way of asking."""
    rule = tidy.select(last, split=split, is_headline=True)[0]["metric"]
    for metric in (rule, BESIDE[rule]):
        means = tidy.select(last, split=split, metric=metric)
        pair = _choose_pair(tidy.select(means, ending=""))
        names = [cell["name"] for cell in pair]
        names += [name + ENDINGS[CONTROL] for name in names]  # of one model alone its control
        own = tidy.select(gaps, split=split, metric=metric)
        own = [row for row in own if [row["name"], row["minus"]] == names[:2]]
        if own:
            compared = replace(RECALL, compared=[metric], against=[names[:2]])
            yield from compared.state({"matches": means, "differences": own})
        elif metric == rule:
            compared = replace(RECALL, chance={metric: 0.0})
            yield from compared.state({"matches": [{**pair[0], "outcome": "not measured"}]})


def _head(cells: Rows, splits: Sequence[str]) -> Iterator[blocks.FirstScreen | blocks.Number]:
    """What a stranger understands of two models in reverse, and recall in numbers."""
    is_reversed, kinds = labels.is_reversed(cells[0]["split"]), tidy.distinct(cells, "kind")
    if is_reversed and len(kinds) == 2:
        one, other = (
            f"the {labels.name_kind(cell['kind'])} model recalls {tidy.say_share(cell['mean'])}"
            for cell in cells
        )
        way = tidy.name_asked(cells[0]).partition(",")[0]
        # Asked near, the words before the answer are those of training.
        has_far = any(split.endswith("_far") for split in splits)
        phrased = ", in phrasings near those of training" if has_far else ""
        yield blocks.FirstScreen(
            f"Taught “A is B”, asked “B is A” ({way}{phrased}): {one}, {other}"
        )
    for cell in cells:
        value, _, ends = tidy.say(cell, "%").partition(" [")
        note = f"[{ends} {cell['model']}, {tidy.name_asked(cell)}"
        note += f", {labels.count(cell['steps'], 'step')}" if cell["steps"] else ""
        lead = f"recalled{' in reverse' if is_reversed else ''}, {labels.name_kind(cell['kind'])}"
        yield blocks.Number(lead, value, note)


def _draw_ways(answers: Rows) -> blocks.Figure:
    """Recall of each model at the most steps, every way of asking on one scale."""
    return WAYS.draw(
        [{**cell, "metric": "recalled"} for cell in answers],
        label=tidy.name_asked,
        note=lambda cell: labels.count(cell["facts"], "fact"),
        panel=lambda cell: "",
        choose=(),
        limits=(0, 100),
    )


def draw_curves(cells: Rows) -> blocks.Figure:
    """Recall against steps, a panel for each way of asking."""
    counts = sorted({cell["steps"] for cell in cells} - {None}) or [1]
    kinds = dict(tidy.distinct(tidy.select(cells, ending=""), "model", "kind"))
    colours = labels.colour_models(kinds) | {"published": "control"}
    drawn = ["", None, *([CONTROL] if len(kinds) <= MOST_DRAWN else [])]
    points = []
    for cell in (cell for cell in cells if cell["ending"] in drawn):
        band = {} if cell["ending"] == "" else {"low": cell["mean"], "high": cell["mean"]}
        # A causal model is the same at every step count.
        steps = counts if cell["steps"] is None else [cell["steps"]]
        points += [{**cell, **band, "metric": "recalled", "steps": at} for at in steps]
    return CURVES.draw(
        points,
        line="name",
        colour=lambda cell: colours[cell["model"]],
        dash=lambda cell: {"": "solid", CONTROL: "dot"}.get(cell["ending"], "dash"),
        panel=tidy.name_asked,
        choose=(),
        is_log2=True,
        limits=(-4, 104),
    )


def _show_example(rows: Rows) -> blocks.Table:
    """What each model wrote after one prompt."""
    prompt, answer = (rows[0][name].strip() for name in ("prompt", "completion"))
    way = tidy.name_asked(rows[0])
    caption = f"An example, chosen for what it shows ({way}): after “{prompt} …” comes “{answer}”"
    columns: dict[str | Column, tidy.Get] = {
        "model": "model",
        "text": lambda row: shorten(row["generation"], 160, placeholder="…") or "(nothing)",
        "contained": lambda row: "yes" if row["hit"] else "no",
    }
    return tidy.tabulate("example", caption, rows, columns)


def _tabulate_steps(cells: Rows, splits: Sequence[str]) -> blocks.Table:
    """Recall by the study's rule, a column for each way of asking; the most steps come first."""
    most = max((cell["steps"] or 0 for cell in cells), default=0)
    names = tidy.distinct(cells, "name")
    rows = sorted(cells, key=lambda cell: (-(cell["steps"] or most), names.index(cell["name"])))
    caption = "Answers recalled by the study's rule, %, by the number of steps"
    if "published" in names:
        caption += f". Published: {PUBLISHED_SOURCE}; another model and training, no intervals"
    heads = {split: Column(labels.name_split(split), 1, is_percent=True) for split in splits}
    return tidy.tabulate_means(
        "steps",
        caption,
        [{**cell, "metric": cell["split"]} for cell in rows],
        {"steps": "steps", "model": "name"},
        heads,
        role=lambda cell: "plain" if cell["ending"] == "" else "published",
        most=32,
    )


def _tabulate(rows: Rows, metrics: Mapping[str, Quantity] = RULES, **changes: Any) -> blocks.Table:
    """Means, a column for each metric that was measured."""
    measured = tidy.distinct(rows, "metric")
    shown = {name: metric for name, metric in metrics.items() if name in measured}
    if metrics is RULES:  # a rule of another package beside them
        shown |= {name: Quantity(name, "%") for name in measured if name not in METRICS}
    runs = {"training runs": _count_runs}
    return replace(RECALL, metrics=shown, **changes).tabulate(rows, **runs)


def _tabulate_phrasings(summary: Any, last: Rows, splits: Sequence[str]) -> Iterator[blocks.Table]:
    """For each way of asking its phrasings, by the rules of its sentences and beside a control."""
    templates = list(map(_name_texts, keep_last(summary["templates"], "model", "split")))
    for split in splits if templates else ():
        headline = tidy.select(last, split=split, is_headline=True)
        rule, rows = headline[0]["metric"], tidy.select(templates, split=split)
        pair = [cell["model"] for cell in _choose_pair(tidy.select(headline, ending=""))]
        rows.sort(key=lambda row: (row["model"] not in pair, str(row["phrasing"]), row["name"]))
        yield _tabulate(
            rows,
            {name: RULES[name] for name in (rule, BESIDE[rule]) if name in RULES},
            groups=(Factor("template", "phrasing"),),
            names=(f"phrasings-{split}", ""),
            means=f"{labels.name_split(split)}, by phrasing; intervals by fact. Shuffled: the same "
            "texts held against another fact's answer",
            most=2 * len(pair) * len(tidy.distinct(rows, "phrasing")),
        )


def _count_runs(cell: tidy.Record) -> str:
    several = f" from {cell['openings']} adaptations" if cell["openings"] > 1 else ""
    return f"{cell['seeds']}{several}"


def _fold_details(summary: Any, last: Rows, gaps: Rows) -> Iterator[blocks.Fold]:
    """Recall by other phrasings, other metrics, and differences."""
    splits = [split for split in tidy.distinct(last, "split") if split not in _list_near(last)]
    if tables := list(_tabulate_phrasings(summary, last, splits)):
        yield blocks.Fold("By phrasing, the other ways of asking", tables)
    others = {name: metric for name, metric in METRICS.items() if name not in RULES}
    means = f"Other metrics, at the most steps. BLEU: {summary['method'][0]['bleu']}"
    table = _tabulate(last, others, names=("metrics", ""), means=means)
    yield blocks.Fold("Other metrics", [table])
    if gaps:
        compared = replace(RECALL, compared=tidy.distinct(gaps, "metric"))
        yield blocks.Fold("Differences", [compared.tabulate_differences(gaps)])
