"""`unmask recall`: what models recall of a corpus, forwards and backwards."""

from pathlib import Path

import typer


def recall(
    models: list[str] = typer.Argument(
        ...,
        metavar="MODEL…",
        help="Models to compare. NAME=DIR,DIR,… is one model trained with several seeds.",
    ),
    data: Path = typer.Option(..., help="A corpus folder, this project's or Berglund's."),
    steps: str = typer.Option("1,2,4,8,16,32", help="Sampling steps, separated by commas."),
    guidance: float = typer.Option(0.8, help="Strength of guidance; causal models have none."),
    limit: int | None = typer.Option(None, help="Prompts of each split; all by default."),
    splits: str = typer.Option("", help="Splits, separated by commas; the four tests by default."),
    controls: bool = typer.Option(True, help="Measure the shuffled controls, too."),
    length: int | None = typer.Option(
        None, help="Canvas in tokens; 52 by default, or what the longest text needs."
    ),
    plan: str = typer.Option("smdm", help="How many tokens a step commits."),
    order: str = typer.Option("confidence", help="Which tokens go first."),
    dtype: str = typer.Option("auto", help="Number format; auto keeps the files'."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    seed: int = typer.Option(0, help="Seed of the bootstrap."),
    as_json: bool = typer.Option(False, "--json", help="Print the numbers as JSON instead."),
    out: Path = typer.Option(Path("runs/recall"), help="Folder of the run; resumes what it holds."),
    page: Path | None = typer.Option(None, help="A Markdown file to write the results to."),
) -> None:
    """Measure recall: a table, recall.parquet, summary.json and a figure."""
    import json
    import shlex
    import sys
    import time

    from rich.console import Console

    from unmask.base.devices import describe_device, resolve_device
    from unmask.base.files import write_json
    from unmask.base.runs import open_run
    from unmask.cli.lists import parse_counts, parse_names
    from unmask.data.corpus import TESTS
    from unmask.data.reversal_files import has_reversal_files
    from unmask.data.sources import read_corpus_folder
    from unmask.evaluation.families import parse_families
    from unmask.evaluation.questions import choose_splits, digest_splits
    from unmask.evaluation.recall import RecallSettings, measure_recall
    from unmask.evaluation.summary import summarise
    from unmask.report.recall_figures import draw_recall
    from unmask.report.recall_page import write_recall_page
    from unmask.report.recall_table import show_recall

    settings = RecallSettings(
        parse_counts(steps, "--steps"), guidance, length, plan, order, device, dtype
    )
    corpus = read_corpus_folder(data)
    chosen = choose_splits(corpus, parse_names(splits) or TESTS, limit, controls)
    families = parse_families(models)
    record = {
        "models": {family.name: list(family.members) for family in families},
        "weights": {family.name: list(family.digests) for family in families},
        "data": str(data),
        "prompts": digest_splits(chosen),
        "steps": list(settings.steps),
        "guidance": guidance,
        "length": length,
        "plan": plan,
        "order": order,
        "dtype": dtype,
    }
    folder = open_run(out, "recall", record)
    summary = summarise(measure_recall(families, chosen, settings, folder), seed)
    write_json(folder / "summary.json", summary.to_json())
    published = has_reversal_files(data)
    draw_recall(summary, folder / "recall", published)
    if page is not None:
        setting = f"On {describe_device(resolve_device(device))}, {time.strftime('%Y-%m-%d')}"
        command = shlex.join(["unmask", *sys.argv[1:]])
        write_recall_page(page, summary, command, setting, folder / "recall", published)
    if as_json:
        print(json.dumps(summary.to_json(), ensure_ascii=False))
        return
    console = Console()
    show_recall(console, summary, published)
    console.print(f"every prompt: {folder / 'recall.parquet'}; figure: {folder / 'recall.png'}")
