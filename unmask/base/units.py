"""Large numbers for people."""


def format_number(number: float) -> str:
    """Three digits and a prefix, such as "1.03 G"; a unit may follow at once."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"


def format_tick(number: float) -> str:
    """A place on an axis: as it is below a hundred thousand, with a prefix above."""
    return f"{number:g}" if number < 1e5 else format_number(number).rstrip()


def format_bytes(number: float) -> str:
    """A size such as "2.28 GB"."""
    return format_number(number) + "B"
