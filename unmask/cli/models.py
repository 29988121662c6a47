"""`unmask models`, `info` and `convert`: which models there are, what one is, other formats."""

from pathlib import Path

import typer

from unmask.cli.options import list_models


def models() -> None:
    """List the models that are shipped, cached on this machine, and known by name."""
    from rich.console import Console
    from rich.table import Column, Table

    from unmask.base.units import format_bytes
    from unmask.net.hub import KNOWN, cached_models, shipped_models

    cached = cached_models()
    table = Table("name", "kind", "parameters", "where", Column("from", overflow="fold"))
    for name in shipped_models():
        table.add_row(name, *_describe(name), "shipped", "this package")
    for name, known in KNOWN.items():
        origin = known.repo + (f" ({known.file})" if known.file else "")
        files = cached.get(known.repo, {})
        here = known.file in files if known.file else bool(files)
        table.add_row(
            name,
            *(_describe(name) if here else (known.kind, "")),
            "cached" if here else "hub",
            origin,
        )
    for repo, files in cached.items():
        if repo not in {known.repo for known in KNOWN.values()}:
            table.add_row(repo, *_describe(repo), "cached", format_bytes(sum(files.values())))
    console = Console()
    console.print(table)
    console.print(
        "Parameters are counted once a model is on this machine; unmask info shows its shapes. "
        "Any folder, .safetensors file or hub id (owner/name) of a known dialect works too."
    )


def _describe(name: str) -> tuple[str, str]:
    """Kind and parameters of a model on this machine; nothing for one in an unknown format."""
    from unmask.base.errors import UserError
    from unmask.base.units import format_number
    from unmask.net.counts import count_parameters
    from unmask.net.loading import inspect

    try:
        blueprint, _, _ = inspect(name)
    except UserError:
        return "", ""
    return blueprint.kind, format_number(count_parameters(blueprint.config).total)


def info(
    name: str = typer.Argument(
        ...,
        metavar="MODEL",
        help="A preset such as 1028M, or a model's name, folder or file.",
        autocompletion=list_models,
    ),
    causal: bool = typer.Option(False, help="Of a preset, the autoregressive twin."),
) -> None:
    """Show shapes, parameters, operations, memory and sites; nothing is loaded or fetched."""
    from rich.console import Console

    from unmask.base.units import format_bytes
    from unmask.net.loading import inspect
    from unmask.net.presets import preset, preset_names
    from unmask.report.terminal import show_network

    if name in preset_names():
        show_network(Console(), name, preset(name, causal=causal))
        return
    blueprint, dialect, checkpoint = inspect(name, also_known=preset_names())
    stored = "/".join(sorted(set(checkpoint.weights.dtypes.values())))
    size = sum(path.stat().st_size for path in checkpoint.weights.files)
    reads = "position i + 1" if blueprint.paradigm.predicts_next else "position i"
    more = {
        "kind": blueprint.kind + (", shifted as Dream's" if blueprint.shift else ""),
        "logits row i predicts": reads,
        "mask id": "none" if blueprint.mask_id is None else f"{blueprint.mask_id:,}",
        "dialect": dialect.name,
        "stored": f"{stored}, {format_bytes(size)} in {len(checkpoint.weights.files)} file(s)",
    }
    show_network(Console(), name, blueprint.config, more)


def convert(
    given: str = typer.Argument(
        ..., metavar="IN", help="A model's name, folder or file.", autocompletion=list_models
    ),
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
