"""The page of tracing results, written from tables alone."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.base.files import read_json_object, replace_file
from unmask.base.tables import read_table
from unmask.report.tracing_figures import (
    PART_NAMES,
    describe_group,
    draw_curves,
    draw_steps,
    draw_twins,
    name_stage,
)
from unmask.tracing.averages import OTHER_TOKEN, SCHEMA, TESTS_SCHEMA, TOTAL
from unmask.tracing.table import FACTS_SCHEMA, OTHER_FACT, RESULT, SHUFFLED

GROUP = ("kind", "direction", "trained", "corruption", "stage")
Row = Mapping[str, Any]
_CLEAR = 0.05
"""A corrected p that is told."""


def write_page(runs: Sequence[Path], combined: Path, out: Path) -> None:
    """Write the page at `out` and its figures beside it, from combined tables of some runs."""
    rows = read_table(combined / "averages.parquet", SCHEMA).to_pylist()
    facts = read_table(combined / "facts.parquet", FACTS_SCHEMA).to_pylist()
    tests: list[Row] = []
    if (combined / "tests.parquet").is_file():
        tests = read_table(combined / "tests.parquet", TESTS_SCHEMA).to_pylist()
    figures = out.with_suffix("")
    drawn = _draw_all(rows, figures)
    sections = [
        "# Where facts are recalled: causal traces",
        _tell_runs(runs),
        "## Facts kept and dropped\n\n" + _tell_facts(facts),
        _EFFECTS + _tell_effects(rows),
        _DIFFERENCES + _tell_tests(tests),
    ]
    if any(row["stage"].isdecimal() for row in rows):
        sections.append(_STEPS + _tell_steps(rows))
    flows = [row for row in rows if row["part"] == "flow"]
    if flows:
        sections.append(_FLOWS + _tell_flows(flows))
    sections += ["## Figures\n\n" + "\n\n".join(f"![{name}]({path})" for name, path in drawn)]
    sections += ["## What this says\n\n" + _conclude(rows, tests), _LIMITS]
    with replace_file(out) as draft:
        draft.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


_EFFECTS = """## Effects

AIE: what restoring one state, or a window of outputs, gives back of the answer's score; ATE: what
the corruption takes. Each line is the layer where a role's AIE is highest, with 95 % bootstrap
intervals over facts; the layer was chosen on the same facts, so the interval is narrow for a claim
about that very layer. Beside it, at the same layer, stand the placebos: a prompt token that is not
the subject's, another fact's state at the subject, and the same restore read for another answer.

"""
_DIFFERENCES = """## Differences

Means over layers of AIE, one group minus the other; paired over facts where both groups have them.
p by permutation, corrected (Holm) within each pair of groups. Shown are the total effects, and of
the rest what has a corrected p below 0.05.

"""
_STEPS = """## Step by step

The total effect at each step between the first and the last commitment of the answer, and the cell
that gives most of it back.

"""
_FLOWS = """## Subject and committed answer tokens

How much of p each gives at a step, by hiding one, the other and both (Shapley's shares).

"""
_LIMITS = """## What it does not say

An indirect effect says that a state is enough, under this corruption, to bring some of the answer
back. It does not say that the fact lies in that state or in those weights, nor that the network
needs the state on other prompts. Noise takes a network out of what it was trained on; masks do not,
but hide only what the prompt says. Windows add up layers, which can hide opposing ones. Facts that
the model does not recall are not in the averages: they are about recall that works."""


def _tell_runs(runs: Sequence[Path]) -> str:
    lines = []
    for run in runs:
        command = _tell_command(read_json_object(run / "run.json")["settings"])
        cut = "" if (run / "facts.parquet").is_file() else ", cut short: what it had until then"
        lines.append(f"- `{command}`{cut}")
    return "Written by `unmask trace-report` from these runs:\n\n" + "\n".join(lines)


def _tell_command(settings: Mapping[str, Any]) -> str:
    """The command that a run's settings stand for."""
    words = [f"unmask trace {settings['model']}"]
    for key, value in settings.items():
        if key == "any_answer":
            words += ["--any"] if value else []
        elif key == "run":
            words += ["--free"] if value == "free_running" else []
        elif key != "model" and value is not None:
            given = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(f"--{key} {given}")
    return " ".join(words)


def _tell_facts(facts: Sequence[Row]) -> str:
    groups: dict[tuple, list[Row]] = {}
    for fact in facts:
        key = tuple(fact[name] for name in ("kind", "direction", "trained", "corruption"))
        groups.setdefault(key, []).append(fact)
    lines = []
    for key, mine in groups.items():
        kept = [fact for fact in mine if fact["kept"]]
        reasons = [fact["reason"] for fact in mine if not fact["kept"]]
        why = ", ".join(f"{reasons.count(each)} {each}" for each in sorted(set(reasons)))
        clean = sum(fact["clean"] for fact in kept) / len(kept) if kept else float("nan")
        distinct = len({fact["fact"] for fact in kept})
        counts = (len(mine), len(kept), distinct, why or "–", f"{clean:.3f}")
        lines.append((*key, *counts))
    header = ("model", "given", "trained", "corruption", "prompts", "kept", "facts kept")
    return _format((*header, "dropped", "p clean"), lines)


def _tell_effects(rows: Sequence[Row]) -> str:
    blocks = []
    for group in _groups(rows, by_name=True):
        mine = _of_group(rows, group)
        total = next(row for row in mine if row["part"] == TOTAL and row["control"] == RESULT)
        lines = []
        for row in _peaks(mine):
            same = {"part": row["part"], "layer": row["layer"], "head": -1}
            lines.append(
                (
                    PART_NAMES.get(row["part"], row["part"]),
                    row["role"],
                    row["layer"],
                    _interval(row),
                    row["facts"],
                    _interval(_find(mine, role="placebo", control=OTHER_TOKEN, **same)),
                    _interval(_find(mine, role=row["role"], control=OTHER_FACT, **same)),
                    _interval(_find(mine, role=row["role"], control=SHUFFLED, **same)),
                )
            )
        header = ("part", "role", "layer", "AIE", "facts")
        header += ("other token", "other fact's state", "other answer")
        title = f"### {describe_group(group)}: ATE {_interval(total)}, {total['facts']} facts"
        blocks.append(f"{title}\n\n{_format(header, lines)}")
    return "\n\n".join(blocks)


def _tell_tests(tests: Sequence[Row]) -> str:
    if not tests:
        return "No two groups were traced at the same step."
    lines = [
        (
            test["one"],
            test["other"],
            f"{name_stage(test['stage'])}, {test['corruption']}",
            test["part"],
            test["role"] or "–",
            _interval(test),
            f"{test['p_holm']:.3g}",
            f"{test['facts']} {'paired' if test['paired'] else 'unpaired'}",
        )
        for test in tests
        if test["part"] == TOTAL or (test["part"] != "flow" and test["p_holm"] < _CLEAR)
    ]
    header = ("one", "minus", "at", "part", "role", "difference", "p (Holm)", "facts")
    return _format(header, lines)


def _tell_steps(rows: Sequence[Row]) -> str:
    lines = []
    steps = [group for group in _groups(rows) if group["stage"].isdecimal()]
    # By number, not by the letters of the number.
    steps.sort(key=lambda group: (*list(group.values())[:-1], int(group["stage"])))
    for group in steps:
        mine = _of_group(rows, group)
        total = _find(mine, part=TOTAL, control=RESULT)
        assert total is not None
        best = max(_peaks(mine), key=lambda row: row["mean"])
        cell = (
            f"{PART_NAMES.get(best['part'], best['part'])}, {best['role']}, layer {best['layer']}"
        )
        told = (describe_group(group), total["facts"], _interval(total), cell, _interval(best))
        lines.append(told)
    return _format(("group", "facts", "ATE", "best cell", "its AIE"), lines)


def _tell_flows(rows: Sequence[Row]) -> str:
    ordered = sorted(rows, key=lambda row: (*_key(row)[:4], row["stage"].zfill(4), row["role"]))
    lines = [
        (describe_group({name: row[name] for name in GROUP}), row["role"], _interval(row))
        for row in ordered
    ]
    return _format(("group", "from", "share of p"), lines)


def _conclude(rows: Sequence[Row], tests: Sequence[Row]) -> str:
    """Sentences that follow from the numbers by a rule: intervals that exclude 0 and placebos."""
    lines = []
    for group in _groups(rows, by_name=True):
        mine = _of_group(rows, group)
        clear = []
        for row in _peaks(mine):
            same = {"part": row["part"], "layer": row["layer"], "head": -1}
            placebos = [
                _find(mine, role="placebo", control=OTHER_TOKEN, **same),
                _find(mine, role=row["role"], control=OTHER_FACT, **same),
                _find(mine, role=row["role"], control=SHUFFLED, **same),
            ]
            highest = max((each["high"] for each in placebos if each), default=0.0)
            if row["low"] > max(0.0, highest):
                clear.append(row)
        clear.sort(key=lambda row: -row["mean"])
        told = "; ".join(
            f"{PART_NAMES.get(row['part'], row['part'])} at {row['role']}, layer {row['layer']} "
            f"(AIE {row['mean']:.3f})"
            for row in clear[:4]
        )
        none = "no role's best layer has an interval above 0 and above all its placebos'"
        lines.append(f"- {describe_group(group)}: {told or none}.")
    found = [test for test in tests if test["p_holm"] < _CLEAR and test["part"] != "flow"]
    lines.append(
        f"- Of {len(tests)} differences between groups, {len(found)} have a corrected p below 0.05."
    )
    return "\n".join(lines)


def _draw_all(rows: Sequence[Row], folder: Path) -> list[tuple[str, str]]:
    drawn = []

    def keep(name: str, title: str) -> Path:
        drawn.append((title, f"{folder.name}/{name}.png"))
        return folder / name

    for group in _groups(rows):
        if not group["stage"].isdecimal():
            name = _file_name("curves", *(group[each] for each in GROUP))
            draw_curves(keep(name, describe_group(group)), rows, group)
    along = {_key(row)[:4] for row in rows if row["stage"].isdecimal()}
    for key in sorted(along):
        group = dict(zip(GROUP, key, strict=False))
        for role in ("last subject", "answer mask"):
            mine = [row for row in _of_group(rows, group) if row["role"] == role]
            if any(row["stage"].isdecimal() and row["layer"] >= 0 for row in mine):
                name = _file_name("steps", *key, role)
                title = f"{describe_group(group)}, {role}"
                draw_steps(keep(name, title), rows, group, role)
    named = [row for row in rows if not row["stage"].isdecimal()]
    for corruption, stage in sorted({(row["corruption"], row["stage"]) for row in named}):
        how = {"corruption": corruption, "stage": stage}
        for part in ("resid", "mlp", "attn"):
            mine = [row for row in _of_group(rows, how) if row["part"] == part]
            if len({row["kind"] for row in mine}) > 1:
                title = f"{PART_NAMES[part]}, {name_stage(stage)}, {corruption}"
                draw_twins(keep(_file_name("twins", part, corruption, stage), title), mine, title)
    return drawn


def _file_name(*words: str) -> str:
    return "-".join(words).replace(" ", "-")


def _groups(rows: Iterable[Row], by_name: bool = False) -> list[dict[str, str]]:
    """The groups that have results; `by_name` without steps that are known by number alone."""
    keys = dict.fromkeys(
        _key(row)
        for row in rows
        if row["control"] == RESULT and not (by_name and row["stage"].isdecimal())
    )
    return [dict(zip(GROUP, key, strict=True)) for key in sorted(keys)]


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in GROUP)


def _of_group(rows: Iterable[Row], group: Mapping[str, str]) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in group.items())]


def _peaks(rows: Sequence[Row]) -> list[Row]:
    """The best layer of each part and role."""
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row["control"] == RESULT and row["layer"] >= 0 and row["head"] < 0:
            at = (row["part"], row["role"])
            if at not in best or row["mean"] > best[at]["mean"]:
                best[at] = row
    return list(best.values())


def _find(rows: Sequence[Row], **wanted: Any) -> Row | None:
    return next(
        (row for row in rows if all(row[name] == value for name, value in wanted.items())), None
    )


def _interval(row: Row | None) -> str:
    if row is None:
        return "–"
    # Adding 0 turns a rounded -0 into 0.
    mean, low, high = (round(row[name], 4) + 0.0 for name in ("mean", "low", "high"))
    return f"{mean:.4f} [{low:.4f}, {high:.4f}]"


def _format(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    table = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in table)
