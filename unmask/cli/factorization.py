"""`unmask factorization`: whether a model's two factorizations of a sentence agree."""

from pathlib import Path

import typer

from unmask.cli.measures import CORPUS, DEVICE, DTYPE, JSON, LENGTH, MODELS


def factorization(
    models: list[str] = MODELS,
    data: Path = CORPUS,
    splits: str = typer.Option(
        "",
        help="Splits, separated by commas; the tests and the facts trained both ways by default.",
    ),
    limit: int | None = typer.Option(30, help="Sentences of each split."),
    length: int | None = LENGTH,
    dtype: str = DTYPE,
    device: str = DEVICE,
    as_json: bool = JSON,
    out: Path = typer.Option(
        Path("runs/factorization"), help="Folder of the run; resumes what it holds."
    ),
) -> None:
    """Compare log p(A) + log p(B|A) with log p(B) + log p(A|B) on the same sentences."""
    from rich.console import Console

    from unmask.cli.lists import parse_names
    from unmask.cli.measures import open_measurement, print_json
    from unmask.data.sources import name_tests, read_asked
    from unmask.evaluation.factorization import SCHEMA, measure_factorization
    from unmask.evaluation.families import parse_families
    from unmask.evaluation.groups import estimate_groups
    from unmask.evaluation.members import measure_members
    from unmask.evaluation.questions import choose_splits, digest_splits
    from unmask.report.groups_table import show_groups

    corpus = read_asked(data)
    usual = (
        *name_tests(corpus),
        *(split for split in ("both_d2p", "both_p2d") if split in corpus.splits),
    )
    chosen = choose_splits(corpus, parse_names(splits) or usual, limit, False)
    families = parse_families(models)
    settings = {"prompts": digest_splits(chosen), "length": length, "dtype": dtype}
    folder = open_measurement(out, "factorization", families, settings)
    table = measure_members(
        families,
        lambda model: measure_factorization(model, chosen, length),
        folder,
        SCHEMA,
        device,
        dtype,
    )
    labels = {
        "joint_forward": "log p(A) + log p(B|A), a token",
        "joint_backward": "log p(B) + log p(A|B), a token",
        "gap": "|difference|, a token",
        "information_forward": "log p(B|A) − log p(B)",
        "information_backward": "log p(A|B) − log p(A)",
    }
    groups = estimate_groups(table.to_pylist(), ("model", "split"), list(labels))
    if as_json:
        print_json(groups)
        return
    console = Console()
    title = "both factorizations of prompt A and completion B, nats [95 % interval by fact]"
    show_groups(console, title, groups, labels)
    console.print(f"every sentence: {folder / 'factorization.parquet'}", markup=False)
