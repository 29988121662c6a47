"""`unmask nll`: what the tokens of names and descriptions cost."""

from pathlib import Path

import typer

from unmask.cli.measures import CORPUS, DEVICE, DTYPE, JSON, LENGTH, MODELS, SPLITS


def nll(
    models: list[str] = MODELS,
    data: Path = CORPUS,
    splits: str = SPLITS,
    limit: int | None = typer.Option(None, help="Prompts of each split; all by default."),
    length: int | None = LENGTH,
    dtype: str = DTYPE,
    device: str = DEVICE,
    as_json: bool = JSON,
    out: Path = typer.Option(Path("runs/nll"), help="Folder of the run; resumes what it holds."),
) -> None:
    """Nats a token of names and descriptions, given their prompts and alone: which are harder."""
    from rich.console import Console

    from unmask.cli.lists import parse_names
    from unmask.cli.measures import open_measurement, print_json
    from unmask.data.sources import name_tests, read_asked
    from unmask.evaluation.families import parse_families
    from unmask.evaluation.groups import estimate_groups
    from unmask.evaluation.members import measure_members
    from unmask.evaluation.questions import choose_splits, digest_splits
    from unmask.evaluation.surprise import SCHEMA, estimate_places, measure_surprise
    from unmask.report.groups_table import show_groups
    from unmask.report.nll_figures import draw_places

    corpus = read_asked(data)
    chosen = choose_splits(corpus, parse_names(splits) or name_tests(corpus), limit, False)
    families = parse_families(models)
    settings = {"prompts": digest_splits(chosen), "length": length, "dtype": dtype}
    folder = open_measurement(out, "nll", families, settings)
    table = measure_members(
        families,
        lambda model: measure_surprise(model, chosen, length),
        folder,
        SCHEMA,
        device,
        dtype,
    )
    labels = {
        "nll_per_token": "a token, prompt given",
        "nll_first": "first token",
        "nll_later": "later tokens",
        "alone_per_token": "a token, alone",
        "nll_total": "whole answer",
    }
    rows = table.to_pylist()
    groups = estimate_groups(rows, ("model", "split", "asked"), list(labels))
    draw_places(estimate_places(rows), folder / "nll")
    if as_json:
        print_json(groups)
        return
    console = Console()
    show_groups(console, "-log p of the answers, nats [95 % interval by fact]", groups, labels)
    console.print(f"every answer: {folder / 'nll.parquet'}; figure: {folder / 'nll.png'}")
