"""Lists on the command line: items separated by commas."""

from unmask.base.errors import UserError


def parse_names(text: str) -> tuple[str, ...]:
    """The names, blanks around them aside; none for an empty text."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_counts(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers from 1, each once, in rising order."""
    names = parse_names(text)
    if not names or not all(name.isdecimal() and int(name) >= 1 for name in names):
        raise UserError(
            f"{option} is {text!r}: expected whole numbers from 1, separated by commas."
        )
    return tuple(sorted({int(name) for name in names}))
