"""The page of tracing results, written from tables alone."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.base.files import read_json_object, replace_file
from unmask.base.tables import read_table
from unmask.evaluation.statistics import ALPHA
from unmask.report.markdown import format_table
from unmask.report.tracing_figures import (
    PART_NAMES,
    describe_group,
    draw_curves,
    draw_steps,
    draw_twins,
    name_stage,
)
from unmask.report.tracing_groups import (
    GROUP,
    Row,
    find_asked,
    find_groups,
    find_peaks,
    find_placebos,
    find_total,
    key_of,
    name_layer,
    rows_of,
)
from unmask.report.tracing_words import conclude
from unmask.tracing.averages import SCHEMA, TESTS_SCHEMA, TOTAL
from unmask.tracing.table import FACTS_SCHEMA


def write_page(runs: Sequence[Path], combined: Path, out: Path) -> None:
    """Write the page at `out` and its figures beside it, from combined tables of some runs."""
    rows = read_table(combined / "averages.parquet", SCHEMA).to_pylist()
    facts = read_table(combined / "facts.parquet", FACTS_SCHEMA).to_pylist()
    tests: list[Row] = []
    if (combined / "tests.parquet").is_file():
        tests = read_table(combined / "tests.parquet", TESTS_SCHEMA).to_pylist()
    figures = out.with_suffix("")
    drawn = _draw_all(rows, figures)
    settings = [read_json_object(run / "run.json")["settings"] for run in runs]
    # Runs of one page have one metric: `combine` saw to that.
    said = conclude(rows, tests, settings[0]["metric"])
    sections = [
        "# Where facts are recalled: causal traces",
        _tell_runs(runs, settings),
        _CONCLUSION + said,
        _LIMITS,
        "## Facts kept and dropped\n\n" + _tell_facts(facts),
        _EFFECTS + _tell_effects(rows),
        _DIFFERENCES + _tell_joint(facts, settings) + _tell_tests(tests),
    ]
    if any(row["stage"].isdecimal() for row in rows):
        sections.append(_STEPS + _tell_steps(rows))
    if any(row["part"] == "flow" for row in rows):
        sections.append(_FLOWS + _tell_flows(rows))
    sections += ["## Figures\n\n" + "\n\n".join(f"![{name}]({path})" for name, path in drawn)]
    with replace_file(out) as draft:
        draft.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


_CONCLUSION = """## What this says

Beside a cell stands what restoring it gives back of what the corruption took. Only cells are told
whose interval lies above 0 and above those of all their placebos. *d2p*: the description is given,
*p2d*: the name; *reverse*: training showed the fact the other way round.

"""
_EFFECTS = """## Effects

AIE: what restoring one state, or a window of outputs, gives back of the answer's score; ATE: what
the corruption takes. Each line is the layer where a role's AIE is highest, with its 95 %
interval over facts; the layer was chosen on the same facts, so the interval is narrow for a claim
about that very layer. Beside it, at the same layer, stand the placebos: a prompt token that is not
the subject's, another fact's state at the subject, and the same restore read for another answer.

"""
_DIFFERENCES = """## Differences

Means over layers of AIE, one group minus the other; paired over facts where both groups have them.
p by permutation, corrected (Holm) within each pair of groups. Shown are the total effects, and of
the rest what has a corrected p below 0.05.

"""
_JOINT = """An autoregressive model's answer is scored by the chain rule, each token with those
before it given; a diffusion model's is here the product over masks that see none of each other.
Between the two kinds effects differ for that reason, too; `--joint chain_rule` scores both alike.

"""
_STEPS = """## Step by step

The total effect at each step between the first and the last commitment of the answer, and the cell
that gives most of it back. A step asks for the answer tokens that are still masked, fewer and fewer
(*tokens asked*, the mean over facts), and early steps are those of facts that begin early: compare
steps with the same facts, and log-probabilities by the token.

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


def _tell_runs(runs: Sequence[Path], settings: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for run, mine in zip(runs, settings, strict=True):
        command = _tell_command(mine)
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
        clean = f"{sum(fact['clean'] for fact in kept) / len(kept):.3g}" if kept else "–"
        distinct = len({fact["fact"] for fact in kept})
        counts = (len(mine), len(kept), distinct, why or "–", clean)
        lines.append((*key, *counts))
    header = ("model", "given", "trained", "corruption", "prompts", "kept", "facts kept")
    return format_table((*header, "dropped", "p clean, first step traced"), lines)


def _tell_effects(rows: Sequence[Row]) -> str:
    blocks = []
    for group in find_groups(rows, numbered=False):
        mine = rows_of(rows, group)
        total = find_total(mine)
        lines = [
            (
                PART_NAMES.get(row["part"], row["part"]),
                row["role"],
                name_layer(row),
                _interval(row),
                row["facts"],
                *map(_interval, find_placebos(mine, row)),
            )
            for row in find_peaks(mine)
        ]
        header = ("part", "role", "layer", "AIE", "facts")
        header += ("other token", "other fact's state", "other answer")
        title = f"### {describe_group(group)}: ATE {_interval(total)}, {total['facts']} facts"
        blocks.append(f"{title}\n\n{format_table(header, lines)}")
    return "\n\n".join(blocks)


def _tell_joint(facts: Sequence[Row], settings: Sequence[Mapping[str, Any]]) -> str:
    """That two kinds of model were scored differently, where they were."""
    if len({fact["kind"] for fact in facts}) < 2:
        return ""
    joints = {mine.get("joint") for mine in settings}
    return "" if joints == {"chain_rule"} else _JOINT


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
        if test["part"] == TOTAL or (test["part"] != "flow" and test["p_holm"] <= ALPHA)
    ]
    header = ("one", "minus", "at", "part", "role", "difference", "p (Holm)", "facts")
    return format_table(header, lines)


def _tell_steps(rows: Sequence[Row]) -> str:
    lines = []
    for group in find_groups(rows, numbered=True):
        mine = rows_of(rows, group)
        total, best = find_total(mine), max(find_peaks(mine), key=lambda row: row["mean"])
        part = PART_NAMES.get(best["part"], best["part"])
        cell = f"{part}, {best['role']}, layer {name_layer(best)}"
        asked = find_asked(mine)
        tokens = "–" if asked is None else f"{asked:.1f}"
        told = (describe_group(group), total["facts"], tokens, _interval(total))
        lines.append((*told, cell, _interval(best)))
    header = ("group", "facts", "tokens asked", "ATE", "best cell", "its AIE")
    return format_table(header, lines)


def _tell_flows(rows: Sequence[Row]) -> str:
    flows = [row for row in rows if row["part"] == "flow"]
    lines = []
    for numbered in (False, True):
        for group in find_groups(flows, numbered):
            mine = {row["role"]: row for row in rows_of(flows, group)}
            shares = [_interval(mine.get(role)) for role in ("subject", "committed")]
            facts = max(row["facts"] for row in mine.values())
            lines.append((describe_group(group), facts, *shares))
    return format_table(("group", "facts", "from the subject", "from committed tokens"), lines)


def _draw_all(rows: Sequence[Row], folder: Path) -> list[tuple[str, str]]:
    drawn = []

    def keep(name: str, title: str) -> Path:
        drawn.append((title, f"{folder.name}/{name}.png"))
        return folder / name

    for group in find_groups(rows, numbered=False):
        if not any(row["layer"] >= 0 and row["head"] < 0 for row in rows_of(rows, group)):
            continue  # heads alone: a curve for each would be too many
        name = _file_name("curves", *(group[each] for each in GROUP))
        draw_curves(keep(name, describe_group(group)), rows, group)
    along = {key_of(row)[:4] for row in rows if row["stage"].isdecimal()}
    for key in sorted(along):
        group = dict(zip(GROUP, key, strict=False))
        for role in ("last subject", "answer mask"):
            mine = [row for row in rows_of(rows, group) if row["role"] == role]
            if any(row["stage"].isdecimal() and row["layer"] >= 0 > row["head"] for row in mine):
                name = _file_name("steps", *key, role)
                title = f"{describe_group(group)}, {role}"
                draw_steps(keep(name, title), rows, group, role)
    named = [row for row in rows if not row["stage"].isdecimal()]
    for corruption, stage in sorted({(row["corruption"], row["stage"]) for row in named}):
        how = {"corruption": corruption, "stage": stage}
        for part in ("resid", "mlp", "attn"):
            mine = [row for row in rows_of(rows, how) if row["part"] == part]
            if len({row["kind"] for row in mine}) > 1:
                title = f"{PART_NAMES[part]}, {name_stage(stage)}, {corruption}"
                draw_twins(keep(_file_name("twins", part, corruption, stage), title), mine, title)
    return drawn


def _file_name(*words: str) -> str:
    return "-".join(words).replace(" ", "-")


def _interval(row: Row | None) -> str:
    if row is None:
        return "–"
    # Adding 0 turns a rounded -0 into 0.
    mean, low, high = (round(row[name], 4) + 0.0 for name in ("mean", "low", "high"))
    # One fact has no interval.
    return f"{mean:.4f}" + ("" if math.isnan(low) else f" [{low:.4f}, {high:.4f}]")
