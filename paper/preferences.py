"""Preferences by a stated rule: a fact's own completion over another person's, as training asks.

    python paper/preferences.py FACTS OUT.jsonl [--split train]

A line has the prompt of a fact, its completion (`chosen`), and that of the next person who is asked
for in the same direction and phrasing (`rejected`). No reversed question is among them: what they
do to recall in reverse is for `unmask recall` to say.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from unmask.base.files import replace_file
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.data.sources import read_source


def list_preferences(facts: Sequence[Fact]) -> Iterator[dict[str, str]]:
    """A line for each prompt that somebody else's completion could answer."""
    for number, fact in enumerate(facts):
        others = [*facts[number + 1 :], *facts[:number]]
        other = next(
            (
                each
                for each in others
                if each.fact_id != fact.fact_id
                and (each.direction, each.phrasing) == (fact.direction, fact.phrasing)
            ),
            None,
        )
        if other is not None:
            yield {"prompt": fact.prompt, "chosen": fact.completion, "rejected": other.completion}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("facts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", default="train")
    given = parser.parse_args()
    source = read_source(given.facts)
    assert isinstance(source, Corpus), f"{given.facts} is not a corpus of facts in splits"
    with replace_file(given.out) as draft:
        lines = (json.dumps(each) + "\n" for each in list_preferences(source[given.split]))
        draft.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
