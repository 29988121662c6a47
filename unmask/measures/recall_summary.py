"""The statistics of recall: means by rule, differences between models, controls, steps, phrasings.

Where facts are asked in several phrasings, `low_phrasings` and `high_phrasings` are the ends of an
interval for other phrasings as well; outcomes are those of that interval. `is_headline` marks the
rule that is told first of a way of asking: content of descriptions, contained of names.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from unmask.base.tables import find_row_groups, list_rows
from unmask.blocks import tidy
from unmask.blocks.labels import is_causal, order_splits
from unmask.evaluation.statistics import Clusters, Crossed
from unmask.measures.measure import Rows, Summary, Tables
from unmask.results.comparison import Quantity
from unmask.results.signals import judge_signals
from unmask.results.summaries import (
    add_outcome,
    cluster_phrasings,
    cluster_rows,
    estimate_means,
    subtract_clusters,
)

if TYPE_CHECKING:
    import pyarrow

CONTROL, FILE_CONTROL = "_shuffled", "_file_shuffled"
"""What the ids of controls end in; the second have shuffled answers that came with the data."""
RULES = {
    "hit": Quantity("contained (the study's rule)", "%"),
    "plain": Quantity("contained, punctuation aside", "%"),
    "content": Quantity("content", "%"),
    "surname": Quantity("surname", "%"),
    "first_name": Quantity("first name", "%"),
    "starts": Quantity("starts with", "%"),
    "strict": Quantity("exact", "%"),
}
"""When a text counts as the answer."""
SHARE = Quantity("share", "%")
METRICS = RULES | {
    "token_accuracy": Quantity("tokens in place", "%"),
    "bleu": Quantity("BLEU", digits=1, least=0.0),
    "rank": Quantity("rank", digits=1, least=1.0),
    "rank_chain": Quantity("rank, chain rule", digits=1, least=1.0),
    "logp": Quantity("log p", "nats", 1),
    "logp_mean_field": Quantity("log p, mean field", digits=1),
    "first_token_entropy": Quantity("entropy of token 1", digits=1),
    "beats_control": Quantity("likelier than shuffled", "%"),
    "beats_file": Quantity("likelier than in Berglund's shuffled file", "%"),
}
LEAST = {name: metric.least for name, metric in METRICS.items() if metric.least is not None}
UNUSED = ("completion", "generation", "guidance", "length", "trained", "rivals", "seconds")
"""Columns that no statistic of groups is made of."""
BEATS = {"beats_control": CONTROL, "beats_file": FILE_CONTROL}
"""Whether the true answer is likelier than the control's, by the control."""
CELL = ("model", "kind", "split", "steps")
Asking = tuple[str, str, int | None]
"""A model, a split and a number of steps."""
HitClusters = Mapping[str, tuple[Clusters, Crossed | None]]
"""By rule: hits by fact and training run, and with phrasings as a further source."""


def is_asked(split: str) -> bool:
    """Whether the split is asked; a control only judges its split's texts."""
    return not split.endswith(CONTROL)


def name_base(split: str) -> str:
    """The split whose texts a control judges; of a split that is asked, itself."""
    return split.removesuffix(FILE_CONTROL).removesuffix(CONTROL)


def widen(row: tidy.Record) -> dict[str, Any]:
    """A row with its interval for other phrasings, where it has one, in the place of the other."""
    ends = {end: row.get(f"{end}_phrasings") for end in ("low", "high")}
    return {**row} if ends["low"] is None else {**row, **ends}


def keep_last(rows: Rows, *by: str) -> Rows:
    """The rows with the most steps of their group; a causal model has no steps."""
    groups = tidy.group_by(rows, *by).values()
    most = [max(row["steps"] or 0 for row in group) for group in groups]
    return [
        row
        for group, steps in zip(groups, most, strict=True)
        for row in group
        if (row["steps"] or 0) == steps
    ]


def summarise(tables: Tables, settings: Any) -> Summary:
    """Means by every rule and metric; differences between models, to controls, between steps."""
    from unmask.evaluation.metrics import bleu_signature

    groups, sides = Groups(tables["recall"]), dict[Asking, HitClusters]()
    own = getattr(settings, "rule", None)
    metrics = METRICS if own is None else {own: SHARE} | METRICS
    names = ("cells", "pairs", "controls", "gains", "templates", "runs", "budgets", "signals")
    summary: dict[str, list[Any]] = {name: [] for name in names}
    for asking in groups.asked:
        named = dict(zip(("model", "split", "steps"), asking, strict=True))
        rows, controls = groups.read(asking), [groups.read(asking, x) for x in BEATS.values()]
        _mark_likelier(rows, controls)
        rules = _choose_rules(rows)
        for own in (rows, *controls):
            for cell in groups.average(own, CELL, metrics):
                more = {"guidance": groups.guidance[asking[0]]}
                summary["cells"].append(cell | more | {"is_headline": cell["metric"] == rules[0]})
        sides[asking] = _cluster(rows, rules)
        if controls[0]:
            known = [row for row in rows if row["beats_control"] is not None]
            both = (_cluster(each, rules) for each in (known, controls[0]))
            summary["controls"] += [named | gap for gap in _subtract(*both)]
        if asking in groups.last and cluster_phrasings(rows, "hit") is not None:
            by_phrasing = tidy.group_by([*rows, *controls[0]], "phrasing").values()
            for same in by_phrasing:
                template = {"template": name_template([row["prompt"] for row in same])}
                means = groups.average(same, (*CELL, "phrasing"), RULES)
                summary["templates"] += [mean | template for mean in means]
        summary["signals"] += [named | row for row in judge_signals(rows, rules[0])]
        summary["runs"] += [named | run for run in _list_runs(rows, rules)]
        if "tokens" in rows[0]:
            tokens, steps = sum(row["tokens"] for row in rows) / len(rows), named["steps"]
            per_token = None if steps is None else steps / tokens
            summary["budgets"].append(named | {"tokens": tokens, "per_token": per_token})
    summary["pairs"] += _compare_models(sides, groups.kinds)
    summary["gains"] += _compare_steps(sides)
    summary["example"] = list(_choose_example(groups))
    summary["method"] = [{"bleu": bleu_signature()}]
    left_out = tables.get("left_out")
    return summary if left_out is None else summary | {"left_out": left_out.to_pylist()}


class Groups:
    """Rows by model, split and steps, read when they are asked for: all at once would fill memory.

    A model that was asked with several strengths of guidance is one model for each of them.
    """

    def __init__(self, table: "pyarrow.Table"):
        self.table = table
        self.kinds: dict[str, str] = {}
        self.guidance: dict[str, float | None] = {}
        self.places: dict[Asking, list[int]] = {}
        models = [model for model, _ in find_row_groups(table, "model", "guidance")]
        groups = find_row_groups(table, "model", "guidance", "kind", "split", "steps")
        for (model, guidance, kind, split, steps), at in groups.items():
            name = f"{model}, guidance {guidance:g}" if models.count(model) > 1 else model
            self.kinds[name], self.guidance[name] = kind, guidance
            self.places[name, split, steps] = at
        self.asked = [asking for asking in self.places if is_asked(asking[1])]
        named = [dict(zip(("model", "split", "steps"), each, strict=True)) for each in self.asked]
        self.last = [tuple(row.values()) for row in keep_last(named, "model", "split")]
        """What was asked with the most steps of its model and split."""

    def read(self, asking: Asking, control: str = "") -> list[dict[str, Any]]:
        """The rows of a group, or of a control of it; none where there is no control."""
        model, split, steps = asking
        at = self.places.get((model, split + control, steps), [])
        rows = list_rows(self.table.take(at), *UNUSED) if at else []
        return [row | {"model": model} for row in rows]

    def average(
        self, rows: Rows, by: Sequence[str], metrics: Mapping[str, Quantity]
    ) -> list[dict[str, Any]]:
        """Means by those metrics that the table has, for other phrasings as well."""
        columns = {*self.table.column_names, *BEATS}
        names = [name for name in metrics if name in columns]
        shares = [name for name in names if metrics[name].is_share]
        return estimate_means(rows, by, names, shares, LEAST, names)


def _mark_likelier(rows: list[dict[str, Any]], controls: Sequence[list[dict[str, Any]]]) -> None:
    """Add to rows whether the true answer is likelier than the shuffled one of the same prompt."""
    for name, own in zip(BEATS, controls, strict=True):
        logps = {(row["seed"], row["prompt"]): row["logp"] for row in own}
        for row in rows:
            logp = logps.get((row["seed"], row["prompt"]))
            row[name] = None if logp is None else row["logp"] > logp
        for row in own:
            row |= dict.fromkeys(BEATS)


def _choose_rules(rows: Rows) -> list[str]:
    """By what differences are made, the headline first; old tables have the study's alone."""
    ways = {row["direction"] for row in rows}
    rules = ("hit", "surname")[: 1 + (ways == {"d2p"})] if "d2p" in ways else ("content", "hit")
    return [rule for rule in rules if rule in rows[0]]


def name_template(prompts: Sequence[str]) -> str:
    """What all prompts of a phrasing have in common, "…" for what differs."""
    turned = [prompt[::-1] for prompt in prompts]
    # Letter by letter, which is what the rule warns of.
    begin, end = commonprefix(prompts), commonprefix(turned)[::-1]  # noqa: RUF071
    return begin if begin == end else f"{begin.strip()} … {end.strip()}".strip()


def _cluster(rows: Rows, rules: list[str]) -> HitClusters:
    return {rule: (cluster_rows(rows, rule), cluster_phrasings(rows, rule)) for rule in rules}


def _subtract(ours: HitClusters, theirs: HitClusters) -> Iterator[dict[str, Any]]:
    """By each rule how much more often our texts give the answer, with both intervals."""
    for rule, (clusters, one) in ours.items():
        other = theirs[rule][1]
        gap = {"metric": rule} | subtract_clusters(clusters, theirs[rule][0])
        gap |= {"low_phrasings": None, "high_phrasings": None}
        if one and other and one.cells.counts.shape[1:] == other.cells.counts.shape[1:]:
            wide = subtract_clusters(one, other)
            gap |= {f"{end}_phrasings": wide[end] for end in ("low", "high")}
        yield gap | {"outcome": add_outcome(widen(gap))["outcome"]}


def _compare_models(sides: Mapping[Asking, HitClusters], kinds: Mapping[str, str]) -> Iterator[Any]:
    """How much more often one model answers than another, at the step counts that both have.

    A causal model is the same at every step count. Diffusion models come first.
    """
    for one, other in combinations(sorted(kinds, key=lambda name: is_causal(kinds[name])), 2):
        for (model, split, steps), ours in sides.items():
            theirs = sides.get((other, split, None if is_causal(kinds[other]) else steps))
            if model == one and theirs:
                named = {"one": one, "other": other, "split": split, "steps": steps}
                yield from (named | gap for gap in _subtract(ours, theirs))


def _compare_steps(sides: Mapping[Asking, HitClusters]) -> Iterator[dict[str, Any]]:
    """How much more often a model answers with the most steps than with the fewest."""
    for model, split in dict.fromkeys(key[:2] for key in sides):
        counts = sorted(key[2] or 0 for key in sides if key[:2] == (model, split))
        if counts[0] < counts[-1]:
            named = {"model": model, "split": split, "few": counts[0], "many": counts[-1]}
            both = (sides[model, split, steps] for steps in (counts[-1], counts[0]))
            yield from (named | gap for gap in _subtract(*both))


def _list_runs(rows: Rows, rules: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Recall of each training run by itself, where there are several, by each rule."""
    names = [name for name in ("seed", "opening") if name in rows[0]]
    runs = tidy.group_by(rows, lambda row: tuple(row[name] for name in names))
    for run, members in runs.items() if len(runs) > 1 else ():
        for rule in rules:
            share = sum(row[rule] for row in members) / len(members)
            yield dict(zip(names, run, strict=True)) | {"mean": share, "metric": rule}


def _choose_example(groups: Groups) -> Rows:
    """What each model wrote after one prompt, one that diffusion recalls where there is one."""
    first, table = order_splits([split for _, split, _ in groups.last])[0], groups.table
    columns = ["kind", "split", "steps", "prompt", "completion", "generation", "hit", "seed"]
    first_seed = min(table["seed"].to_pylist())
    written: dict[str, dict[str, Any]] = {}
    for asking in (each for each in groups.last if each[1] == first):
        for row in table.select(columns).take(groups.places[asking]).to_pylist():
            # Of a prompt that is there several times, the first.
            if row.pop("seed") == first_seed:
                own = written.setdefault(row["prompt"], {})
                own.setdefault(asking[0], {"model": asking[0]} | row)

    def weigh(rows: Mapping[str, Any]) -> int:
        return sum(-row["hit"] if is_causal(row["kind"]) else row["hit"] for row in rows.values())

    return list(max(written.values(), key=weigh).values())
