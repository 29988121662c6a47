"""Every kept text judged again by what it says, beside the study's rule, with false positives.

    python paper/rescore.py docs/results/tables/* --page docs/results/answers.md

A text is also held against the answer of another fact, drawn evenly: what counts then is false.
Models that never saw the facts are a second control. No model is needed.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from unmask.base.tables import list_rows, read_table
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Section, Table, Text
from unmask.evaluation.contents import Contents, draw_other_facts
from unmask.evaluation.metrics import (
    has_first_name,
    has_surname,
    is_contained,
    is_contained_plainly,
)
from unmask.report.document import Document
from unmask.report.page import write_document

Rows = Sequence[Mapping[str, Any]]
OF_NAMES: dict[str, Callable[[str, str], bool]] = {
    "surname": has_surname,
    "first name": has_first_name,
}
RULES = {"contained": is_contained, "without punctuation": is_contained_plainly, **OF_NAMES}
SHOWN = ("contained", "without punctuation", "content", *OF_NAMES)
SETS = {
    "opening": "recall",
    "unopened": "recall",
    "recalls": "recall-swapped",
    "best": "best-recall",
    "apart": "embeddings",
}
"""The page that a table belongs to, by how its stage's name begins."""
PAIR = ("mdm, guidance 0.8", "mdm, guidance 0", "ar")
REVERSED = ("d2p_reverse", "p2d_reverse")
NOTE = (
    "In brackets what the same texts would score with the answer of another fact, drawn evenly "
    '(in the same phrasing): a false positive. "contained" is the study\'s rule; "content": at '
    "least half of the distinctive words of the right one of all answers, and more than of any "
    "other's (`unmask/evaluation/contents.py`). Surname and first name: of names alone."
)


def read_recall(folder: Path) -> list[dict[str, Any]]:
    """What recall wrote at the most steps, without its own controls; a model is named by guidance
    where it has several strengths."""
    columns = ["model", "steps", "guidance", "seed", "split", "direction", "fact", "phrasing"]
    columns += ["prompt", "completion", "generation"]
    rows = list_rows(read_table(folder / "recall.parquet", "recall/1").select(columns))
    most = max(row["steps"] or 0 for row in rows)
    rows = [
        row
        for row in rows
        if row["steps"] in (None, most) and not row["split"].endswith("_shuffled")
    ]
    strengths = defaultdict(set)
    for row in rows:
        strengths[row["model"]].add(row["guidance"])
    for row in rows:
        if len(strengths[row["model"]]) > 1:
            row["model"] = f"{row['model']}, guidance {row['guidance']:g}"
    return rows


def read_factorial(folder: Path) -> list[dict[str, Any]]:
    """What a row of the factorial wrote, from left to right."""
    ways = {split: way for (way, _), split in labels.SPLITS.items()}
    rows = list_rows(read_table(folder / "prompts.parquet", "factorial/1"))
    return [
        row | {"model": row["row"], "direction": ways[row["split"]]}
        for row in rows
        if row["decoder"] == "left"
    ]


def read_edits(folder: Path) -> list[dict[str, Any]]:
    """What edited models wrote, beside what was wanted; objects may be new to the corpus."""
    turned = {"d2p": "p2d", "p2d": "d2p"}
    rows = []
    for row in list_rows(read_table(folder / "edit.parquet", "edit/3")):
        if row["text_after"] is None or row["variant"] != "edit":
            continue
        way = row["direction"] if row["role"] == "edited" else turned[row["direction"]]
        named = {"model": f"{row['model']}, {folder.name}", "direction": way, "phrasing": None}
        named |= {"split": f"{row['role']}, a {labels.ASKED[way]}", "fact": row["wanted"]}
        rows.append(named | {"completion": row["wanted"], "generation": row["text_after"]})
    return rows


def gather(rows: Rows) -> dict[str, Contents]:
    """By what is given, the answers of all facts, once for each prompt that asked for them."""
    forms: dict[str, dict[str, list[str]]] = {}
    names = ("direction", "fact", "completion", "prompt")
    asked = dict.fromkeys(tuple(row.get(name) for name in names) for row in rows)
    for way, fact, completion, _ in asked:
        forms.setdefault(way, {}).setdefault(fact, []).append(completion)
    return {way: Contents(answers) for way, answers in forms.items()}


def judge(rows: list[dict[str, Any]], known: Mapping[str, Contents]) -> None:
    """Add to each row what each rule says, of its own answer and of another fact's."""
    answers = {(row["fact"], row["direction"], row["phrasing"]): row["completion"] for row in rows}
    some = {key[:2]: completion for key, completion in answers.items()}
    for (_, way), own in tidy.group_by(rows, "split", "direction").items():
        facts, texts = ([row[name] for row in own] for name in ("fact", "generation"))
        for ending, of in (("", facts), (" of another", draw_other_facts(facts))):
            says = known[way].says(texts, of)
            for row, fact, is_said in zip(own, of, says, strict=True):
                answer = answers.get((fact, way, row["phrasing"]), some[fact, way])
                for name, rule in RULES.items():
                    is_right = rule(row["generation"], answer) if applies(name, way) else None
                    row[name + ending] = is_right
                row["content" + ending] = bool(is_said)


def applies(rule: str, way: str) -> bool:
    """Whether a rule is made for what is asked."""
    return way == "d2p" or rule not in OF_NAMES


def show_shares(name: str, caption: str, rows: Rows, **keys: str) -> Table:
    """Shares by every rule, false positives in brackets, a line for each value of the keys."""
    groups = tidy.group_by(rows, *keys.values())
    lines = [
        dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=True))
        | {"prompts": len(own)}
        | {rule: say_shares(own, rule) for rule in SHOWN}
        for key, own in groups.items()
    ]
    heads = [*keys, "prompts", *SHOWN]
    return tidy.tabulate(name, caption, lines, {head: head for head in heads}, most=60)


def say_shares(rows: Rows, rule: str) -> str:
    """A share in per cent, and that of false positives."""
    own, other = ([row[rule + end] for row in rows] for end in ("", " of another"))
    if own[0] is None:
        return "–"
    return f"{100 * np.mean(own):.1f} ({100 * np.mean(other):.1f})"


def show_templates(rows: Rows) -> Iterator[Table]:
    """The pretrained pair in reverse, by phrasing."""
    for split in REVERSED:
        asked = [row for row in rows if row["split"] == split and row["model"] in PAIR]
        rule = "surname" if asked[0]["direction"] == "d2p" else "content"
        lines = []
        for phrasing, own in sorted(tidy.group_by(asked, "phrasing").items()):
            prompts = sorted({row["prompt"] for row in own})
            begin = find_common(prompts)
            end = find_common([prompt[::-1] for prompt in prompts])[::-1]
            line = {"phrasing": f"{phrasing}: {begin}…{end}"}
            for model, texts in tidy.group_by(own, "model").items():
                for each in ("contained", rule):
                    line[f"{model}: {each}"] = float(np.mean([row[each] for row in texts]))
            lines.append(line)
        shown = {f"{model}: {each}": None for model in PAIR for each in ("contained", rule)}
        columns = {Column(name, 1, is_percent=True): name for name in shown}
        caption = f"{labels.name_split(split)}, %"
        yield tidy.tabulate(split, caption, lines, {"phrasing": "phrasing", **columns}, most=60)


def find_common(texts: Sequence[str]) -> str:
    """What all of the texts begin with."""
    first, last = min(texts), max(texts)
    same = (one == other for one, other in zip(first, last, strict=False))
    return first[: sum(takewhile(bool, same))]


def show_sources(rows: Rows) -> Table:
    """How much of a hit's variance lies between phrasings, facts and training runs."""
    lines = []
    for split in REVERSED:
        for model in PAIR[:2]:
            own = [row for row in rows if row["split"] == split and row["model"] == model]
            for rule in ("contained", "content"):
                line = {"asked": labels.name_split(split), "model": model, "rule": rule}
                hits = np.array([row[rule] for row in own], dtype=float)
                for name in ("phrasing", "fact", "run"):
                    _, at = np.unique([row[name] for row in own], return_inverse=True)
                    means = np.bincount(at, hits) / np.bincount(at)
                    line[name] = ((means[at] - hits.mean()) ** 2).mean() / hits.var()
                lines.append(line)
    parts = {"phrasings": "phrasing", "facts": "fact", "training runs": "run"}
    columns = {Column(f"{name}, %", 1, is_percent=True): get for name, get in parts.items()}
    caption = "Part of a hit's variance that lies between"
    heads = {name: name for name in ("asked", "model", "rule")}
    return tidy.tabulate("variance", caption, lines, heads | columns)


def make_document(folders: Sequence[Path]) -> Document:
    """The page, from the tables of these folders; others are left aside."""
    sets: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for folder in folders:
        stage = folder.name.split("-")[0]
        for path in sorted(folder.glob("*/recall.parquet")):
            rows = read_recall(path.parent)
            sets[SETS[stage]] += [row | {"run": f"{folder.name} {row['seed']}"} for row in rows]
        for path in sorted(folder.glob("prompts.parquet")):
            sets["factorial"] += read_factorial(path.parent)
    sections = []
    for name, rows in sets.items():
        judge(rows, gather(rows))
        caption = "Texts that count as the answer, % (with another fact's answer)"
        table = show_shares(name, caption, order(rows), asked="asked", model="model")
        sections.append(Section(name, f"The texts of {name}.md", [table]))
    for folder in folders:
        paths = sorted(folder.glob("*/edit.parquet"))
        rows = [row for path in paths for row in read_edits(path.parent)]
        if not rows:
            continue
        judge(rows, gather(rows))
        caption = "Texts of edited models that hold what was wanted, % (another fact's answer)"
        table = show_shares("edits", caption, order(rows), wanted="asked", model="model")
        sections.append(Section("edits", "The texts of editing.md", [table]))
    by_template = [*show_templates(sets["recall"]), show_sources(sets["recall"])]
    templates = Section("templates", "By template, in reverse: the pretrained pair", by_template)
    lead = "What counts as an answer: the study's rule beside rules that ask what a text says."
    method = Text(NOTE)
    return Document("Answers by what they say", lead, [method], [templates, *sections])


def order(rows: Rows) -> list[dict[str, Any]]:
    """The rows by way of asking, reversed first, named for readers."""
    splits = labels.order_splits(tidy.distinct(rows, "split"))
    named = [dict(row) | {"asked": labels.name_split(row["split"])} for row in rows]
    return sorted(named, key=lambda row: splits.index(row["split"]))


def main(words: Sequence[str] | None = None) -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of kept tables")
    parser.add_argument("--page", type=Path, required=True, help="the .md file to write")
    options: Any = parser.parse_args(words)
    write_document(make_document(options.folders), options.page)


if __name__ == "__main__":
    main()
