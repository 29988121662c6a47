"""A text's cost as a table in the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unmask.evaluation.perplexity import Perplexity


def show_perplexity(console: Console, model: str, found: Perplexity) -> None:
    """Perplexity and bits, as a bound or exact, with standard errors."""
    sign, note = ("≤ ", "upper bound") if found.is_bound else ("", "exact")
    table = Table(show_header=False, title=f"{escape(model)}: {found.kind}, {note}")
    table.add_row("tokens", f"{found.tokens:,} ({found.characters:,} characters)")
    table.add_row("perplexity", f"{sign}{found.perplexity:.2f} ± {found.perplexity_error:.2f}")
    table.add_row("nats a token", f"{sign}{found.per_token:.4f} ± {found.error / found.tokens:.4f}")
    bits = f"{found.bits_per_byte:.4f} ± {found.bits_per_byte_error:.4f}"
    table.add_row("bits a byte", sign + bits)
    table.add_row("bits a character", f"{sign}{found.bits_per_character:.4f}")
    console.print(table)
