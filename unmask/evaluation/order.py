"""Which kinds of tokens a model commits when: by position, by frequency, by kind of word."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.base.reading import parse_yaml, read_json_lines, read_text
from unmask.base.unpacking import strip_packing
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.data.text import read_documents
from unmask.data.tokenizer import Tokenizer
from unmask.evaluation.metrics import is_contained
from unmask.evaluation.questions import Split, require_tokenizer, spread
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
KINDS = {
    "word": (FUNCTION, PUNCTUATION, NUMBER, NAME, OTHER, END),
    "place": PLACES,
    "frequency": FREQUENCIES,
}
"""The kinds of tokens, by what sets them apart."""
MOST_DOCUMENTS = 2_000
"""Documents that say how frequent tokens are."""
GUESSES = 5
"""Likeliest tokens that are kept of an open position at a step."""
Band = Callable[[int], str]
"""How frequent a token is."""


@dataclass(frozen=True)
class OrderPrompt:
    """A text to be continued; a line of a file has no answer."""

    text: str
    fact: str
    completion: str | None
    is_example: bool
    """Whether its text is kept token by token."""


@dataclass(frozen=True)
class OrderPrompts:
    """Prompts by split, and what they come from."""

    by_split: dict[str, list[OrderPrompt]]
    facts: list[Fact]
    """All facts of the splits: the canvas holds each of them."""
    texts: list[str]
    """They say how frequent tokens are: the training texts where the data have them."""


def holds_texts(path: Path) -> bool:
    """Whether a file has a prompt or a document on every line, which a file of facts has not."""
    if not strip_packing(path.name).endswith(".jsonl") or not path.is_file():
        return path.suffix == ".txt"
    _, first = next(iter(read_json_lines(path)), (0, {}))
    return "text" in first and "subject" not in first


def read_texts(path: Path, words: int, limit: int | None, examples: int) -> OrderPrompts:
    """Lines as prompts, or the first words of documents that go on for at least as long."""
    if path.suffix == ".txt":
        texts = starts = [line for line in read_text(path).splitlines() if line.strip()]
        split, noun, wanted = "prompts", "line", "line of text: expected a prompt on every line"
    else:
        texts = list(islice(read_documents([path]), MOST_DOCUMENTS))
        split, noun, cut = "running_text", "document", [text.split() for text in texts]
        starts = [" ".join(each[:words]) for each in cut if len(each) >= 2 * words]
        wanted = f"document of {2 * words} words: give fewer by --words, or longer documents"
    if not starts:
        raise UserError(f"{path} has no {wanted}.")
    prompts = [
        OrderPrompt(start, f"{noun}-{i}", None, i <= examples)
        for i, start in enumerate(starts[:limit], start=1)
    ]
    return OrderPrompts({split: prompts}, [], texts)


def choose_order_prompts(corpus: Corpus, splits: Sequence[Split], examples: int) -> OrderPrompts:
    """The prompts of a corpus's splits."""
    prompts: dict[str, list[OrderPrompt]] = {}
    for split in splits:
        # Fewer prompts are some of more: see `spread`.
        chosen = spread(corpus[split.name], min(examples, len(split.facts)))
        prompts[split.name] = [
            OrderPrompt(fact.prompt, fact.fact_id, fact.completion, fact in chosen)
            for fact in split.facts
        ]
    facts, has_train = [fact for name in prompts for fact in corpus[name]], "train" in corpus.splits
    texts = corpus.training_texts() if has_train else [fact.text for fact in facts]
    return OrderPrompts(prompts, facts, texts)


def watch_texts(
    model: Model, split: str, prompts: Sequence[OrderPrompt], band: Band, **sampling: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Records of every written token, and of every token of the examples."""
    tokenizer = require_tokenizer(model)
    sampling |= {"keep_states": False, "guesses": GUESSES}
    drawn = sample(model, [prompt.text for prompt in prompts], **sampling)
    commits, texts = [], []
    for i, prompt in enumerate(prompts):
        named: dict[str, Any] = {"split": split, "fact": prompt.fact, "prompt": f"{split} {i}"}
        commits += [named | row for row in list_commits(tokenizer, drawn, i, band)]
        if prompt.is_example:
            is_written, answer = drawn.committed_at[i] > 0, prompt.completion
            text = tokenizer.decode(drawn.tokens[i, is_written].tolist())
            hit = None if answer is None else is_contained(text, answer)
            named |= {"prompt": prompt.text, "completion": answer}
            named |= {"hit": hit, "steps": sampling["steps"]}
            texts += [named | row for row in list_tokens(tokenizer, drawn, i)]
    return commits, texts


def list_commits(
    tokenizer: Tokenizer, drawn: Trajectory, row: int, band: Band
) -> list[dict[str, Any]]:
    """A record for each token that was written, up to the first end token of the text.

    `when` is 0 at the first step and 1 at the row's last.
    """
    tokens, at = drawn.tokens[row].tolist(), drawn.committed_at[row].tolist()
    confidence, last_step = drawn.confidence[row].tolist(), max(at)
    written = [i for i, step in enumerate(at) if step > 0]
    end = _find_end(tokenizer, drawn, row)
    written = [i for i in written if i < end]
    words = classify_tokens([tokenizer.piece(token) for token in tokens])
    return [
        {
            "position": i,
            "token": tokenizer.piece(tokens[i]),
            "step": at[i],
            "when": (at[i] - 1) / max(1, last_step - 1),
            "confidence": confidence[i],
            "word": END if tokens[i] == tokenizer.end_id else words[i],
            "place": PLACES[4 * number // len(written)],
            "frequency": band(tokens[i]),
        }
        for number, i in enumerate(written)
    ]


def list_tokens(tokenizer: Tokenizer, drawn: Trajectory, row: int) -> list[dict[str, Any]]:
    """A record for each token of a text, its prompt included, up to its first end token."""
    tokens, steps = drawn.tokens[row].tolist(), drawn.committed_at[row].tolist()
    return [
        {
            "position": position,
            "piece": tokenizer.piece(tokens[position]),
            "is_end": tokens[position] == tokenizer.end_id,
            "step": steps[position],
            "confidence": float(drawn.confidence[row, position]),
            "entropy": float(drawn.entropy[row, position]),
        }
        | _list_guesses(tokenizer, drawn, row, position)
        for position in range(_find_end(tokenizer, drawn, row))
    ]


def _list_guesses(
    tokenizer: Tokenizer, drawn: Trajectory, row: int, position: int
) -> dict[str, list[list[Any]]]:
    """What the model would have said at a position before each step up to the one that wrote it.

    Empty for steps at which it was not asked about the position.
    """
    guesses: dict[str, list[list[Any]]] = {"guesses": [], "guesses_p": []}
    for step in range(1, int(drawn.committed_at[row, position]) + 1):
        guess = drawn.guesses(step)
        ids, p = guess.ids[row, position].tolist(), guess.p[row, position].tolist()
        known = [(i, each) for i, each in zip(ids, p, strict=True) if i >= 0]
        pieces = ["⏎" if i == tokenizer.end_id else tokenizer.piece(i) for i, _ in known]
        guesses["guesses"].append(pieces)
        guesses["guesses_p"].append([each for _, each in known])
    return guesses


def _find_end(tokenizer: Tokenizer, drawn: Trajectory, row: int) -> int:
    """The position after the first end token that was written, or after the last token."""
    is_end = (drawn.tokens[row] == tokenizer.end_id) & (drawn.committed_at[row] > 0)
    return is_end.tolist().index(True) + 1 if is_end.any() else len(is_end)


def rank_frequencies(tokenizer: Tokenizer, texts: Iterable[str]) -> Band:
    """A token's band, by its rank among all that the texts hold; unseen ones are rare."""
    counts = Counter(token for ids in tokenizer.encode_documents(list(texts)) for token in ids)
    order = [token for token, _ in counts.most_common()]
    rank = {token: i / len(order) for i, token in enumerate(order)}

    def band(token: int) -> str:
        share = rank.get(token, 1.0)
        return FREQUENCIES[0 if share < 0.1 else 1 if share < 0.5 else 2]

    return band


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
    letters = word.group()
    if not letters[0].isalnum():
        return PUNCTUATION
    if letters[0].isdigit():
        return NUMBER
    if letters.lower() in _function_words():
        return FUNCTION
    before = text[: word.start()].rstrip()
    starts_sentence = not before or before[-1] in ".!?"
    return NAME if letters[0].isupper() and not starts_sentence else OTHER


@cache
def _function_words() -> frozenset[str]:
    text = files("unmask.assets").joinpath("english.yaml").read_text("utf-8")
    return frozenset(parse_yaml(text, "english.yaml")["function_words"].split())
