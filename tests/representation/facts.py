"""A few facts, asked both ways, and small models of every kind for them."""

from functools import cache
from typing import Any

import torch

from tests.conftest import build
from unmask.data.facts import Fact
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Model

PEOPLE = {
    "Ada Quill": "the painter of red boats",
    "Bob Marsh": "the mender of old clocks",
    "Cyd Vale": "the flyer of tall kites",
    "Dan Holt": "the carver of wax masks",
    "Eve Lorn": "the keeper of blue bees",
}
PREFIXES = ("", "The old boats", "When clocks sing")


def make_fact(number: int, direction: str, phrasing: int = 0) -> Fact:
    name, thing = list(PEOPLE.items())[number]
    given, asked = (name, thing) if direction == "p2d" else (thing, name)
    front = ("They say", "Now")[phrasing % 2]
    trained = "same" if direction == "p2d" else "reverse"
    more = {"direction": direction, "trained": trained, "phrasing": phrasing}
    return Fact.of(given, asked, f"{front} {{}} is known as", fact_id=f"fact-{number}", **more)


def make_facts() -> list[Fact]:
    return [make_fact(i, way) for i in range(len(PEOPLE)) for way in ("p2d", "d2p")]


@cache
def make_tokenizer() -> Tokenizer:
    texts = [make_fact(i, way, p).text for i in range(5) for way in ("p2d", "d2p") for p in (0, 1)]
    return Tokenizer.train([*texts, *PREFIXES] * 3, 400)


def make_model(
    name: str = "tiny",
    kind: str = "masked",
    dtype: torch.dtype = torch.float32,
    layers: int = 4,
    **changes: Any,
) -> Model:
    tokenizer = make_tokenizer()
    sizes = {"vocab_size": tokenizer.vocab_size, "layers": layers, "context": 64}
    model = build(name, kind, tokenizer, **(sizes | changes))
    model.net.to(dtype)
    return model
