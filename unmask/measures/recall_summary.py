"""The statistics of recall: means by rule, differences between models, controls, steps, phrasings.

Where facts are asked in several phrasings, `low_phrasings` and `high_phrasings` are the ends of an
interval for other phrasings as well; outcomes are those of that interval. `is_headline` marks the
rule that is told first of a way of asking: content of descriptions, contained of names.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, takewhile
from typing import TYPE_CHECKING, Any

from unmask.base.tables import find_row_groups, list_rows
from unmask.blocks import tidy
from unmask.blocks.labels import is_causal, order_splits
from unmask.evaluation.statistics import Clusters, Crossed
from unmask.measures.measure import Rows, Summary, Tables
from unmask.results.comparison import Quantity
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
SHARES = [name for name, metric in METRICS.items() if metric.is_share]
LEAST = {name: metric.least for name, metric in METRICS.items() if metric.least is not None}
UNUSED = ("completion", "generation", "guidance", "length", "trained", "rivals", "seconds")
"""Columns that no statistic of groups is made of."""
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


def summarise(tables: Tables, settings: Any) -> Summary:
    """Means by every rule and metric; differences between models, to controls, between steps."""
    from unmask.evaluation.metrics import bleu_signature

    groups, sides = Groups(tables["recall"]), dict[Asking, HitClusters]()
    names = ("cells", "pairs", "controls", "gains", "templates", "runs", "budgets")
    summary: dict[str, list[Any]] = {name: [] for name in names}
    last = groups.list_last()
    for key, rows in groups.items():
        model, split, steps = key
        named, rules = {"model": model, "split": split, "steps": steps}, groups.rules[split]
        summary["cells"] += groups.average(key, rows)
        if not is_asked(split):
            continue
        sides[key] = _cluster(rows, rules)
        if controls := groups.get((model, split + CONTROL, steps)):
            known = [row for row in rows if row["beats_control"] is not None]
            both = (_cluster(each, rules) for each in (known, controls))
            summary["controls"] += [named | gap for gap in _subtract(*both)]
        if key in last and cluster_phrasings(rows, "hit") is not None:
            for each in (rows, controls or ()):
                summary["templates"] += groups.average_phrasings(each)
        summary["runs"] += [named | run for run in _list_runs(rows, rules)]
        if "tokens" in rows[0]:
            tokens = sum(row["tokens"] for row in rows) / len(rows)
            per_token = None if steps is None else steps / tokens
            summary["budgets"].append(named | {"tokens": tokens, "per_token": per_token})
    summary["pairs"] += _compare_models(sides, groups.kinds)
    summary["gains"] += _compare_steps(sides)
    summary["example"] = list(_choose_example(groups, last))
    summary["method"] = [{"bleu": bleu_signature()}]
    left_out = tables.get("left_out")
    return summary if left_out is None else summary | {"left_out": left_out.to_pylist()}


class Groups(Mapping[Asking, Rows]):
    """Rows by model, split and steps, made when they are looked at: all at once would fill memory.

    A model that was asked with several strengths of guidance is one model for each of them. Rows
    have `beats_control` and `beats_file`: whether the true answer is likelier than the shuffled
    one, of the same phrasing or of the data's own file.
    """

    def __init__(self, table: "pyarrow.Table"):
        self.table, self.strengths = _name_strengths(table)
        self.places = find_row_groups(self.table, "model", "split", "steps")
        self.kinds = {key[0]: self.table["kind"][at[0]].as_py() for key, at in self.places.items()}
        columns = {*table.column_names, "beats_control", "beats_file"}
        self.metrics = [name for name in METRICS if name in columns]
        self.rules = {key[1]: self._choose_rules(at) for key, at in self.places.items()}

    def _choose_rules(self, at: list[int]) -> list[str]:
        """By what differences are made, the headline first; old tables have the study's alone."""
        ways = set(self.table["direction"].take(at).to_pylist())
        rules = ("hit", "surname")[: 1 + (ways == {"d2p"})] if "d2p" in ways else ("content", "hit")
        return [rule for rule in rules if rule in self.metrics]

    def __getitem__(self, key: Asking) -> Rows:
        rows = list_rows(self.table.take(self.places[key]), *UNUSED)
        for column, ending in (("beats_control", CONTROL), ("beats_file", FILE_CONTROL)):
            at = self.places.get((key[0], key[1] + ending, key[2]))
            controls = (
                self.table.select(["seed", "prompt", "logp"]).take(at).to_pylist() if at else []
            )
            logps = {(each["seed"], each["prompt"]): each["logp"] for each in controls}
            for row in rows:
                logp = logps.get((row["seed"], row["prompt"]))
                row[column] = None if logp is None else row["logp"] > logp
        return rows

    def __iter__(self) -> Iterator[Asking]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def list_last(self) -> list[Asking]:
        """What was asked with the most steps of its model and split."""
        most: dict[tuple[str, str], int] = {}
        for model, split, steps in self:
            most[model, split] = max(most.get((model, split), 0), steps or 0)
        return [key for key in self if is_asked(key[1]) and (key[2] or 0) == most[key[:2]]]

    def average(self, key: Asking, rows: Rows) -> Iterator[dict[str, Any]]:
        """A group's mean by every metric."""
        by, split = ("model", "kind", "split", "steps"), key[1]
        first = self.rules[name_base(split) if name_base(split) in self.rules else split][0]
        for cell in estimate_means(rows, by, self.metrics, SHARES, LEAST, list(RULES)):
            more = {"guidance": self.strengths.get(key[0])}
            yield cell | more | {"is_headline": cell["metric"] == first}

    def average_phrasings(self, rows: Rows) -> Iterator[dict[str, Any]]:
        """Means by phrasing and rule."""
        rules = [rule for rule in RULES if rule in self.metrics]
        for phrasing, members in tidy.group_by(rows, "phrasing").items():
            named = {"template": name_template([row["prompt"] for row in members])}
            by = ("model", "kind", "split", "steps")
            for cell in estimate_means(members, by, rules, rules):
                yield cell | {"phrasing": phrasing} | named


def _name_strengths(table: "pyarrow.Table") -> "tuple[pyarrow.Table, dict[str, float | None]]":
    """The table with a model's name for each strength of guidance where it has several, and the
    strength of each name."""
    import pyarrow

    pairs = list(find_row_groups(table, "model", "guidance"))
    models = [model for model, _ in pairs]
    names = {
        (model, strength): f"{model}, guidance {strength:g}" if models.count(model) > 1 else model
        for model, strength in pairs
    }
    columns = (table[name].to_pylist() for name in ("model", "guidance"))
    named = pyarrow.array([names[pair] for pair in zip(*columns, strict=True)], pyarrow.string())
    table = table.set_column(table.column_names.index("model"), "model", named)
    return table, {name: strength for (_, strength), name in names.items()}


def name_template(prompts: Sequence[str]) -> str:
    """What all prompts of a phrasing have in common, "…" for what differs."""
    ends = min(prompts), max(prompts)
    turned = min(text[::-1] for text in prompts), max(text[::-1] for text in prompts)
    begin, end = _find_common(*ends), _find_common(*turned)[::-1]
    return begin if begin == end else f"{begin.strip()} … {end.strip()}".strip()


def _find_common(one: str, other: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(letter for letter, _ in same)


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
    models = sorted(kinds, key=lambda model: is_causal(kinds[model]))
    counts = sorted({steps for _, _, steps in sides if steps is not None})
    for one, other in combinations(models, 2):
        has_steps = not (is_causal(kinds[one]) and is_causal(kinds[other]))
        for split in dict.fromkeys(split for _, split, _ in sides):
            for steps in counts if has_steps else [None]:
                ours, theirs = (
                    sides.get((model, split, None if is_causal(kinds[model]) else steps))
                    for model in (one, other)
                )
                named = {"one": one, "other": other, "split": split, "steps": steps}
                if ours and theirs:
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
    """Recall of each training run by itself, by each rule, where there are several."""
    names = [name for name in ("seed", "opening") if name in rows[0]]
    runs = tidy.group_by(rows, lambda row: tuple(row[name] for name in names))
    for run, members in runs.items() if len(runs) > 1 else ():
        for rule in rules:
            share = sum(row[rule] for row in members) / len(members)
            yield dict(zip(names, run, strict=True)) | {"mean": share, "metric": rule}


def _choose_example(groups: Groups, last: list[Asking]) -> Rows:
    """What each model wrote after one prompt, one that diffusion recalls where there is one."""
    first, table = order_splits([key[1] for key in last])[0], groups.table
    columns = ["model", "kind", "split", "steps", "prompt", "completion", "generation", "hit"]
    first_seed = min(table["seed"].to_pylist())
    written: dict[str, dict[str, dict[str, Any]]] = {}
    for key in (key for key in last if key[1] == first):
        for row in table.select([*columns, "seed"]).take(groups.places[key]).to_pylist():
            # Of a prompt that is there several times, the first.
            if row.pop("seed") == first_seed:
                written.setdefault(row["prompt"], {}).setdefault(row["model"], row)

    def weigh(rows: Mapping[str, Any]) -> int:
        return sum(-row["hit"] if is_causal(row["kind"]) else row["hit"] for row in rows.values())

    return list(max(written.values(), key=weigh).values())
