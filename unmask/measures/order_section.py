"""Texts that un-mask step by step, both ways of asking beside each other."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask.blocks import blocks, labels, tidy
from unmask.measures.measure import Rows


def animate(rows: Rows) -> blocks.Figure:
    """Texts of a fact asked both ways, a panel for each model; a long answer in reverse is first.

    Of each way of asking those facts come first that show most: recalled by diffusion models both
    ways, and not by autoregressive ones.
    """
    texts = tidy.group_by(tidy.select(rows, seed=rows[0]["seed"]), "split", "fact", "model")
    facts = {split: tidy.distinct(own, "fact") for split, own in
             tidy.group_by(rows, "split").items()}  # fmt: skip
    longest = {split: len(tokens[0]["completion"] or "") for (split, *_), tokens in texts.items()}
    splits = labels.order_splits(list(facts))
    splits.sort(key=lambda split: (not labels.is_reversed(split), -longest[split]))
    shown = dict.fromkeys((fact for own in facts.values() for fact in own), 0)
    for (_, fact, _), (first, *_) in texts.items():
        shown[fact] += bool(first["hit"]) * (-1 if labels.is_causal(first["kind"]) else 2)
    for own in facts.values():
        own.sort(key=lambda fact: -shown[fact])
    numbers = range(max(map(len, facts.values())))

    def fill(split: str, number: int) -> list[blocks.TextPanel]:
        chosen = facts[split][number : number + 1]
        ways = [split, labels.turn_split(split)]
        panels = [
            _show_text(model, tokens)
            for way in ways
            for (on, fact, model), tokens in texts.items()
            if on == way and fact in chosen
        ]
        is_both = len({panel.way for panel in panels}) > 1
        return panels if is_both else [replace(panel, way="") for panel in panels]

    return blocks.Figure(
        name="unmasking",
        title="One fact, asked both ways",
        caption="A diffusion model guesses all masks at each step and keeps the guesses it is "
        "surest of; an autoregressive one writes from left to right. Point at a token, or go to it "
        "by arrow keys, for what else it could be.",
        chart="unmasking",
        views=blocks.make_views([splits, numbers], fill),
        controls=[
            blocks.Control("asked", [labels.name_split(split) for split in splits]),
            blocks.Control("fact", [str(number + 1) for number in numbers]),
        ],
    )


def _show_text(model: str, tokens: Rows) -> blocks.TextPanel:
    first, tokens = tokens[0], sorted(tokens, key=lambda row: row["position"])
    return blocks.TextPanel(
        title=f"{model} ({labels.KINDS[first['kind']]})",
        pieces=["⏎" if row["is_end"] else row["piece"] for row in tokens],
        steps=[row["step"] for row in tokens],
        confidence=[row["confidence"] for row in tokens],
        expected=(first["completion"] or "").strip(),
        is_hit=bool(first["hit"]),
        way=labels.name_split(first["split"]),
        guesses=[_pair_guesses(row) for row in tokens],
        is_causal=labels.is_causal(first["kind"]),
    )


def _pair_guesses(row: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """What stood to be written in a token's place, step by step."""
    steps = zip(row["guesses"] or (), row["guesses_p"] or (), strict=True)
    return [list(zip(pieces, p, strict=True)) for pieces, p in steps]
