"""Which kinds of tokens a model commits when: by place, by frequency, by kind of word."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from unmask.base.errors import UserError
from unmask.evaluation.statistics import Interval, cluster, estimate_mean
from unmask.net.model import Model
from unmask.sampling.texts import sample
from unmask.sampling.trajectory import Trajectory

END, PUNCTUATION, NUMBER, FUNCTION, NAME, OTHER = (
    "end of text",
    "punctuation",
    "number",
    "function word",
    "name",
    "other word",
)
PLACES = ("first quarter", "second quarter", "third quarter", "last quarter")
FREQUENCIES = ("most frequent tenth", "next four tenths", "rarer half")
SCHEMA = "order/1"


@dataclass(frozen=True)
class Line:
    """One kind of token: when it comes, 0 for the first step and 1 for the last."""

    by: str
    kind: str
    tokens: int
    when: Interval
    thirds: tuple[float, float, float]
    """Shares committed in the first, the middle and the last third of the steps."""
    confidence: float


def watch_commits(
    model: Model,
    prompts: Sequence[str],
    texts: Iterable[str],
    length: int | None = None,
    **how: object,
) -> list[dict[str, Any]]:
    """A row for each token that the model wrote, up to the first end token of its text.

    `texts` say how frequent tokens are; `how` goes to `unmask.sample`.
    """
    if model.kind == "causal":
        raise UserError("an autoregressive model writes from left to right: there is no order.")
    if model.tokenizer is None:
        raise UserError(f"the model {model.name} has no tokenizer: its tokens cannot be named.")
    counts = Counter(
        token for row in model.tokenizer.encode_documents(list(texts)) for token in row
    )
    bands = _rank_tokens(counts)
    found = sample(model, prompts, length=length, keep_states=False, **how)  # ty: ignore[invalid-argument-type]
    return [
        {"prompt": i, **row}
        for i in range(len(prompts))
        for row in _read_row(model, found, i, bands)
    ]


def summarise_commits(rows: Sequence[dict]) -> list[Line]:
    """When each kind of token comes; intervals by prompt."""
    lines = []
    for by, kinds in (
        ("word", (FUNCTION, PUNCTUATION, NUMBER, NAME, OTHER, END)),
        ("place", PLACES),
        ("frequency", FREQUENCIES),
    ):
        for kind in kinds:
            of_kind = [row for row in rows if row[by] == kind]
            if not of_kind:
                continue
            when = [row["when"] for row in of_kind]
            clusters = cluster(when, [str(row["prompt"]) for row in of_kind])
            thirds = [sum(i / 3 <= t < (i + 1) / 3 for t in when) / len(when) for i in (0, 1)]
            confidence = sum(row["confidence"] for row in of_kind) / len(of_kind)
            last = 1 - sum(thirds)
            lines.append(
                Line(by, kind, len(when), estimate_mean(clusters), (*thirds, last), confidence)
            )
    return lines


def _read_row(
    model: Model, found: Trajectory, row: int, band: Callable[[int], str]
) -> list[dict[str, Any]]:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    tokens, at = found.tokens[row].tolist(), found.committed_at[row].tolist()
    confidence, end_id = found.confidence[row].tolist(), tokenizer.end_id
    written = [i for i, step in enumerate(at) if step > 0]
    ends = [i for i in written if tokens[i] == end_id]
    if ends:
        written = [i for i in written if i <= ends[0]]
    words = classify_tokens([tokenizer.piece(token) for token in tokens])
    last_step = max(at)
    rows = []
    for place, i in enumerate(written):
        rows.append(
            {
                "position": i,
                "token": tokenizer.piece(tokens[i]),
                "step": at[i],
                "when": (at[i] - 1) / max(1, last_step - 1),
                "confidence": confidence[i],
                "word": END if tokens[i] == end_id else words[i],
                "place": PLACES[4 * place // len(written)],
                "frequency": band(tokens[i]),
            }
        )
    return rows


def classify_tokens(pieces: Sequence[str]) -> list[str]:
    """The kind of word that each token belongs to, from the tokens' texts in their order.

    A capital letter makes a name, but not at the start of a text or a sentence.
    """
    kinds: list[str] = []
    text = ""
    words = list(re.finditer(r"\w+|[^\w\s]", "".join(pieces)))
    for piece in pieces:
        start, stop = len(text), len(text) + len(piece)
        text += piece
        inside = [word for word in words if word.start() < stop and word.end() > start]
        kinds.append(_classify(inside[-1], "".join(pieces)) if inside else PUNCTUATION)
    return kinds


def _classify(word: re.Match[str], text: str) -> str:
    found = word.group()
    if not found[0].isalnum():
        return PUNCTUATION
    if found[0].isdigit():
        return NUMBER
    if found.lower() in _function_words():
        return FUNCTION
    before = text[: word.start()].rstrip()
    starts_sentence = not before or before[-1] in ".!?"
    return NAME if found[0].isupper() and not starts_sentence else OTHER


def _rank_tokens(counts: Counter[int]) -> Callable[[int], str]:
    """A token's band, by its rank among all that the texts hold; unseen ones are rare."""
    order = [token for token, _ in counts.most_common()]
    rank = {token: i / len(order) for i, token in enumerate(order)}

    def band(token: int) -> str:
        share = rank.get(token, 1.0)
        return FREQUENCIES[0 if share < 0.1 else 1 if share < 0.5 else 2]

    return band


@cache
def _function_words() -> frozenset[str]:
    import yaml

    text = files("unmask.assets").joinpath("english.yaml").read_text("utf-8")
    return frozenset(yaml.safe_load(text)["function_words"].split())
