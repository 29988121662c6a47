"""Single traced texts on the page: tokens by layers, step by step."""

from collections.abc import Mapping, Sequence
from typing import Any

from unmask.report.artefacts import ALONG, MAPS, TOKENS, Row, StudyFolder
from unmask.report.blocks import Figure
from unmask.report.tracing_figures import PART_NAMES
from unmask.report.tracing_names import name_way
from unmask.tracing.table import RESULT

MOST_CELLS = 200_000
"""Cells of single texts that a page holds; more texts are left out."""


def draw_texts(run: StudyFolder, prefix: str) -> Figure:
    """Single texts: tokens by layers, with a slider over the denoising steps."""
    cells, tokens = run.rows(MAPS), run.rows(TOKENS)
    averages = run.rows(f"{ALONG}/averages.parquet") if run.has(f"{ALONG}/averages.parquet") else []
    names = ("fact", "direction", "trained")
    texts: dict[tuple, list[Row]] = {}
    for cell in cells:
        texts.setdefault(tuple(cell[name] for name in names), []).append(cell)
    pieces: dict[tuple, list[Row]] = {}
    for token in tokens:
        pieces.setdefault(tuple(token[name] for name in names), []).append(token)
    shown, room = [], MOST_CELLS
    for key, mine in texts.items():
        room -= len(mine)
        if room >= 0 or not shown:
            shown.append(key)
    parts = [part for part in PART_NAMES if any(cell["part"] == part for cell in cells)]
    steps = sorted({cell["step"] for key in shown for cell in texts[key]})
    views = {}
    for i, key in enumerate(shown):
        for j, part in enumerate(parts):
            for k, step in enumerate(steps):
                mine = [c for c in texts[key] if c["part"] == part and c["step"] == step]
                if mine:
                    views[f"{i}|{j}|{k}"] = _lay_out_text(mine, pieces[key], averages, key[1:])
    labels = [f"{name_way(key[1], key[2])}: {texts[key][0]['object'].strip()}" for key in shown]
    return Figure(
        name=f"{prefix}texts",
        title="One text, token by token, step by step",
        alt=f"Heatmaps of {len(shown)} texts: rows are tokens, columns layers, a slider goes over "
        f"{len(steps)} denoising steps. Purple states bring the answer back, orange ones take it "
        "away.",
        caption="Starred: the subject. ░ is still masked at that step; → marks the answer. "
        "The interval is that of the token's role, averaged over the facts that were followed.",
        chart="heatmap",
        data={
            "controls": [
                {"label": "text", "options": labels},
                {"label": "restored", "options": [PART_NAMES[part] for part in parts]},
                {"label": "step", "slider": True, "options": [f"step {step}" for step in steps]},
            ],
            "views": views,
            "xlabel": "layer",
            "value": "effect",
            "signed": True,
        },
    )


def _lay_out_text(
    cells: Sequence[Row], tokens: Sequence[Row], averages: Sequence[Row], way: Sequence[str]
) -> dict[str, Any]:
    first = cells[0]
    step, layers = first["step"], 1 + max(cell["layer"] for cell in cells)
    spelled = {token["position"]: token for token in tokens}
    places = sorted({cell["token"] for cell in cells})
    ends = [place for place in places if spelled[place]["piece"] == "⏎"]
    if ends:
        places = [place for place in places if place <= ends[0]]
    at = {(cell["token"], cell["layer"]): cell for cell in cells}
    role_at = {(row["role"], row["layer"]): row for row in averages if _fits(row, first, way)}
    spans = []
    for place in places:
        found = [role_at.get((at[place, layer]["role"], layer)) for layer in range(layers)]
        spans.append(found)
    return {
        "x": list(range(layers)),
        "y": [f"{place} {_spell(spelled[place], step)}" for place in places],
        "z": [[at[place, layer]["effect"] for layer in range(layers)] for place in places],
        "low": [[row["low"] if row else None for row in line] for line in spans],
        "high": [[row["high"] if row else None for row in line] for line in spans],
        "row_note": [at[place, 0]["role"] for place in places],
        "title": f"answer {first['clean']:.3f}, with the subject hidden {first['corrupted']:.3f}",
    }


def _fits(row: Mapping[str, Any], cell: Mapping[str, Any], way: Sequence[str]) -> bool:
    wanted = (cell["stage"], cell["part"], *way, RESULT)
    names = ("stage", "part", "direction", "trained", "control")
    return tuple(row[name] for name in names) == wanted and row["head"] < 0


def _spell(token: Row, step: int) -> str:
    text = token["piece"].strip() or "·"
    if token["written"] >= step:
        text = "░"
    mark = "*" if token["in_subject"] else ""
    return f"{'→ ' if token['in_answer'] else ''}{text}{mark}"
