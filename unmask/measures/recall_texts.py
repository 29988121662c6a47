"""Texts that a run of recall kept, judged by what they say: content, punctuation aside, and names.

Runs write these columns with their rows; those of earlier versions kept the texts alone, and are
judged when they are read. Answers are told apart by the facts that the table asks about.
"""

from typing import TYPE_CHECKING

from unmask.measures.recall_summary import is_asked

if TYPE_CHECKING:
    import pyarrow


def judge_kept(table: "pyarrow.Table") -> "pyarrow.Table":
    """The table with `plain`, `content`, `surname` and `first_name`, where it kept texts alone."""
    import pyarrow

    from unmask.evaluation.contents import gather_contents, judge_contents
    from unmask.evaluation.metrics import has_first_name, has_surname, is_contained_plainly

    if "content" in table.column_names:
        return table
    # 1. By what is given, every form of each answer, once for each prompt that asks for it.
    names = ("split", "direction", "fact", "prompt", "completion")
    rows = dict.fromkeys(zip(*(table[name].to_pylist() for name in names), strict=True))
    answers = ((way, fact, answer) for split, way, fact, _, answer in rows if is_asked(split))
    contents = gather_contents(answers)
    # 2. What each different text says, of the answer that it is held against.
    columns = (table[name].to_pylist() for name in ("direction", "completion", "generation"))
    texts: list[tuple[str, str, str]] = list(zip(*columns, strict=True))
    distinct = list(dict.fromkeys(texts))
    facts = (contents[way].find(answer) if way in contents else None for way, answer, _ in distinct)
    triples = [(way, fact, text) for fact, (way, _, text) in zip(facts, distinct, strict=True)]
    judged = {}
    for each, is_said in zip(distinct, judge_contents(contents, triples), strict=True):
        way, answer, text = each
        judged[each] = {
            "plain": is_contained_plainly(text, answer),
            "content": is_said,
            "surname": has_surname(text, answer) if way == "d2p" else None,
            "first_name": has_first_name(text, answer) if way == "d2p" else None,
        }
    # 3. A column of each.
    for name in ("plain", "content", "surname", "first_name"):
        column = pyarrow.array([judged[each][name] for each in texts], pyarrow.bool_())
        table = table.append_column(name, column)
    return table
