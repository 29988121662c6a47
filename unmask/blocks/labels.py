"""One name for each thing that results speak of; tables hold ids, readers see these.

A split's id says how its facts were trained (`d2p`: description → name, `p2d`: name →
description) and whether they are asked that way (`same`) or the other way round (`reverse`). A
row's `direction` says what is given: `d2p` a description, `p2d` a name. Readers see neither, but
what is given → what is asked, and whether training showed it that way. `city_d2p` asks for the city
of people whose other fact was trained description first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unmask.blocks.blocks import Finding, Outcome

DIRECTIONS = {"d2p": "description → name", "p2d": "name → description"}
"""What is given → what is asked."""
ASKED = {"d2p": "name", "p2d": "description"}
GIVEN = {"d2p": "description", "p2d": "name"}
TRAINED = {"same": "as trained", "reverse": "reversed"}
SPLITS = {
    ("d2p", "same"): "d2p_same",
    ("p2d", "reverse"): "d2p_reverse",
    ("p2d", "same"): "p2d_same",
    ("d2p", "reverse"): "p2d_reverse",
}
"""The split that asks in a direction: a reversed fact was trained in the other one."""
_WAYS = {split: f"{DIRECTIONS[way]}, {TRAINED[order]}" for (way, order), split in SPLITS.items()}
_WAYS |= {f"both_{way}": f"{name}, trained both ways" for way, name in DIRECTIONS.items()}
_FIRST = {"d2p": "description first", "p2d": "name first", "both": "both ways"}
_WAYS |= {f"city_{group}": f"name → city, people taught {way}" for group, way in _FIRST.items()}
_WAYS |= {f"hop_{group}": f"description → city, taught {way}" for group, way in _FIRST.items()}
_WAYS["own"] = "own facts"
_FAR = "_far"
_TURNED = {"_same": "_reverse", "_reverse": "_same", "both_p2d": "both_d2p", "both_d2p": "both_p2d"}
_NOTES = {
    "_valid": "training phrasings",
    "_shuffled": "shuffled answers",
    "_false": "the answer of a false inference",
    _FAR: "far phrasing",
}

GROUPS = {
    "p2d": "facts trained name → description",
    "d2p": "facts trained description → name",
    "both": "facts trained both ways",
    "own": "own facts",
}
KINDS = {
    "masked": "diffusion",
    "uniform": "uniform diffusion",
    "hybrid": "hybrid diffusion",
    "gaussian": "gaussian diffusion",
    "causal": "autoregressive",
}
PARTS = {
    "resid": "residual stream",
    "mlp": "MLP output",
    "attn": "attention output",
    "attn_z": "attention head",
    "attn_q": "attention queries",
    "attn_k": "attention keys",
    "attn_v": "attention values",
    "embed": "embedding",
}
CORRUPTIONS = {
    "gaussian": "gaussian noise",
    "uniform": "uniform noise",
    "rome": "ROME's noise",
    "mask": "masks",
    "mean": "the mean embedding",
    "replace": "another subject",
}
METRICS = {
    "p": "probability",
    "logp": "log-probability (nats)",
    "logp_per_token": "log-probability per token (nats)",
    "logit_difference": "logit difference to another answer",
    "normalised": "share of the total effect",
}
UNITS = {"logp": " nats", "logp_per_token": " nats per token", "logit_difference": " logits"}
"""What stands after an effect; probabilities and shares have no unit."""
ROLES = {
    "before subject": "before the subject",
    "first subject": "first subject token",
    "middle subject": "middle subject tokens",
    "last subject": "last subject token",
    "first after": "first token after the subject",
    "further": "further prompt tokens",
    "last prompt": "last prompt token",
    "answer mask": "answer, still masked",
    "answer token": "answer, written",
    "other mask": "other masks",
    "other token": "other written tokens",
    "whole subject": "whole subject",
    "whole answer": "all positions of the answer",
    "whole prompt": "all other prompt tokens",
    "written": "all other written tokens",
    "masks": "all other masks",
}
"""What a token of a traced text is, in the order of a text."""
POSITIONS = {
    "subject": "subject",
    "prompt": "rest of prompt",
    "last": "last prompt token",
    "answer": "answer",
    "written": "written tokens",
    "masks": "other masks",
    "others": "all others",
    "every way": "every way",
}
"""Which positions read or are read, where attention is cut or a path is followed."""
ROLE_NOTES = {
    "before subject": "prompt tokens that stand before the subject",
    "first subject": "the first token of what the question is about",
    "middle subject": "tokens of the subject between its first and its last",
    "last subject": "the token with which the subject ends: after it, it is known as a whole",
    "first after": "the prompt token right after the subject",
    "further": "prompt tokens after that one, but not the last",
    "last prompt": "the token before the answer: an autoregressive model predicts from here",
    "answer mask": "masks in which the answer is to be written; a diffusion model predicts in them",
    "answer token": "tokens of the answer that earlier steps have written",
    "other mask": "masks after the answer",
    "other token": "tokens after the answer that earlier steps have written",
    "whole subject": "all tokens of the subject restored together",
    "whole answer": "all rows that the answer is read from restored together",
    "whole prompt": "all prompt tokens but the subject's and the last restored together",
    "written": "all written tokens after the prompt but the answer's restored together",
    "masks": "all masks after the prompt but the answer's restored together",
}
PLACEBOS = {
    "other token": "another prompt token's state",
    "other fact": "another fact's state",
    "shuffled answer": "another answer read",
    "random direction": "a random state as far away",
}
"""Controls of a trace: what should give nothing back."""
PLACEBO_NOTES = {
    "random direction": "control: the corrupted state moved in a random direction, as far as the "
    "clean one is away",
    "other token": "control: the clean state of a prompt token that is not the subject's",
    "other fact": "control: the state of another fact's subject, put in at this one's",
    "shuffled answer": "control: the restored run, read for the answer of another fact",
}
OUTCOMES: dict[Outcome, str] = {
    "above": "clear",
    "below": "clear",
    "alike": "alike",
    "unsettled": "not settled",
    "too few": "too few",
    "not measured": "not measured",
}
"""Outcomes in words; `say_outcome` adds what there are too few of."""
LIKENESSES = {
    "cosine": "cosine, matched minus unmatched",
    "retrieval": "retrieval, mean reciprocal rank",
    "top-1": "retrieval, first hit",
    "map": "PCA map, pairs nearer by",
    "spectrum": "SVD, shared spectrum",
    "angles": "principal angles, mean cosine",
    "procrustes": "Procrustes, held-out cosine",
    "cka": "debiased linear CKA",
    "overlap": "shared directions, mean cosine",
}
"""How alike two sets of vectors are, one vector for each fact on either side."""
LIKENESS_NOTES = {
    "cosine": "the mean cosine of a fact's own pair minus that of other pairs",
    "retrieval": "1 / rank of a fact's own key among all keys, by cosine with its value",
    "top-1": "the share of values whose own key is the nearest of all",
    "map": "how much nearer own pairs lie than others on the plane of the first two principal "
    "components, as a share of the distance",
    "spectrum": "the sum of the singular values of the product of both sides, each scaled to "
    "length 1; 1 where one is the other rotated",
    "angles": "the mean cosine of the angles between the spaces in which the facts vary",
    "procrustes": "the mean cosine of facts held out, after a rotation fitted to the others",
    "cka": "how alike the facts lie to each other on both sides: 0 for unrelated sides, 1 if one "
    "is the other rotated",
    "overlap": "the mean cosine of the angles between the directions of the network's space that "
    "each side uses; it does not know which vector belongs to which fact, and its null is random "
    "directions",
}
TERMS = {
    name: notes[key]
    for names, notes in (
        (ROLES, ROLE_NOTES),
        (PLACEBOS, PLACEBO_NOTES),
        (LIKENESSES, LIKENESS_NOTES),
    )
    for key, name in names.items()
}
"""What roles, controls and likenesses are, by their names."""
COMPARED = {
    f"{concept}: key and {side}": f"{concept}: key and {name}"
    for concept in ("name", "description")
    for side, name in {
        "value": "value (v*)",
        "v0": "v0 (before any search)",
        "delta": "delta (what the search added)",
    }.items()
}
COMPARED |= {
    "key and key": "keys of both directions",
    "value and value": "values of both directions",
    "key and key, no masks": "keys of both directions, without masks",
}
COMPARED |= {
    f"{concept}: key and v0, no masks": f"{concept}: key, v0, without masks"
    for concept in ("name", "description")
}
"""Two sides that are compared: a key is read where the concept is given, a value where it is asked
for."""
PREFERRED = ("p2d_reverse", "d2p_reverse", "own")
"""The way of asking that comes first: the reversal curse itself, where the data have it."""


def say_outcome(finding: Finding) -> str:
    """What may be said, in words: "clear", "too few facts", …"""
    more = f" {finding.counted}" if finding.outcome == "too few" else ""
    return OUTCOMES[finding.outcome] + more


def name_split(split: str) -> str:
    """A way of asking: what is given → what is asked, as trained or reversed."""
    for suffix, note in _NOTES.items():
        if split.endswith(suffix):
            return f"{name_split(split.removesuffix(suffix))}, {note}"
    return _WAYS.get(split, split.replace("_", " "))


def turn_split(split: str) -> str | None:
    """The split that asks these facts the other way round; None where there is none."""
    near, far = split.removesuffix(_FAR), _FAR if split.endswith(_FAR) else ""
    for ending, turned in _TURNED.items():
        if near.endswith(ending):
            return f"{near.removesuffix(ending)}{turned}{far}"
    return None


def is_reversed(split: str) -> bool:
    """Whether its facts are asked the way that training never showed."""
    return split.removesuffix(_FAR).endswith("_reverse")


def order_splits(splits: Sequence[str]) -> list[str]:
    """The splits, each once, the reversed ones first, far phrasings after near ones: the same order
    in every figure."""
    known = list(dict.fromkeys([*PREFERRED, *_WAYS]))
    known = [each for split in known for each in (split, split + _FAR)]
    present = dict.fromkeys(splits)
    return sorted(present, key=lambda s: known.index(s) if s in known else len(known))


def name_part(part: str) -> str:
    """What is restored; `mlp@3` is the MLP's output in a window of three layers."""
    part, _, width = part.partition("@")
    window = f", {count(int(width), 'layer')}" if width else ""
    return PARTS.get(part, part) + window


def name_metric(metric: str) -> str:
    """How effects are measured; a metric of one's own has its own name."""
    return METRICS.get(metric, metric)


def name_corruption(row: Mapping[str, Any]) -> str:
    """What hides the subject in a row of a table."""
    return CORRUPTIONS.get(row["corruption"], row["corruption"])


def is_numbered(stage: str) -> bool:
    """Whether a step is known by its number, or by how many steps it is after t1."""
    return stage.isdecimal() or stage.startswith("t1+")


def name_stage(stage: str) -> str:
    """A denoising step that was traced."""
    if stage.startswith("t1+"):
        return stage.replace("+", " + ")
    named = {"t1": "t1 (first answer token)", "t2": "t2 (last answer token)"}
    return f"step {stage}" if stage.isdecimal() else named.get(stage, f"{stage} step")


def count(number: int, noun: str) -> str:
    """A number with its noun, "1 fact" or "3 facts"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def name_kind(kind: str) -> str:
    """What a kind of model is called; noise of another package by its own name."""
    return KINDS.get(kind, kind)


def is_causal(kind: str) -> bool:
    """Whether a table's rows of that `kind` are about an autoregressive model."""
    return kind == "causal"


def colour_models(kinds: dict[str, str]) -> dict[str, str]:
    """A colour for each model, given their kinds; the first of a kind has the kind's own."""
    colours: dict[str, str] = {}
    for number, (model, kind) in enumerate(kinds.items()):
        own = "causal" if is_causal(kind) else "diffusion"
        colours[model] = own if own not in colours.values() else f"p{number + 1}"
    return colours
