"""`unmask recall`: what models recall of a corpus, forwards and backwards."""

from pathlib import Path

import typer

from unmask.cli.measures import CORPUS, DEVICE, DTYPE, JSON, LENGTH, MODELS, SPLITS


def recall(
    models: list[str] = MODELS,
    data: Path = CORPUS,
    steps: str = typer.Option("1,2,4,8,16,32", help="Sampling steps, separated by commas."),
    guidance: float = typer.Option(0.8, help="Strength of guidance; causal models have none."),
    limit: int | None = typer.Option(None, help="Prompts of each split; all by default."),
    splits: str = SPLITS,
    controls: bool = typer.Option(True, help="Measure the shuffled controls, too."),
    length: int | None = LENGTH,
    plan: str = typer.Option("smdm", help="How many tokens a step commits."),
    order: str = typer.Option("confidence", help="Which tokens go first."),
    dtype: str = DTYPE,
    device: str = DEVICE,
    as_json: bool = JSON,
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
    from unmask.cli.lists import parse_counts, parse_names
    from unmask.cli.measures import open_measurement
    from unmask.data.reversal_files import has_reversal_files
    from unmask.data.sources import name_tests, read_asked
    from unmask.evaluation.families import parse_families
    from unmask.evaluation.questions import choose_splits, digest_splits, refuse_controls
    from unmask.evaluation.recall import RecallSettings, measure_recall
    from unmask.evaluation.summary import summarise
    from unmask.report.recall_figures import draw_recall
    from unmask.report.recall_page import write_recall_page
    from unmask.report.recall_table import show_recall

    settings = RecallSettings(
        parse_counts(steps, "--steps"), guidance, length, plan, order, device, dtype
    )
    corpus = read_asked(data)
    names = parse_names(splits) or name_tests(corpus)
    refuse_controls(names)
    chosen = choose_splits(corpus, names, limit, controls)
    families = parse_families(models)
    record = {
        "data": str(data),
        "prompts": digest_splits(chosen),
        "steps": list(settings.steps),
        "guidance": guidance,
        "length": length,
        "plan": plan,
        "order": order,
        "dtype": dtype,
    }
    folder = open_measurement(out, "recall", families, record)
    summary = summarise(measure_recall(families, chosen, settings, folder))
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
