"""`unmask info MODEL`: what a model or a preset is and needs."""

import typer


def info(
    name: str = typer.Argument(
        ..., metavar="MODEL", help="A preset such as 1028M, or a model's name, folder or file."
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
    reads = "position i + 1" if blueprint.kind == "causal" else "position i"
    more = {
        "kind": blueprint.kind + (", shifted as Dream's" if blueprint.shift else ""),
        "logits row i predicts": reads,
        "mask id": "none" if blueprint.mask_id is None else f"{blueprint.mask_id:,}",
        "dialect": dialect.name,
        "stored": f"{stored}, {format_bytes(size)} in {len(checkpoint.weights.files)} file(s)",
    }
    show_network(Console(), name, blueprint.config, more)
