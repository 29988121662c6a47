"""`unmask info PRESET`: what a network is and needs."""

import typer


def info(
    name: str = typer.Argument(..., metavar="PRESET", help="A preset such as tiny or 1028M."),
    causal: bool = typer.Option(False, help="The autoregressive twin."),
) -> None:
    """Show shapes, parameters, operations, memory and sites of a network."""
    from rich.console import Console

    from unmask.net.presets import preset
    from unmask.report.terminal import show_network

    show_network(Console(), name, preset(name, causal=causal))
