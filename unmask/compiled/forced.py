"""Networks that are trained to have a known mechanism (interchange intervention training).

Geiger et al. 2022 (arXiv 2112.00826). A program says what every state stands for: the stream after
each layer at each position. The network is trained to answer, and to answer as the program does
when such a state is put in the place of another question's. Strictly: also where the program says
that nothing changes. Pairs of questions that training never exchanges show whether it holds.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.base.files import write_json
from unmask.base.seeds import torch_stream
from unmask.compiled.mechanisms import CONTEXT, FILLING, IDS, WORDS, Compiled, build_compiled
from unmask.compiled.program import OUT
from unmask.compiled.truth import list_steps, record, run_exchanged
from unmask.data.facts import write_facts
from unmask.net.config import NetConfig
from unmask.net.loading import load, save
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer

MECHANISM = "mechanism.json"
"""The file that says, beside a model, which mechanism it was trained to have."""
FACTS_FILE = "facts.jsonl"
"""Beside a model, the facts that it answers."""
PART = "resid_out"
"""The states that are aligned with the program's."""
NONE = -100
"""In the place of a word where the program says none."""
HELD_OUT = 0.2
"""Share of the pairs of questions that are never exchanged in training."""


@dataclass(frozen=True)
class Forced:
    """How a network is trained to have a mechanism."""

    mechanism: str
    seed: int = 0
    width: int = 64
    heads: int = 4
    updates: int = 1500
    rows: int = 96
    """Exchanges of an update."""
    rate: float = 4e-3
    phrasings: int = len(FILLING) + 1
    idle: int = 0
    """Layers that do nothing, after each of the program's that does something."""


@dataclass(frozen=True)
class Alike:
    """Questions in one phrasing at one step, and what the program answers after each exchange."""

    tokens: Int[Tensor, "Q L"]
    reads: Int[Tensor, "W"]
    words: Int[Tensor, "Q W"]
    exchanged: Int[Tensor, "Q Q layers L W"]
    """By question, the question that a state comes from, its layer and position."""

    def to(self, device: str) -> "Alike":
        """These questions on a device."""
        return Alike(*(each.to(device) for each in vars(self).values()))


@dataclass(frozen=True)
class HeldOut:
    """Exchanges between pairs of questions that were never exchanged: how many go as they must."""

    changed: float
    """Where the program says another word."""
    kept: float
    """Where it says the same."""
    answers: float
    """Without an exchange."""


def train_forced(settings: Forced, device: str = "cpu") -> tuple[Compiled, HeldOut]:
    """A network with the mechanism, and what held-out exchanges say of it."""
    compiled = build_compiled(settings.mechanism, idle=settings.idle, seed=settings.seed)
    groups, is_fitted = (
        list(list_alike(compiled, settings.phrasings)),
        _split_pairs(compiled, settings.seed),
    )
    config = NetConfig(
        vocab_size=len(WORDS), width=settings.width, layers=len(compiled.program.layers),
        heads=settings.heads, mlp_width=4 * settings.width, context=CONTEXT, positions="learned",
    )  # fmt: skip
    net = Transformer(config, settings.seed).to(device)
    groups, is_fitted = [group.to(device) for group in groups], is_fitted.to(device)
    stream = torch_stream(settings.seed, "exchanges")
    optimiser = torch.optim.AdamW(net.parameters(), settings.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.rate, settings.updates)
    for update in range(settings.updates):
        group = groups[update % len(groups)]
        chosen = _draw_exchanges(group, is_fitted, settings.rows, stream)
        states, logits = _run_clean(net, group)
        loss = _find_loss(logits, group.words)
        loss = loss + _find_loss(run_exchanges(net, group, states, chosen), group.exchanged[chosen])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    held_out = check_held_out(net.eval().requires_grad_(False), groups, ~is_fitted)
    plan = Blueprint(config, "masked", IDS["[MASK]"])
    model = Model(f"{settings.mechanism}-trained", net.cpu(), plan, compiled.model.tokenizer)
    return replace(compiled, model=model), held_out


def list_alike(compiled: Compiled, phrasings: int) -> Iterator[Alike]:
    """The questions of both verbs, by phrasing and step."""
    program = compiled.program
    for phrasing in range(phrasings):
        both = [*list_steps(compiled, 0, phrasing), *list_steps(compiled, 1, phrasing)]
        for steps in zip(*both, strict=True):
            runs = [record(program, step.tokens) for step in steps]
            reads = list(steps[0].readers.values())
            shape = (len(steps), len(program.layers), len(steps[0].tokens), len(reads))
            end = (len(program.layers), "end")
            words = torch.tensor([[own[end][at].get(OUT, NONE) for at in reads] for own in runs])
            exchanged = words[:, None, None, None].repeat(1, shape[0], *shape[1:3], 1)
            for i, step in enumerate(steps):
                for j, layer, at in torch.cartesian_prod(*map(torch.arange, shape[:3])).tolist():
                    if runs[i][layer, PART][at] == runs[j][layer, PART][at]:
                        continue
                    states = run_exchanged(program, step, runs[j], (layer, PART, at))
                    exchanged[i, j, layer, at] = torch.tensor(
                        [NONE if states is None else states[k].get(OUT, NONE) for k in reads]
                    )
            tokens = torch.tensor([step.tokens for step in steps])
            yield Alike(tokens, torch.tensor(reads), words, exchanged)


Exchanges = tuple[Int[Tensor, "R"], Int[Tensor, "R"], Int[Tensor, "R"], Int[Tensor, "R"]]
"""Questions, the questions that states come from, layers and positions."""


def run_exchanges(
    net: Transformer, group: Alike, states: list[Float[Tensor, "Q L D"]], chosen: Exchanges
) -> Float[Tensor, "R W V"]:
    """Logits of the words of questions, each with one state of another."""
    rows, sources, layers, places = chosen
    x = net.embed(group.tokens[rows])
    for layer, clean in enumerate(states):
        x = net.run_layers(x, layer, layer + 1)
        here = (layers == layer).nonzero()[:, 0]
        x = x.index_put((here, places[here]), clean[sources[here], places[here]])
    return net.unembed(x[:, group.reads])


@torch.no_grad()
def check_held_out(net: Transformer, groups: list[Alike], is_held: Bool[Tensor, "Q Q"]) -> HeldOut:
    """How many exchanges between these pairs go as the program says, over all groups and sites."""
    counts = torch.zeros(3, 2, device=is_held.device)
    for group in groups:
        states, logits = _run_clean(net, group)
        known = group.words != NONE
        counts[2] += _count(logits.argmax(-1) == group.words, known)
        shape = group.exchanged.shape[2:4]
        pairs = (is_held[..., None, None].expand(-1, -1, *shape)).nonzero()
        for part in pairs.split(2048):
            chosen = part.unbind(1)
            meant, own = group.exchanged[chosen], group.words[part[:, 0]]
            is_right = run_exchanges(net, group, states, chosen).argmax(-1) == meant
            for number, which in enumerate((meant != own, meant == own)):
                counts[number] += _count(is_right, which & (meant != NONE))
    return HeldOut(*(counts[:, 0] / counts[:, 1]).tolist())


def _count(is_right: Bool[Tensor, "*n"], which: Bool[Tensor, "*n"]) -> Int[Tensor, "2"]:
    """How many of some are right, and how many they are."""
    return torch.stack([(is_right & which).sum(), which.sum()])


def save_forced(
    compiled: Compiled, held_out: HeldOut, settings: Forced, folder: Path, seconds: float
) -> None:
    """The model, and beside it its facts, which mechanism it has, what shows it, and what training
    took of one processor core."""
    save(compiled.model, folder)
    write_facts(folder / FACTS_FILE, compiled.facts)
    shown = {"held_out": vars(held_out), "processor_seconds": round(seconds, 1)}
    write_json(folder / MECHANISM, vars(settings) | shown)


def load_forced(folder: Path) -> Compiled:
    """A network that was trained to have a mechanism, with its program."""
    known = json.loads((folder / MECHANISM).read_text("utf-8"))
    # Those of before have no word of idle layers.
    compiled = build_compiled(known["mechanism"], idle=known.get("idle", 0), seed=known["seed"])
    return replace(compiled, model=load(str(folder), device="cpu"))


def _run_clean(net: Transformer, group: Alike) -> tuple[list[Tensor], Tensor]:
    """What leaves each layer, and the words' logits."""
    x, states = net.embed(group.tokens), list[Tensor]()
    for layer in range(net.config.layers):
        x = net.run_layers(x, layer, layer + 1)
        states.append(x)
    return states, net.unembed(x[:, group.reads])


def _find_loss(logits: Float[Tensor, "*n V"], words: Int[Tensor, "*n"]) -> Float[Tensor, ""]:
    return F.cross_entropy(logits.flatten(0, -2), words.flatten(), ignore_index=NONE)


def _split_pairs(compiled: Compiled, seed: int) -> Bool[Tensor, "Q Q"]:
    """Which pairs of questions are exchanged in training."""
    count = 2 * len({fact.fact_id for fact in compiled.facts})
    drawn = torch.rand(count, count, generator=torch_stream(seed, "held-out pairs"))
    return drawn >= HELD_OUT


def _draw_exchanges(
    group: Alike, is_fitted: Bool[Tensor, "Q Q"], count: int, stream: torch.Generator
) -> Exchanges:
    """Exchanges of which half change a word, as far as there are any."""
    is_changed = ((group.exchanged != group.words[:, None, None, None]) &
                  (group.exchanged != NONE)).any(-1)  # fmt: skip
    fitted = is_fitted[..., None, None].expand_as(is_changed)
    halves = [(fitted & is_changed).nonzero(), (fitted & ~is_changed).nonzero()]
    drawn = [
        half[torch.randint(len(half), (count // 2,), generator=stream).to(half.device)]
        for half in halves
        if len(half)
    ]
    return torch.cat(drawn).unbind(1)  # ty: ignore[invalid-return-type]
