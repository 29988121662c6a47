"""Texts that a run of recall kept, judged by what they say: content, punctuation aside, and names.

Runs write these columns with their rows; those of earlier versions kept the texts alone, and are
judged when they are read. Answers are told apart by the facts that the table asks about.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unmask.measures.recall_summary import is_asked

if TYPE_CHECKING:
    import pyarrow

    from unmask.evaluation.contents import Contents

Answered = tuple[str, str, str]
"""What is given, the true answer, and what was written."""


def judge_kept(table: "pyarrow.Table") -> "pyarrow.Table":
    """The table with `plain`, `content`, `surname` and `first_name`, where it kept texts alone."""
    import pyarrow

    from unmask.evaluation.metrics import has_first_name, has_surname, is_contained_plainly

    if "content" in table.column_names:
        return table
    columns = (table[name].to_pylist() for name in ("direction", "completion", "generation"))
    texts: list[Answered] = list(zip(*columns, strict=True))
    distinct = list(dict.fromkeys(texts))
    says = _judge_contents(distinct, list_contents(table))
    judged: dict[str, Mapping[Answered, bool | None]] = {
        "plain": {each: is_contained_plainly(each[2], each[1]) for each in distinct},
        "content": says,
    }
    for name, rule in (("surname", has_surname), ("first_name", has_first_name)):
        judged[name] = {each: rule(each[2], each[1]) if each[0] == "d2p" else None
                        for each in distinct}  # fmt: skip
    for name, values in judged.items():
        column = pyarrow.array([values[each] for each in texts], pyarrow.bool_())
        table = table.append_column(name, column)
    return table


def list_contents(table: "pyarrow.Table") -> "dict[str, Contents]":
    """By what is given, every form of each fact's answer, once for each prompt that asks for it."""
    from unmask.evaluation.contents import Contents

    names = ("split", "direction", "fact", "prompt", "completion")
    rows = dict.fromkeys(zip(*(table[name].to_pylist() for name in names), strict=True))
    forms: dict[str, dict[str, list[str]]] = {}
    for split, direction, fact, _, completion in rows:
        if is_asked(split):
            forms.setdefault(direction, {}).setdefault(fact, []).append(completion)
    return {direction: Contents(answers) for direction, answers in forms.items()}


def _judge_contents(
    texts: Sequence[Answered], answers: "Mapping[str, Contents]"
) -> dict[Answered, bool]:
    """Whether each text says the answer it is held against; never one that is no fact's."""
    judged = dict.fromkeys(texts, False)
    for direction, contents in answers.items():
        own = [(each, contents.find(each[1])) for each in texts if each[0] == direction]
        known = [(each, fact) for each, fact in own if fact is not None]
        says = contents.says([each[2] for each, _ in known], [fact for _, fact in known])
        judged |= {each: bool(is_said) for (each, _), is_said in zip(known, says, strict=True)}
    return judged
