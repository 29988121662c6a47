"""The circuit of the shown fact: at each step that writes the answer, which heads and MLPs give
it, and along which edges, by the functions of `unmask circuit`."""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from unmask.base.errors import UserError
from unmask.data.corpus import TESTS
from unmask.data.facts import Fact, FactTokens, tokenize_fact
from unmask.evaluation.questions import require_tokenizer
from unmask.explorer.interventions import make_page_fact
from unmask.explorer.requests import CircuitRequest
from unmask.explorer.session import TokenTexts, read_shipped_corpus
from unmask.explorer.worker import Emit
from unmask.net.model import Model
from unmask.tracing.circuits import Contrast, Wiring
from unmask.tracing.clean_run import CleanRun, generate
from unmask.tracing.contrasts import contrast_step, list_partners
from unmask.tracing.screens import screen
from unmask.tracing.settings import Tracing

MOST_PARTNERS = 8
"""Other questions that are tried: of those the one that differs at the most steps."""
LEAST_SHOWN = 0.05
"""Effects of less than this share of what lies between both questions are not sent."""
LEAST_APART = 1.0
"""Logits: where less lies between both questions, nothing brings the answer."""


# A gradient is taken, which tensors made in inference mode would not allow.
@torch.inference_mode(False)
@torch.no_grad()
def find_circuit(model: Model, request: CircuitRequest, emit: Emit) -> list[dict[str, Any]]:
    """For each step that writes a token of the answer its nodes and edges, exact, strongest first.

    Edges are those that attribution finds strongest. Effects are shares of what lies between the
    question and the other one, whose values nodes and edges are given.
    """
    start, names = time.perf_counter(), TokenTexts(model)
    fact = make_page_fact(request.prompt, request.subject, request.answer)
    clean = generate(model, fact, Tracing(steps=request.steps, any_answer=True))
    other, contrasts = pick_other(clean, list(list_others(clean, fact, request)))
    emit(
        "start",
        {
            "steps": sorted({int(clean.committed_at[at]) for at in clean.answer}),
            "asked": sorted(contrasts),
            "layers": model.net.config.layers,
            "heads": model.net.config.heads,
            "other": "".join(names[token] for token in other.ids).strip(),
            "said": clean.text,
            "forced": clean.forced,
        },
    )
    answers = []
    for step, contrast in sorted(contrasts.items()):
        answers.append({"step": step, **map_contrast(contrast, names, request.edges, emit)})
        emit("step", answers[-1])
    emit("end", {"seconds": time.perf_counter() - start})
    return answers


def list_others(clean: CleanRun, fact: Fact, request: CircuitRequest) -> Iterator[FactTokens]:
    """Questions in the same words about another subject: the one that was given, or those of the
    corpus that a shipped model was trained on."""
    if request.other_subject or request.other_answer:
        yield _take_other(clean, fact, request)
        return
    corpus = read_shipped_corpus(clean.model)
    for facts in () if corpus is None else map(corpus.__getitem__, TESTS):
        alike = (each for each in facts if each.prompt.rstrip() == fact.prompt)
        if (own := next((each for each in alike if each.object == fact.object), None)) is not None:
            yield from islice(list_partners(clean, own, facts), MOST_PARTNERS)
            return


def _take_other(clean: CleanRun, fact: Fact, request: CircuitRequest) -> FactTokens:
    """The other question as it was given."""
    begin, end = fact.subject_span
    subject, answer = request.other_subject.strip(), request.other_answer.strip()
    if not subject or not answer or answer == fact.object:
        raise UserError(
            "the other question is not whole: expected another subject, and another answer to the "
            "same question about it."
        )
    prompt = fact.prompt[:begin] + subject + fact.prompt[end:]
    other = make_page_fact(prompt, (begin, begin + len(subject)), answer)
    tokens = tokenize_fact(other, require_tokenizer(clean.model))
    if (tokens.prompt_length, tokens.subject) != (clean.prompt_length, clean.subject):
        counts = [b - a for a, b in (tokens.subject, clean.subject)]
        raise UserError(
            f"the other subject {subject!r:.60} has {counts[0]} tokens, and the question's own "
            f"{counts[1]}: expected as many, so that each position stands for the same."
        )
    return tokens


def pick_other(clean: CleanRun, others: list[FactTokens]) -> tuple[FactTokens, dict[int, Contrast]]:
    """The other question that differs from the own one at the most steps, and both side by side."""
    steps = sorted({int(clean.committed_at[at]) for at in clean.answer})
    best: tuple[FactTokens, dict[int, Contrast]] | None = None
    for other in others:
        both = {step: contrast_step(clean, step, other) for step in steps}
        contrasts = {step: each for step, each in both.items() if each is not None}
        if contrasts and (best is None or len(contrasts) > len(best[1])):
            best = other, contrasts
    if best is None:
        raise UserError(
            "no other question of the same shape is known to set beside this one: name another "
            "subject with as many tokens, and its answer."
        )
    return best


def map_contrast(contrast: Contrast, names: TokenTexts, edges: int, emit: Emit) -> dict[str, Any]:
    """The nodes and edges of one step, and its roles with their tokens."""
    wiring = Wiring(contrast)
    clean, other = wiring.ends()
    tokens = [names[token] for token in contrast.clean.tolist()]
    words = {
        role: [text for text, own in zip(tokens, contrast.roles, strict=True) if own == role]
        for role in wiring.names
    }
    answer: dict[str, Any] = {"roles": words, "clean": clean, "other": other}
    if clean - other < LEAST_APART:
        return answer | {"nodes": [], "edges": []}
    lost = wiring.measure_nodes() / (clean - other)  # [C, R]
    emit("progress", {})
    nodes = [
        {**_place(wiring, *at), "effect": float(lost[at])}
        for at in map(tuple, (lost.abs() >= LEAST_SHOWN).nonzero().tolist())
    ]
    order = screen(wiring, "attribution").edges.abs().nan_to_num(-1.0).flatten()
    chosen = torch.zeros_like(wiring.edges)
    chosen.view(-1)[order.topk(min(edges, len(order))).indices] = True
    emit("progress", {})
    exact = wiring.measure_edges(chosen) / (clean - other)  # [V, R, C, R]
    carried = [
        {
            "from": _place(wiring, *at[2:]),
            "to": _place(wiring, *at[:2]),
            "effect": float(exact[at]),
        }
        for at in map(tuple, (exact.nan_to_num(0.0).abs() >= LEAST_SHOWN).nonzero().tolist())
    ]
    for each in (nodes, carried):
        each.sort(key=lambda row: -abs(row["effect"]))
    return answer | {"nodes": nodes, "edges": carried}


def _place(wiring: Wiring, number: int, role: int) -> dict[str, Any]:
    """A node, or what reads at the end, as the page gets it."""
    return {**vars(wiring.components[number]), "role": wiring.names[role]}
