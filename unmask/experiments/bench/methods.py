"""Methods that say where an answer comes from, this project's and others', by name.

A method is a function of a task to its scores, or an object with `localise`, which does that, and
`compare`, which says how much two directions of the same facts share. Without `compare`, that is
the likeness of both directions' scores: all that a map of places can say of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from unmask.base.plugins import Registry
from unmask.base.seeds import torch_stream
from unmask.experiments.bench.rewrite import Rewrite, choose_others
from unmask.experiments.bench.task import EDGES, PARTS, Localisation, PlaceScores
from unmask.representation.erasure import StateSet, fit_eraser
from unmask.representation.readout import fit_and_predict
from unmask.tracing.attribution import estimate_effects
from unmask.tracing.corruption import Corrupted
from unmask.tracing.grid import TraceGrid
from unmask.tracing.knockout import cut_state
from unmask.tracing.question import ask
from unmask.tracing.record import average_states
from unmask.tracing.settings import Tracing
from unmask.tracing.tokens import trace_tokens

ASKED_EACH = 4
"""Questions that a method asks which takes them one by one."""
SAMPLES = 4
"""Noise samples of a trace."""
POINTS = 8
"""Points on the way between two questions at which gradients are taken."""
SHRINKAGE = 0.01
"""How far the covariance that erasers are fitted with is shrunk."""
SAME = 1e-3
"""SiteStates that differ by less do not tell questions apart."""
SiteStates = Mapping[str, Tensor]
"""By site [questions, positions, width]."""


class NotApplicableError(Exception):
    """A method that a model cannot be asked by."""


@runtime_checkable
class Locator(Protocol):
    """A method with a comparison of its own."""

    def localise(self, task: Localisation, /) -> PlaceScores: ...

    def compare(self, here: Localisation, there: Localisation, /) -> float:
        """How much of what two directions of the same facts are answered from is shared."""
        ...


@dataclass(frozen=True)
class Mapped:
    """A method that has a function alone."""

    function: Callable[[Localisation], PlaceScores]

    def localise(self, task: Localisation) -> PlaceScores:
        return self.function(task)

    def compare(self, here: Localisation, there: Localisation) -> float:
        maps = [self.function(task) for task in (here, there)]
        one, other = (torch.cat([each.flatten() for each in own.values()]) for own in maps)
        return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def trace_states(task: Localisation, **settings: Any) -> PlaceScores:
    """Each state put back, or taken away, alone: what that does to the word's probability."""
    if settings.get("corruption") == "mask" and task.model.mask_id is None:
        raise NotApplicableError("no mask")
    means = average_states(task.model, task.tokens.tolist())
    own = Tracing(parts=tuple(PARTS), window=1, samples=SAMPLES, **settings)  # ty: ignore[invalid-argument-type]
    run = partial(trace_tokens, means=means if settings.get("mode") == "mean" else None)
    return _average(task, lambda row, word, _: run(task.model, row, task.subject, word, own))


def attribution(task: Localisation) -> PlaceScores:
    """What restoring each state would give back, by the gradient alone."""

    def ask_one(row: Tensor, word: dict[int, int], _donor: Tensor) -> TraceGrid:
        return estimate_effects(
            task.model, row, task.subject, word, corruption="mean", parts=tuple(PARTS), window=1
        )

    return _average(task, ask_one, "logp")


def _average(
    task: Localisation,
    ask_one: Callable[[Tensor, dict[int, int], Tensor], TraceGrid],
    metric: str = "p",
) -> PlaceScores:
    """Mean effects over questions, which are asked one by one; donors ask for another word."""
    scores, asked_each = task.blank(), task.tokens[:ASKED_EACH]
    for number, row in enumerate(asked_each):
        word = int(task.words[number])
        later = task.words.roll(-number) != word  # the next question that asks for another one
        donor = (number + int(later.int().argmax())) % len(later)
        grid = ask_one(row, {task.position: word}, task.tokens[donor])
        for part, total in scores.items():
            total += grid.effects(part, metric).float() / len(asked_each)
    return scores


def read_lens(task: Localisation) -> PlaceScores:
    """The word's logit in the stream after a layer; of a part, by how much it raises that."""
    net, taken, scores = task.model.net, task.capture(), task.blank()

    def read(stream: Tensor) -> Tensor:
        logits = net.unembed(stream)
        words = task.words[:, None, None].expand(-1, logits.shape[1], 1)
        return (logits.gather(-1, words)[..., 0] - logits.mean(-1)).mean(0)

    with torch.no_grad():
        for layer in range(net.config.layers):
            before, attn, mlp, after = (
                taken[f"layers.{layer}.{site}"]
                for site in ("resid_in", "attn_out", "mlp_out", "resid_out")
            )
            scores["resid"][:, layer] = read(after)
            scores["attn"][:, layer] = read(before + attn) - read(before)
            scores["mlp"][:, layer] = read(after) - read(after - mlp)
    return scores


def find_last_layer(task: Localisation) -> int:
    """The last layer after which another question's state in the place of the subject's last word
    still costs half of the word."""
    taken, at = task.capture(), task.subject[1] - 1
    lost = [
        float((task.clean - task.patch(site, at, taken[site][:, at].roll(1, 0))).mean())
        for _, _, site in task.list_sites(("resid",))
    ]
    return max(layer for layer, each in enumerate(lost) if each >= max(lost) / 2)


class Interchange:
    """A state exchanged for another question's."""

    def localise(self, task: Localisation) -> PlaceScores:
        """What each state's exchange loses of the own word."""

        def ask_one(row: Tensor, word: dict[int, int], donor: Tensor) -> TraceGrid:
            return trace_tokens(
                task.model, row, task.subject, word, corruption=Corrupted(donor[None]),
                parts=tuple(PARTS), window=1, mode="ablate",
            )  # fmt: skip

        return _average(task, ask_one)

    def compare(self, here: Localisation, there: Localisation) -> float:
        """How much of the word is left with the subject's state of the fact's other direction."""
        site, at = f"layers.{find_last_layer(here)}.resid_out", here.subject[1] - 1
        return float(here.patch(site, at, there.capture()[site][:, at]).mean())


class Probe:
    """Which question it is, read by a line that was fitted to other phrasings' states."""

    def localise(self, task: Localisation) -> PlaceScores:
        fitted, own, scores = (
            [task.capture(each) for each in task.others],
            task.capture(),
            task.blank(),
        )
        for part, layer, site in task.list_sites():
            for at in range(task.tokens.shape[1]):
                scores[part][at, layer] = self._read(fitted, own, site, at)
        return scores

    def compare(self, here: Localisation, there: Localisation) -> float:
        """How often a line of the other direction's states reads the subject's."""
        fitted = [there.capture(each) for each in (there.tokens, *there.others)]
        site = f"layers.{find_last_layer(here)}.resid_out"
        return self._read(fitted, here.capture(), site, here.subject[1] - 1)

    def _read(self, fitted: Sequence[SiteStates], own: SiteStates, site: str, at: int) -> float:
        train, labels = _stack(fitted, site, at), np.arange(len(own[site]))
        if np.ptp(train, 0).max() < SAME:
            return 1 / len(labels)
        read = fit_and_predict(train, np.tile(labels, len(fitted)), own[site][:, at].numpy())
        return float((read == labels).mean())


class Erasure:
    """What tells questions apart, taken out of a state."""

    def localise(self, task: Localisation) -> PlaceScores:
        """What each state's erasure loses of the word."""
        own, scores = task.capture(), task.blank()
        fitted = [own, *map(task.capture, task.others)]
        for part, layer, site in task.list_sites():
            for at in range(task.tokens.shape[1]):
                scores[part][at, layer] = self._erase(task, fitted, own, site, at)
        return scores

    def compare(self, here: Localisation, there: Localisation) -> float:
        """What is lost by what tells the other direction's states apart."""
        fitted = [there.capture(each) for each in (there.tokens, *there.others)]
        site = f"layers.{find_last_layer(here)}.resid_out"
        return self._erase(here, fitted, here.capture(), site, here.subject[1] - 1)

    def _erase(
        self, task: Localisation, fitted: Sequence[SiteStates], own: SiteStates, site: str, at: int
    ) -> float:
        states = StateSet(_stack(fitted, site, at))
        if np.abs(states.centred).max() < SAME:
            return 0.0
        eraser = fit_eraser(states, [*range(len(task.tokens))] * len(fitted), SHRINKAGE)
        eraser = eraser.recentre(own[site][:, at].double().numpy())
        return float((task.clean - task.patch(site, at, eraser(own[site][:, at]))).mean())


def _stack(fitted: Sequence[SiteStates], site: str, at: int) -> np.ndarray:
    """The states of several phrasings at a place, one below the other."""
    return torch.cat([each[site][:, at] for each in fitted]).double().numpy()


def read_attention(task: Localisation) -> PlaceScores:
    """How much of its attention a position gives another in the head that gives most."""
    names = [f"layers.{layer}.attn_pattern" for layer in range(task.model.net.config.layers)]
    with torch.no_grad(), task.model.net.capture(*names) as taken:
        task.model.net(task.tokens)
    return {EDGES: torch.stack([taken[name].amax(1).mean(0) for name in names])}


def cut_each_edge(task: Localisation) -> PlaceScores:
    """Each edge of attention cut, all heads of a layer together: what is lost of the word."""
    layers, length = task.model.net.config.layers, task.tokens.shape[1]
    pairs = [(i, j) for i in range(length) for j in range(1, length) if i != j]
    matrices = []
    for i, j in pairs:
        matrices.append(torch.zeros(length, length, dtype=torch.bool))
        matrices[-1][i, j] = True
    windows = [(layer, layer + 1) for layer in range(layers)]
    scores, asked_each = torch.zeros(layers, length, length), task.tokens[:ASKED_EACH]
    for row, word in zip(asked_each, task.words.tolist(), strict=False):
        settings = Tracing(corruption="mean")
        question = ask(task.model, row, task.subject, {task.position: word}, settings)
        with torch.inference_mode():
            lost = cut_state(question, matrices, windows).effects("p")
        for pair, own in zip(pairs, lost, strict=True):
            scores[:, pair[0], pair[1]] += own.float() / len(asked_each)
    return {EDGES: scores}


def exchange_edges(task: Localisation) -> PlaceScores:
    """What one position takes of another, exchanged for what it would take in another question.

    The path from the one to the other alone: where attention goes, and what all other positions
    read, stays as it is.
    """
    net, layers, length = task.model.net, task.model.net.config.layers, task.tokens.shape[1]
    scores, parts = torch.zeros(layers, length, length), ("attn_z", "attn_v", "attn_pattern")
    with torch.no_grad(), net.capture(*(f"layers.*.{part}" for part in parts)) as taken:
        net(task.tokens)
    for layer in range(layers):
        z, v, pattern = (taken[f"layers.{layer}.{part}"] for part in parts)
        changes = torch.einsum("qhij,qjhd->ijqhd", pattern, v.roll(1, 0) - v)
        is_other = changes.abs().amax((2, 3, 4)) > SAME
        for i, j in is_other.nonzero().tolist():
            if j and i != j:
                put = task.patch(f"layers.{layer}.attn_z", i, z[:, i] + changes[i, j])
                scores[layer, i, j] = (task.clean - put).mean()
    return {EDGES: scores}


def attribute_edges(task: Localisation) -> PlaceScores:
    """What each edge of attention brings to the word's log p, by the gradient alone."""
    net, layers = task.model.net, range(task.model.net.config.layers)
    named = ("attn_z", "attn_v", "attn_pattern")
    parts = [[f"layers.{i}.{part}" for i in layers] for part in named]
    with torch.enable_grad(), net.capture(*chain.from_iterable(parts)) as taken:
        stream = net.embed(task.tokens).detach().requires_grad_()
        logp = net.unembed(net.run_layers(stream))[:, task.reads].log_softmax(-1)
        total = logp.gather(-1, task.words[:, None]).sum()
        slopes = torch.autograd.grad(total, [taken[name] for name in parts[0]], allow_unused=True)
    scores = []
    for slope, z, v, pattern in zip(slopes, *parts, strict=True):
        if slope is None:
            slope = torch.zeros_like(taken[z])
        reached = torch.einsum("qihd,qjhd->qhij", slope, taken[v].detach())
        scores.append((taken[pattern].detach() * reached).sum(1).mean(0))
    return {EDGES: torch.stack(scores)}


def integrate_gradients(task: Localisation) -> PlaceScores:
    """What exchanging each state would lose of the word's logit against the other question's: its
    change times the mean slope on the way between both questions' embeddings."""
    net, others, scores = task.model.net, choose_others(task), task.blank()
    sites = [site for _, _, site in task.list_sites()]
    both = torch.stack((task.words, task.words[others]), 1)
    ends = net.embed(task.tokens), net.embed(task.tokens[others])
    states, slopes = task.capture(), dict.fromkeys(sites, torch.zeros(()))
    for place in (torch.arange(POINTS) + 0.5) / POINTS:
        stream = torch.lerp(*ends, float(place)).requires_grad_()
        with torch.enable_grad(), net.capture(*sites) as taken:
            logits = net.unembed(net.run_layers(stream))[:, task.reads].gather(-1, both)
            total = (logits[:, 0] - logits[:, 1]).sum()
            here = torch.autograd.grad(total, [taken[site] for site in sites], allow_unused=True)
        for site, slope in zip(sites, here, strict=True):
            slopes[site] = slopes[site] + (0.0 if slope is None else slope / POINTS)
    for part, layer, site in task.list_sites():
        change = states[site] - states[site][others]
        scores[part][:, layer] = (change * slopes[site]).sum(-1).mean(0)
    return scores


def draw_scores(task: Localisation) -> PlaceScores:
    """Random numbers: what no method may fall below."""
    stream = torch_stream(0, "random scores", *task.tokens[0].tolist())
    layers, length = task.model.net.config.layers, task.tokens.shape[1]
    return {part: torch.rand(length, layers, generator=stream) for part in PARTS}


METHODS = Registry[Locator | Callable[[Localisation], PlaceScores]](
    "method",
    {
        "trace-mask": partial(trace_states, corruption="mask"),
        "trace-rome": partial(trace_states, corruption="rome"),
        "trace-mean": partial(trace_states, corruption="mean"),
        "zero": partial(trace_states, mode="zero"),
        "mean": partial(trace_states, mode="mean"),
        "interchange": Interchange(),
        "attribution": attribution,
        "lens": read_lens,
        "probe": Probe(),
        "erasure": Erasure(),
        "edit": Rewrite(),
        "cut": cut_each_edge,
        "path": exchange_edges,
        "attention": read_attention,
        "edge-attribution": attribute_edges,
        "integrated-gradients": integrate_gradients,
        "random": draw_scores,
    },
    lambda thing: callable(thing) or isinstance(thing, Locator),
    "a function of a task (unmask.experiments.bench.task.Localisation) to its scores, or an object "
    "with localise and compare",
)
