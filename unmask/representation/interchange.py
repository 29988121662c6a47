"""Interchange: one fact's subject state in the place of another's, and whose answer is then given.

A recipient's prompt is run with the state that a donor's subject has after a layer put in the place
of its own subject. Where the model then says what is true of the donor, the state carries what the
answer is found by, in a form that the recipient's direction reads. Donors asked in the other
direction (a description, where the recipient's prompt has a name) test a shared code; what stands
beside them is

- `within`: donors of the recipient's own direction, the ceiling;
- `own`: the recipient's own state from another phrasing, the floor;
- donors that training never named, in this model and in the one training started from: where the
  answer could be copied from the donor's own words, success is what exceeds theirs. A relation that
  is stated of names only (`unmask.data.city_lines`) cannot be copied from a description.

The layer is chosen on one half of the people and read on the other, and the other way round. Pairs
stay within a half where it has several people.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.data.city_lines import CITY
from unmask.data.facts import Fact
from unmask.evaluation.equivalence import divide
from unmask.net.model import Model
from unmask.representation.patched import (
    EMBEDDINGS,
    AnswerScore,
    PatchedPrompt,
    StateChange,
    choose_canvas,
    collect_subjects,
    lay_out_prompt,
    score_each_patched,
)

DonorTokens = Literal["last", "all", "cut"]
"""Which states of the donor are put in place: its last subject token's; all, ends aligned; or as
many as every donor of the recipient has, where the recipient's others are cut off."""
RestOfSubject = Literal["mean", "keep"]
"""What becomes of the recipient's other subject tokens: their mean over recipients, or nothing."""


@dataclass(frozen=True)
class StateSwap:
    """One interchange."""

    source: str
    """Where the donor comes from: across, within, own, …"""
    recipient: Fact
    """What is asked; its object is the recipient's answer."""
    donor: Fact
    """The prompt whose subject's state is taken; its object plays no part."""
    answer: Fact
    """A fact whose object is the donor's answer to what the recipient is asked."""
    half: int = 0
    """The half of the people that it is in: the layer is chosen on the other one."""


def person_of(fact: Fact) -> str:
    """The id that all facts about one person share."""
    return fact.fact_id.removesuffix(CITY)


def make_swaps(
    source: str,
    recipients: Sequence[Fact],
    donors: Sequence[Fact],
    answers: Sequence[Fact] | None = None,
    own: bool = False,
    seed: int = 0,
) -> list[StateSwap]:
    """A swap for each recipient that has a donor.

    Donors are of the recipient's half of the people, as far as that has others to choose from.
    `answers` hold what is true of the donors in the recipients' phrasings, by default the
    recipients themselves. The donor's prompt is another than the recipient's, in a phrasing drawn
    by the seed. With `own` the state comes from another prompt of the recipient's person, and the
    answer of a donor must not follow. Sources with the same donors to choose from have the
    same ones.
    """
    prompts: dict[str, list[Fact]] = defaultdict(list)
    for donor in donors:
        prompts[person_of(donor)].append(donor)
    asked_of: dict[tuple[str, int], Fact] = {}
    for answer in recipients if answers is None else answers:
        asked_of.setdefault((person_of(answer), answer.phrasing), answer)
    people = sorted({person for person, _ in asked_of})
    halves = divide({person_of(recipient) for recipient in recipients})
    halves |= divide(set(people) - set(halves))
    swaps = []
    for recipient in recipients:
        person, phrasing = person_of(recipient), recipient.phrasing
        others = [
            asked_of[other, phrasing]
            for other in people
            if (other, phrasing) in asked_of
            and other != person
            and asked_of[other, phrasing].object != recipient.object
            and (own or prompts.get(other))
        ]
        if not others:
            continue
        near = [fact for fact in others if halves[person_of(fact)] == halves[person]]
        stream = python_stream(seed, "swap", person, phrasing)
        answer = stream.choice(near or others)
        lent = prompts.get(person if own else person_of(answer), [])
        lent = [donor for donor in lent if donor.prompt != recipient.prompt]
        if lent:
            swaps.append(StateSwap(source, recipient, stream.choice(lent), answer, halves[person]))
    return swaps


def interchange(
    model: Model,
    swaps: Sequence[StateSwap],
    layers: Sequence[int] | None = None,
    tokens: DonorTokens = "last",
    rest: RestOfSubject = "mean",
    length: int | None = None,
    lender: Model | None = None,
) -> list[dict[str, Any]]:
    """A row for each swap without any change (`layer` None), and for each layer.

    `logp_donor` and `logp_recipient` are the log-probabilities of both answers in nats by the chain
    rule; `says_donor` and `says_recipient` are true where greedy decoding writes them. By default
    all layers are swapped, and -1, the stream before them. Donors' states are the model's own, or
    those of a `lender`, another reading of its network.
    """
    if not swaps:
        raise UserError("no swaps were given: expected at least one, as `make_swaps` gives them.")
    layers = range(EMBEDDINGS, model.net.config.layers) if layers is None else layers
    prompts = [
        lay_out_prompt(model, swap.recipient, [swap.answer, swap.recipient]) for swap in swaps
    ]
    lender = lender or model
    lent = [lay_out_prompt(lender, swap.donor, []) for swap in swaps]
    canvas = choose_canvas(model, [*prompts, *lent], length)
    lent_canvas = choose_canvas(lender, [*prompts, *lent], length)
    donor_states = collect_subjects(lender, lent, layers, lent_canvas)
    means: list[Tensor | None] = [None for _ in layers]
    if tokens == "last" and rest == "mean":
        own = collect_subjects(model, prompts, layers, canvas)
        means = [_average_rest(states[i] for states in own) for i in range(len(layers))]
    counts = _count_shared(swaps, prompts, lent) if tokens == "cut" else None
    changes = [
        {
            layer: _make_change(
                prompts, [each[i] for each in donor_states], tokens, rest, means[i], counts
            )
        }
        | (_cut_rest(model, prompts, counts, layer) if counts else {})
        for i, layer in enumerate(layers)
    ]
    scores = score_each_patched(model, prompts, [{}, *changes], canvas)
    return [
        row
        for layer, own in zip([None, *layers], scores, strict=True)
        for row in _tabulate(swaps, layer, own)
    ]


def _average_rest(states: Any) -> Float[Tensor, "D"] | None:
    """The mean over all subject tokens but the last ones; None where subjects are single tokens."""
    rest = torch.cat([each[:-1] for each in states])
    return rest.double().mean(0).to(rest.dtype) if len(rest) else None


def _make_change(
    prompts: Sequence[PatchedPrompt],
    states: Sequence[Float[Tensor, "S D"]],
    tokens: DonorTokens,
    rest: RestOfSubject,
    mean: Float[Tensor, "D"] | None,
    counts: Sequence[int] | None = None,
) -> StateChange:
    """Puts each prompt's new states in the place of its subject's."""
    # 1. Where in each prompt, and what [s, D]: ends are aligned, and a subject longer than the
    #    donor repeats the donor's first token; or the last token alone, and a mean before it.
    places, values = list[list[int]](), list[Tensor]()
    for number, (prompt, donor) in enumerate(zip(prompts, states, strict=True)):
        positions = list(range(*prompt.subject))
        if counts is not None:
            positions, new = positions[-counts[number] :], donor[-counts[number] :]
        elif tokens == "all":
            back = torch.arange(len(positions) - 1, -1, -1, device=donor.device)
            new = donor[(len(donor) - 1 - back).clamp(min=0)]
        elif rest == "keep" or mean is None:
            positions, new = positions[-1:], donor[-1:]
        else:
            new = torch.cat((mean.expand(len(positions) - 1, -1), donor[-1:]))
        places.append(positions)
        values.append(new)

    def change(x: Float[Tensor, "R L D"], owners: Int[Tensor, "R"]) -> Float[Tensor, "R L D"]:
        # 2. All (row, position) pairs of a batch at once [n, D]; owners are prompts' numbers.
        out, numbers = x.clone(), owners.tolist()
        row = [r for r, n in enumerate(numbers) for _ in places[n]]
        column = [at for n in numbers for at in places[n]]
        out[row, column] = torch.cat([values[n] for n in numbers]).to(x)
        return out

    return change


def _count_shared(
    swaps: Sequence[StateSwap], prompts: Sequence[PatchedPrompt], lent: Sequence[PatchedPrompt]
) -> list[int]:
    """For each swap the subject tokens that its recipient and all its donors have."""
    least: dict[Fact, int] = {}
    for swap, *both in zip(swaps, prompts, lent, strict=True):
        lengths = [each.subject[1] - each.subject[0] for each in both]
        least[swap.recipient] = min(*lengths, *filter(None, [least.get(swap.recipient)]))
    return [least[swap.recipient] for swap in swaps]


def _cut_rest(
    model: Model, prompts: Sequence[PatchedPrompt], counts: Sequence[int], layer: int
) -> dict[int | str, StateChange]:
    """In the layers above, attention to subject tokens that are not replaced is nothing.

    They still see themselves: a row of nothing but cut edges has no mixture.
    """
    cut = [
        list(range(prompt.subject[0], prompt.subject[1] - count))
        for prompt, count in zip(prompts, counts, strict=True)
    ]

    def hide(scores: Float[Tensor, "R H n N"], owners: Int[Tensor, "R"]) -> Tensor:
        scores = scores.clone()
        for row, number in enumerate(owners.tolist()):
            kept = scores[row, :, cut[number], cut[number]].clone()
            scores[row, :, :, cut[number]] = float("-inf")
            scores[row, :, cut[number], cut[number]] = kept
        return scores

    above = range(max(layer, EMBEDDINGS) + 1, model.net.config.layers)
    return {f"layers.{each}.attn_scores": hide for each in above} if any(cut) else {}


def _tabulate(
    swaps: Sequence[StateSwap], layer: int | None, scores: Sequence[Sequence[AnswerScore]]
) -> list[dict[str, Any]]:
    return [
        {
            "swap": swap.source,
            "layer": layer,
            "recipient": person_of(swap.recipient),
            "donor": person_of(swap.donor),
            "answer": person_of(swap.answer),
            "half": swap.half,
            "phrasing": swap.recipient.phrasing,
            "donor_phrasing": swap.donor.phrasing,
            "logp_donor": of_donor.logp,
            "logp_recipient": of_recipient.logp,
            "says_donor": of_donor.is_said,
            "says_recipient": of_recipient.is_said,
        }
        for swap, (of_donor, of_recipient) in zip(swaps, scores, strict=True)
    ]
