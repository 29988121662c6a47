"""`unmask knowns`: single-token completions of plain knowledge prompts, both ways."""

from pathlib import Path

import typer

from unmask.cli.measures import DEVICE, DTYPE, JSON, MODELS


def knowns(
    models: list[str] = MODELS,
    data: Path = typer.Option(
        ..., help="A JSON list of facts with subject, attribute and prompt, such as knowns.json."
    ),
    limit: int | None = typer.Option(None, help="The first so many facts; all by default."),
    examples: int = typer.Option(3, help="Completions to show of each model and way."),
    dtype: str = DTYPE,
    device: str = DEVICE,
    as_json: bool = JSON,
    out: Path = typer.Option(Path("runs/knowns"), help="Folder of the run; resumes what it holds."),
) -> None:
    """Hit rate and entropy of the first token asked for, forwards and in reverse."""
    from itertools import groupby

    from rich.console import Console

    from unmask.cli.measures import open_measurement, print_json
    from unmask.evaluation.digests import digest
    from unmask.evaluation.families import parse_families
    from unmask.evaluation.groups import estimate_groups
    from unmask.evaluation.knowns import SCHEMA, measure_knowns, read_knowns
    from unmask.evaluation.members import measure_members
    from unmask.report.groups_table import show_completions, show_groups

    facts = read_knowns(data, limit)
    families = parse_families(models)
    settings = {"data": str(data), "facts": digest(facts), "limit": limit, "dtype": dtype}
    folder = open_measurement(out, "knowns", families, settings)
    table = measure_members(
        families, lambda model: measure_knowns(model, facts), folder, SCHEMA, device, dtype
    )
    rows = table.to_pylist()
    labels = {"hit": "hit, %", "entropy": "entropy, nats", "logp": "log p(right)", "rank": "rank"}
    groups = estimate_groups(rows, ("model", "way"), list(labels), shares=("hit",))
    if as_json:
        print_json(groups)
        return
    console = Console()
    show_groups(console, "single-token completions", groups, labels, percent=("hit",))
    parts = groupby(rows, key=lambda row: (row["model"], row["seed"], row["way"]))
    show_completions(console, [row for _, part in parts for row in list(part)[:examples]])
    console.print(f"every completion: {folder / 'knowns.parquet'}", markup=False)
