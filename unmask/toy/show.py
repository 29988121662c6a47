"""The toy experiment in the terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unmask.toy.language import KINDS
from unmask.toy.run import ToyReport


def show_report(console: Console, report: ToyReport, is_full: bool = False) -> None:
    """How far each variant is from the language; where `is_full` with its noise and samples."""
    for outcome in report.outcomes if is_full else ():
        table = Table(show_header=False, title=outcome.name, title_justify="left")
        for t, sentence in outcome.forward.items():
            table.add_row(Text(f"t = {t}", style="dim"), Text(sentence))
        table.add_section()
        for sentence in outcome.examples:
            table.add_row(Text("sample", style="dim"), Text(sentence))
        console.print(table)

    errors = [error for error in KINDS if error != "none"]
    samples = f"{report.settings.samples:,} samples each"
    heads = ("variant", "loss", "TV", "sentences", *errors, "s")
    table = Table(*heads, title=samples, box=SIMPLE_HEAD)
    for outcome in report.outcomes:
        table.add_row(
            outcome.name,
            f"{outcome.loss:.3f}",
            f"{outcome.distance:.3f}",
            f"{outcome.kinds['none']:.1%}",
            *(f"{outcome.kinds[error]:.2%}" for error in errors),
            f"{outcome.seconds:.0f}",
        )
    console.print(table)
    console.print(
        f"TV: total variation to the data law; as many true draws have {report.floor:.3f}\n"
        f"loss: nats per unit, of which the language has {report.least_loss:.3f}; gaussian's is a "
        "cross-entropy over all times, not a bound",
        highlight=False,
    )
