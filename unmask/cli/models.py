"""`unmask models` and `unmask convert`: which models there are, and from one dialect to another."""

from pathlib import Path

import typer


def models() -> None:
    """List the models that are shipped, cached on this machine, and known by name."""
    from rich.console import Console
    from rich.table import Table

    from unmask.base.units import format_bytes
    from unmask.net.hub import KNOWN, cached_models, shipped_models

    cached = cached_models()
    table = Table("name", "where", "from")
    for name in shipped_models():
        table.add_row(name, "shipped", "this package")
    for name, known in KNOWN.items():
        origin = known.repo + (f" ({known.file})" if known.file else "")
        files = cached.get(known.repo, {})
        here = known.file in files if known.file else bool(files)
        table.add_row(name, "cached" if here else "hub", origin)
    for repo, files in cached.items():
        if repo not in {known.repo for known in KNOWN.values()}:
            table.add_row(repo, "cached", format_bytes(sum(files.values())))
    console = Console()
    console.print(table)
    console.print(
        "Any folder, .safetensors file or hub id (owner/name) of a known dialect works too."
    )


def convert(
    given: str = typer.Argument(..., metavar="IN", help="A model's name, folder or file."),
    out: Path = typer.Argument(..., metavar="OUT", help="The folder to write."),
    to: str = typer.Option("unmask", help="The dialect to write."),
    dtype: str = typer.Option("stored", help="Number format; stored keeps the given one."),
) -> None:
    """Write a model anew in this project's format, or in another dialect."""
    from unmask.base.errors import UserError
    from unmask.net.dialects import get_dialect
    from unmask.net.loading import load, save

    get_dialect(to)
    if out.exists():
        raise UserError(f"{out} already exists: choose another folder or remove it.")
    save(load(given, device="cpu", dtype=dtype), out, to)
    print(f"wrote {out} in the dialect {to}")
