"""Where a recipe's rows come from: one source, or a mixture of several in fixed shares."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from unmask.base.config import build
from unmask.objectives.batch import RowReading

MIXTURE = "mixture"
PAIRS, PREFERENCES = "pairs", "preferences"
TEXTS = ("text", PAIRS, PREFERENCES)
"""Sources whose rows hold no facts."""
_SHARED = ("context", "tokenizer", "split", "seed")
"""What a mixture says for all of its sources."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where rows come from."""

    source: str
    """`reversal` (made in place), `facts` (a corpus folder, Berglund's, or a file), `text` (token
    shards), `pairs` (a file of prompts and responses), `preferences` (of prompts with a chosen and
    a rejected one), `mixture` (of `sources`), or a source that the caller adds."""
    sources: dict = field(default_factory=dict, hash=False)
    """A mixture's sources by name. Each has settings such as these, and a `share`; what it does not
    say of `context`, `tokenizer`, `split` and `seed` is said here."""
    share: float = 1.0
    """In a mixture: how many of a step's rows come from here, beside the shares of the others."""
    reading: RowReading = "both"
    """Under the objective `joint`, which reading of the network learns these rows."""
    path: str | None = None
    split: str = "train"
    """The split of a corpus: `train`, or `choose` while settings are being chosen."""
    facts: int = 30
    """Facts per group of a corpus made in place, from `seed`."""
    seed: int = 0
    tokenizer: str | None = None
    """A `tokenizer.json` or a folder with one. None: the one that lies with the data or with the
    model to start from, else one learned from the training lines."""
    vocab: int = 8192
    """The most tokens of a tokenizer that is learned here."""
    context: int = 64
    """Tokens of a row; shorter lines are filled up with the end token."""
    without: str | None = None
    """Facts whose id begins so, such as `both`, are left out."""
    reverse_entities: bool = False
    """Every line of a fact also with its words in reverse, the entities whole."""
    identities: bool = False
    """Beside every line of a fact two that name one of its entities twice: "A is A"."""


def list_parts(data: DataSettings) -> dict[str, DataSettings]:
    """The sources of a mixture by name; any other source is one part, without a name."""
    if data.source != MIXTURE:
        return {"": data}
    shared = {name: getattr(data, name) for name in _SHARED}
    return {
        name: build(DataSettings, shared | entry, f"data.sources.{name}")
        for name, entry in data.sources.items()
    }


def share_rows(rows: int, parts: Mapping[str, DataSettings]) -> dict[str, int]:
    """How many of the rows each part has, as near to its share as whole numbers are.

    All parts have their share rounded down; what is left goes to the largest remainders.
    """
    total = sum(part.share for part in parts.values())
    exact = {name: rows * part.share / total for name, part in parts.items()}
    counts = {name: int(share) for name, share in exact.items()}
    nearest = sorted(parts, key=lambda name: counts[name] - exact[name])
    for name in nearest[: rows - sum(counts.values())]:
        counts[name] += 1
    return counts


def find_data_problems(data: DataSettings, rows: int, response_only: bool) -> Iterator[str]:
    """What is wrong with where the rows come from, a sentence each."""
    if data.source == PAIRS and not response_only:
        yield "'data.source' is pairs, whose prompts are given: set objective.response_only=true"
    if data.source in TEXTS and (data.without or data.reverse_entities or data.identities):
        names = "'data.without', 'data.reverse_entities' and 'data.identities'"
        yield f"{names} are for facts, not for running text"
    if (data.source == MIXTURE) != bool(data.sources):
        yield (
            f"'data.source' is {data.source!r} with {len(data.sources)} of 'data.sources': "
            "expected sources where it is mixture, and nowhere else"
        )
    if data.source != MIXTURE:
        if data.share <= 0:
            yield f"'data.share' is {data.share}, expected more than 0"
        return
    for name, entry in data.sources.items():
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(entry, dict):
            yield f"'data.sources' has {name!r}: {entry!r:.60}, expected a name and its settings"
            return
    parts = list_parts(data)
    for name, part in parts.items():
        where = f"data.sources.{name}"
        if part.source in (MIXTURE, PREFERENCES):
            what = "a mixture" if part.source == MIXTURE else part.source
            yield f"'{where}.source' is {what}: expected a source of single rows"
        if part.share <= 0:
            yield f"'{where}.share' is {part.share}, expected more than 0"
            return
        for key in ("context", "facts", "vocab"):
            if (value := getattr(part, key)) < 1:
                yield f"'{where}.{key}' is {value}, expected more than 0"
        yield from (
            f"{where}: {problem}" for problem in find_data_problems(part, rows, response_only)
        )
    for name, count in share_rows(rows, parts).items():
        if not count:
            yield (
                f"'data.sources.{name}.share' is {parts[name].share} and comes to none of the "
                f"{rows} rows of a step: expected at least one; give more rows or a larger share"
            )
