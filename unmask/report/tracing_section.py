"""Causal traces on the page: averages by role, diffusion beside its twin, texts step by step."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

from unmask.base.errors import UserError
from unmask.evaluation.statistics import ALPHA
from unmask.report.artefacts import ALONG, CONSIDERED, TRACING, Row, StudyFolder
from unmask.report.blocks import (
    Block,
    Figure,
    Grid,
    Missing,
    Section,
    Words,
    format_interval,
    make_blocks,
)
from unmask.report.recall_section import name_asked
from unmask.report.traced_texts import draw_texts
from unmask.report.tracing_figures import PART_NAMES
from unmask.report.tracing_names import KINDS, SPLITS, STAGES, name_metric, name_way
from unmask.tracing.averages import OTHER_TOKEN, TOTAL
from unmask.tracing.roles import ROLES
from unmask.tracing.table import OTHER_FACT, RESULT

_MOST_TESTS = 12


def tell_tracing(run: StudyFolder, prefix: str = "") -> Section:
    """The section of where facts are recalled."""
    blocks: list[Block] = [
        Words(
            "The subject in the prompt is hidden, so that the answer becomes unlikely; then one "
            "clean state is put back at one token and layer. What it brings back is its indirect "
            f"effect, here in {name_metric(run)}. That a state brings the answer back says that it "
            "is enough under this corruption, not that the fact lies there."
        )
    ]
    if run.has(CONSIDERED):
        blocks += make_blocks([lambda: _tell_considered(run.rows(CONSIDERED))], run.advice)
    notes = run.notes("tracing")
    blocks += [Missing(note) for note in notes]
    # Facts are told together only where some were traced.
    together = (f"{TRACING}/facts.parquet", f"{TRACING}/averages.parquet")
    if any(run.has(name) for name in together) or not notes:
        averages = cache(partial(run.rows, f"{TRACING}/averages.parquet"))
        makers: list[Callable[[], Block]] = [
            lambda: _count(run.rows(f"{TRACING}/facts.parquet")),
            lambda: draw_twins(
                keep_shared(averages()), f"{prefix}effects-by-role", name_metric(run)
            ),
            lambda: _draw_averages(keep_main(averages()), f"{prefix}effects", ("first", "last")),
            lambda: _tabulate_tests(run),
        ]
        blocks += make_blocks(makers, run.advice)
    if _kept_any(run, f"{ALONG}/facts.parquet") or not notes:
        along = [partial(draw, run, prefix) for draw in (draw_texts, _draw_steps)]
        blocks += make_blocks(along, run.advice)
    return Section(f"{prefix}tracing-section", "Where facts are recalled", blocks)


def _kept_any(run: StudyFolder, name: str) -> bool:
    """Whether some fact was traced, as the table of facts has it; one that is broken says no."""
    try:
        return run.has(name) and any(row["kept"] for row in run.rows(name))
    except UserError:
        return False


def _tell_considered(rows: Sequence[Row]) -> Words:
    shares = [
        f"{row['recalled']} of {row['considered']}, {name_asked(row['split'])}" for row in rows
    ]
    return Words(
        "Only facts that are recalled can be traced, so those come first. Without guidance the "
        f"diffusion model recalls {'; '.join(shares)}."
    )


def keep_main(rows: Sequence[Row]) -> list[Row]:
    """The rows of each kind of model under its own corruption.

    A diffusion model that is compared with a twin is also traced, at its first step alone, under
    a corruption that both can have.
    """
    main = {
        row["kind"]: row["corruption"]
        for row in sorted(rows, key=lambda row: row["stage"] == "last")
    }
    return [row for row in rows if row["corruption"] == main[row["kind"]]]


def keep_shared(rows: Sequence[Row]) -> list[Row]:
    """The rows of corruptions that all kinds of model have."""
    kinds = {row["kind"] for row in rows}
    shared = set.intersection(
        *({row["corruption"] for row in rows if row["kind"] == kind} for kind in kinds)
    )
    return [row for row in rows if row["corruption"] in shared] or keep_main(rows)


def _count(facts: Sequence[Row]) -> Grid:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for fact in facts:
        key = (fact["kind"], fact["direction"], fact["trained"], fact["corruption"])
        groups.setdefault(key, []).append(fact)
    rows = []
    for (kind, direction, trained, corruption), mine in groups.items():
        kept = [fact for fact in mine if fact["kept"]]
        reasons = [fact["reason"] for fact in mine if not fact["kept"]]
        why = ", ".join(f"{reasons.count(each)} {each}" for each in sorted(set(reasons)))
        clean = f"{sum(fact['clean'] for fact in kept) / len(kept):.2f}" if kept else "–"
        whose = [KINDS[kind], name_way(direction, trained), corruption]
        rows.append([*whose, str(len(kept)), why or "–", clean])
    return Grid(
        "Facts that were traced; only what a model recalls can be",
        ["model", "asked", "subject hidden by", "traced", "left out", "p of the answer"],
        rows,
    )


def draw_twins(rows: Sequence[Row], name: str, metric: str) -> Figure:
    """Each role's effect at its best layer, diffusion beside its twin, with placebos."""
    named = [row for row in rows if row["stage"] == "first" and row["head"] < 0]
    ways = _find_ways(named)
    parts = [part for part in PART_NAMES if any(row["part"] == part for row in named)]
    views, told = {}, []
    for i, way in enumerate(ways):
        for j, part in enumerate(parts):
            mine = [
                row
                for row in named
                if (row["direction"], row["trained"], row["part"]) == (*way, part)
            ]
            views[f"{i}|{j}"] = {"rows": list(_find_dots(mine))}
            if part == "resid":
                best = max(mine, key=lambda row: row["mean"])
                told.append(
                    f"{name_way(*way)}: {KINDS[best['kind']]}, {best['role']}, layer "
                    f"{best['layer']}, {best['mean']:.3f}"
                )
    return Figure(
        name=name,
        title="Effect by role: diffusion beside autoregressive",
        alt="Dots with intervals: for every role of a token, the average indirect effect at its "
        f"best layer at the first step. Largest of states: {'; '.join(told)}.",
        caption=f"First step, the subject hidden by {_name_corruptions(named)}; the layer is the "
        "one where the role's effect is highest, so its interval flatters that layer. Grey: "
        f"placebos at the layer of the last subject token.{_tell_joints(named)}",
        chart="dots",
        data={
            "controls": [
                {"label": "asked", "options": [name_way(*way) for way in ways]},
                {"label": "restored", "options": [PART_NAMES[part] for part in parts]},
            ],
            "views": views,
            "xlabel": f"average indirect effect, {metric}",
        },
    )


def _tell_joints(rows: Sequence[Row]) -> str:
    """How far the two kinds of model can be compared."""
    if len({row["kind"] for row in rows}) < 2:
        return ""
    return (
        " An autoregressive answer is scored token by token, those before it given, a diffusion "
        "model's by masks that see none of each other: compare where effects are, and not how "
        "large."
    )


def _name_corruptions(rows: Sequence[Row]) -> str:
    return " and ".join(sorted({row["corruption"] for row in rows}))


def _find_dots(rows: Sequence[Row]) -> Iterable[dict[str, Any]]:
    for kind in KINDS:
        mine = [row for row in rows if row["kind"] == kind]
        results = [row for row in mine if row["control"] == RESULT]
        peaks: dict[str, Row] = {}
        for row in results:
            if row["role"] not in peaks or row["mean"] > peaks[row["role"]]["mean"]:
                peaks[row["role"]] = row
        colour = "diffusion" if kind == "masked" else "causal"
        for role in ROLES:
            if role in peaks:
                yield _dot(peaks[role], role, KINDS[kind], colour)
        at = peaks.get("last subject")
        for control, role, label in (
            (OTHER_TOKEN, "placebo", "placebo: another token"),
            (OTHER_FACT, "last subject", "placebo: another fact's state"),
        ):
            found = [
                row
                for row in mine
                if at is not None
                and (row["control"], row["role"], row["layer"]) == (control, role, at["layer"])
            ]
            if found:
                yield _dot(found[0], label, KINDS[kind], "control")


def _dot(row: Row, label: str, group: str, colour: str) -> dict[str, Any]:
    return {
        "label": label,
        "group": group,
        "colour": colour,
        "mean": row["mean"],
        "low": row["low"],
        "high": row["high"],
        "note": f"layer {row['layer']}, {row['facts']} facts",
    }


def _draw_averages(rows: Sequence[Row], name: str, stages: Sequence[str]) -> Figure:
    """Effects by role and layer, averaged over facts."""
    groups = list(
        dict.fromkeys(
            (row["kind"], row["direction"], row["trained"])
            for row in rows
            if row["control"] == RESULT
        )
    )
    parts = [part for part in PART_NAMES if any(row["part"] == part for row in rows)]
    shown = [stage for stage in stages if any(row["stage"] == stage for row in rows)]
    views = {}
    for i, group in enumerate(groups):
        for j, part in enumerate(parts):
            for k, stage in enumerate(shown):
                found = _lay_out(rows, (*group, part, stage))
                if found is not None:
                    views[f"{i}|{j}|{k}"] = found
    return Figure(
        name=name,
        title="Average effect by role and layer"
        + (", step by step" if all(stage.isdecimal() for stage in shown) else ""),
        alt="Heatmaps of the average indirect effect: rows are roles of tokens, columns layers. "
        "Purple gives the answer back, orange takes it away. The data can be downloaded below.",
        caption="Averages over facts; hover for the 95 % interval and the number of facts.",
        chart="heatmap",
        data={
            "controls": [
                {
                    "label": "model and way",
                    "options": [f"{KINDS[kind]}: {name_way(*way)}" for kind, *way in groups],
                },
                {"label": "restored", "options": [PART_NAMES[part] for part in parts]},
                {
                    "label": "step",
                    "slider": all(stage.isdecimal() for stage in shown),
                    "options": [STAGES.get(stage, f"step {stage}") for stage in shown],
                },
            ],
            "views": views,
            "xlabel": "layer",
            "value": "effect",
            "signed": True,
        },
    )


def _lay_out(rows: Sequence[Row], key: tuple) -> dict[str, Any] | None:
    names = ("kind", "direction", "trained", "part", "stage")
    mine = [
        row
        for row in rows
        if row["control"] == RESULT
        and row["head"] < 0
        and tuple(row[name] for name in names) == key
    ]
    if not mine:
        return None
    roles = [role for role in ROLES if any(row["role"] == role for row in mine)]
    layers = 1 + max(row["layer"] for row in mine)
    at = {(row["role"], row["layer"]): row for row in mine}

    def fill(column: str) -> list[list[float | None]]:
        return [
            [at[role, layer][column] if (role, layer) in at else None for layer in range(layers)]
            for role in roles
        ]

    counts = [[at[role, i]["facts"] for i in range(layers) if (role, i) in at] for role in roles]
    return {
        "x": list(range(layers)),
        "y": roles,
        "z": fill("mean"),
        "low": fill("low"),
        "high": fill("high"),
        "row_note": [f"{max(each)} fact{'s' if max(each) != 1 else ''}" for each in counts],
    }


def _draw_steps(run: StudyFolder, prefix: str) -> Figure:
    rows = run.rows(f"{ALONG}/averages.parquet")
    stages = sorted({row["stage"] for row in rows if row["stage"].isdecimal()}, key=int)
    return _draw_averages(rows, f"{prefix}effects-along", stages)


def _tabulate_tests(run: StudyFolder) -> Block:
    name = f"{TRACING}/tests.parquet"
    if not run.has(name):
        return Words("No two groups have enough facts to be compared.")
    tests = [test for test in run.rows(name) if test["part"] != "flow"]
    clear = sorted(
        (test for test in tests if test["p_holm"] <= ALPHA), key=lambda test: test["p_holm"]
    )
    if not clear:
        return Words(
            f"Of {len(tests)} differences between groups (means over layers, role by role), none "
            "has a p below 0.05, corrected within each pair of groups."
        )
    rows = [
        [
            f"{test['one']} − {test['other']}",
            "total effect" if test["part"] == TOTAL else f"{test['part']}, {test['role']}",
            format_interval(test["mean"], test["low"], test["high"]),
            f"{test['p_holm']:.3f}",
        ]
        for test in clear[:_MOST_TESTS]
    ]
    return Grid(
        f"Clear differences between groups: {len(clear)} of {len(tests)} (p < 0.05, corrected by "
        "Holm within each pair of groups)",
        ["groups", "what", "difference [95 %]", "p"],
        rows,
    )


def _find_ways(rows: Iterable[Row]) -> list[tuple[str, str]]:
    found = {(row["direction"], row["trained"]) for row in rows}
    return [way for way in SPLITS if way in found]
