"""`unmask order`: which kinds of tokens a model commits when."""

from pathlib import Path

import typer


def order(
    name: str = typer.Argument(..., metavar="MODEL", help="A model's name, folder or file."),
    data: Path = typer.Argument(..., metavar="DATA", help="A corpus folder, facts or .txt lines."),
    limit: int = typer.Option(40, help="Prompts of each split, or of the file."),
    steps: int = typer.Option(16, help="Denoising steps."),
    guidance: str = typer.Option("0", help="Strength of guidance."),
    plan: str = typer.Option("smdm", help="How many tokens a step commits."),
    by: str = typer.Option("confidence", "--order", help="Which tokens go first."),
    length: int | None = typer.Option(None, help="Whole row, prompt included; else the context."),
    seed: int = typer.Option(0, help="Seed of whatever is drawn."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    out: Path = typer.Option(Path("runs/order"), help="Folder for the table and the figure."),
) -> None:
    """Report when kinds of tokens are committed: by kind of word, by place, by frequency."""
    from rich.console import Console

    from unmask.base.errors import UserError
    from unmask.base.tables import write_table
    from unmask.data.sources import read_prompts
    from unmask.evaluation.commits import SCHEMA, summarise_commits, watch_commits
    from unmask.net.loading import load
    from unmask.report.order_figures import draw_order, show_order

    if limit < 1:
        raise UserError(f"a limit of {limit} prompts was given: expected at least 1.")
    prompts, texts = read_prompts(data, limit)
    model = load(name, device=device)
    rows = watch_commits(
        model,
        prompts,
        texts,
        length,
        steps=steps,
        guidance=guidance,
        plan=plan,
        order=by,
        seed=seed,
    )
    lines = summarise_commits(rows)
    write_table(out / "order.parquet", rows, SCHEMA)
    draw_order(lines, out / "order")
    console = Console()
    taken = max((row["step"] for row in rows), default=steps)
    prompted = f"{len(prompts)} prompt{'s' if len(prompts) != 1 else ''}"
    show_order(console, f"{prompted}, {len(rows):,} tokens, {taken} steps", lines)
    console.print(
        f"every token: {out / 'order.parquet'}; figure: {out / 'order.png'}", markup=False
    )
