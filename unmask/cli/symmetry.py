"""`unmask symmetry`: do the keys and values of two directions mirror each other?"""

from pathlib import Path
from typing import Any

import typer


def symmetry(
    runs: list[Path] = typer.Argument(
        ..., metavar="RUN [RUN2]", help="Folders of `unmask represent`, such as diffusion and AR."
    ),
    permutations: int = typer.Option(999, help="Shuffled pairings for each null."),
    seed: int = typer.Option(0, help="Seed of the nulls."),
    out: Path | None = typer.Option(None, help="Folder of tables and figures; RUN/symmetry else."),
    page: Path | None = typer.Option(None, help="A Markdown file to write the results to."),
) -> None:
    """Compare keys and values of the same concepts: a table, symmetry.parquet and figures."""
    import shlex
    import sys
    import time

    from rich.console import Console

    from unmask.base.devices import describe_device, resolve_device
    from unmask.base.errors import UserError
    from unmask.base.tables import write_table
    from unmask.report.symmetry_page import Results, write_symmetry_page
    from unmask.report.symmetry_table import show_symmetry
    from unmask.representation.extraction import read_extraction
    from unmask.representation.symmetry import SCHEMA, compare_models, measure_symmetry

    if permutations < 19:
        raise UserError(f"{permutations} permutations were asked for: expected at least 19.")
    names = _name_runs(runs)
    found = {name: read_extraction(run) for name, run in names.items()}
    told = {name: _read_settings(run) for name, run in names.items()}
    lines = [
        line
        for name, (rows, tensors) in found.items()
        for line in measure_symmetry(name, told[name]["kind"], rows, tensors, permutations, seed)
    ]
    differences = compare_models(lines)
    out = runs[0] / "symmetry" if out is None else out
    write_table(out / "symmetry.parquet", [line.to_row() for line in lines], SCHEMA)
    figures, probes = _draw(names, found, lines, out)
    console = Console()
    show_symmetry(console, lines, differences)
    if page is not None:
        results = Results(
            extractions={name: rows for name, (rows, _) in found.items()},
            settings={name: _describe(told[name]) for name in names},
            lines=lines,
            differences=differences,
            probes=probes,
            figures=figures,
        )
        setting = f"On {describe_device(resolve_device('cpu'))}, {time.strftime('%Y-%m-%d')}"
        write_symmetry_page(page, results, shlex.join(["unmask", *sys.argv[1:]]), setting)
    console.print(
        f"table: {out / 'symmetry.parquet'}; figures: {out}", markup=False, highlight=False
    )


def _name_runs(runs: list[Path]) -> dict[str, Path]:
    """The runs by their folders' names, which tell the models apart."""
    from unmask.base.errors import UserError

    names = {run.resolve().name: run for run in runs}
    if len(names) < len(runs):
        raise UserError(
            "several runs have a folder of the same name: rename one to tell them apart."
        )
    return names


def _read_settings(run: Path) -> dict[str, Any]:
    from unmask.base.config import build
    from unmask.base.errors import UserError
    from unmask.base.files import read_json_object
    from unmask.base.runs import RunRecord

    record = build(RunRecord, read_json_object(run / "run.json"), f"{run}/run.json")
    if record.verb != "represent":
        raise UserError(
            f"{run} is a run of `unmask {record.verb}`: expected one of `unmask represent`."
        )
    return record.settings


def _describe(told: dict[str, Any]) -> str:
    """How a run was made, in words."""
    patterns = ", ".join(f"{share:g}" for share in told["revealed"])
    return (
        f"{told['model']} ({told['kind']}), data {told['data']}, objective {told['objective']} "
        f"(KL {told['kl']:g} read at {told['kl_read']}, norm {told['norm']:g}), {told['prefixes']} "
        f"prefixes, {told['steps']} evaluations, lr {told['lr']:g}, clamp {told['clamp']}, stop "
        f"{told['stop']}, share of the object shown {patterns}, guidance {told['guidance']:g}, "
        f"keys read on the {told['key_text']}."
    )


def _draw(names: dict[str, Path], found: Any, lines: Any, out: Path) -> tuple[Any, Any]:
    """The figures by their titles, and the probes' rows by model."""
    from unmask.base.tables import read_table
    from unmask.report import symmetry_figures as figures
    from unmask.representation.lens import SCHEMA as LENS
    from unmask.representation.probes import SCHEMA as PROBES
    from unmask.representation.symmetry import pair_vectors

    places = dict.fromkeys((line.model, line.group) for line in lines)
    vectors = {}
    for model, group in places:
        layers = sorted({ln.layer for ln in lines if (ln.model, ln.group) == (model, group)})
        layer = layers[len(layers) // 2]
        title = f"{model}, layer {layer}, facts trained {group}"
        vectors[title] = pair_vectors(*found[model], group, layer)
    drawn = {
        "Keys and values on the plane of their first two principal components, the same concept "
        "joined": ("map", lambda path: figures.draw_map(vectors, path)),
        "Shares of variance along each set's own directions": (
            "spectrum",
            lambda path: figures.draw_spectrum(vectors, path),
        ),
        "How well a value finds its own key, by layer; dotted: shuffled pairs": (
            "retrieval",
            lambda path: figures.draw_retrieval(lines, path),
        ),
        "Every measure on shuffled pairs (histograms) and on the true ones (lines)": (
            "nulls",
            lambda path: figures.draw_nulls(lines, path),
        ),
    }
    rows = {}
    for kind, schema in (("lens", LENS), ("probes", PROBES)):
        there = {name: run / f"{kind}.parquet" for name, run in names.items()}
        rows[kind] = {
            name: read_table(path, schema).to_pylist()
            for name, path in there.items()
            if path.is_file()
        }
    if rows["lens"]:
        title = "The logit lens: log p of the object's hidden tokens behind each layer"
        drawn[title] = ("lens", lambda path: figures.draw_lens(rows["lens"], path))
    if rows["probes"]:
        title = "Linear probes for which fact it is, on phrasings held out; dotted: chance"
        drawn[title] = ("probes", lambda path: figures.draw_probes(rows["probes"], path))
    for file, draw in drawn.values():
        draw(out / file)
    return {title: out / file for title, (file, _) in drawn.items()}, rows["probes"]
