"""Texts written under steering, answers to facts under it, and the directions that are added."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.reading import read_tensors
from unmask.base.seeds import derive_seed, python_stream, torch_stream
from unmask.dictionaries.dictionary import Dictionary
from unmask.dictionaries.steering import choose_steps, steer
from unmask.dictionaries.targets import Heading, count_firing, find_heading, has_words
from unmask.evaluation.metrics import is_contained
from unmask.evaluation.quality import judge_texts
from unmask.evaluation.questions import STUDY_LENGTH
from unmask.measures.inputs import Member, ModelInputs
from unmask.measures.measure import Rows
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.sampling.texts import sample

if TYPE_CHECKING:
    from unmask.data.facts import Fact
    from unmask.measures.steer import SteerSettings

SteeredWay = tuple[Tensor, float, Any] | None
"""A direction of length 1, how much of it each step adds, and which steps; None: not steered."""


@dataclass(frozen=True)
class Target:
    """What one steering should bring: words, or a feature."""

    name: str
    words: tuple[str, ...] = ()
    feature: int | None = None


@dataclass(frozen=True)
class SteerData:
    """Lines, facts that are asked as trained, and targets."""

    lines: list[str]
    facts: "list[Fact]"
    targets: list[Target]


@dataclass
class SteeredTexts:
    """The texts of a run; a target's direction is found once, the judge loaded once."""

    inputs: ModelInputs
    settings: "SteerSettings"
    _heading: tuple[str, Heading] | None = None
    _fires: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def judge(self) -> Model | None:
        name = self.settings.judge
        return None if name is None else load(name, self.inputs.device, self.settings.dtype)

    @cached_property
    def dictionary(self) -> Dictionary:
        dictionary = Dictionary.load(str(self.settings.dictionary))
        if max(self.settings.features) >= dictionary.size:
            raise UserError(
                f"feature {max(self.settings.features)} was named: the dictionary has features 0 "
                f"to {dictionary.size - 1}."
            )
        return dictionary

    def find_place(self, model: Model) -> tuple[str, int]:
        """The site that is steered, and the positions of a canvas."""
        layers, own = model.net.config.layers, self.settings
        layer = (layers - 1) // 2 if own.layer is None else own.layer
        if layer >= layers:
            raise UserError(f"layer {layer} was named: {model.name} has layers 0 to {layers - 1}.")
        site = f"layers.{layer}.resid_out"
        if own.features and (of := self.dictionary.site) not in ("", site):
            raise UserError(f"the dictionary is of {of}, and {site} is steered: name its layer.")
        return site, min(own.length or STUDY_LENGTH, model.net.config.context)

    def head(self, member: Member, target: Target) -> Heading:
        """The direction of a target; that of the one before is let go."""
        key = f"{member.key} {target.name}"
        if self._heading is None or self._heading[0] != key:
            model, own = self.inputs.load(member), self.settings
            site, length = self.find_place(model)
            given = self._read_direction(target, model)
            sides = self._choose_sides(member, target, site, length)
            heading = find_heading(model, site, sides, own.steps, length, given, own.seed)
            self._heading = key, heading
        return self._heading[1]

    def _read_direction(self, target: Target, model: Model) -> Tensor | None:
        if target.feature is not None:
            given = self.dictionary.w_dec[target.feature]
        elif self.settings.vector is not None:
            tensors, _ = read_tensors(self.settings.vector, "a vector", "give another file")
            if len(tensors) != 1:
                raise UserError(f"{self.settings.vector} has {len(tensors)} tensors: expected one.")
            given = next(iter(tensors.values()))
        else:
            return None
        if given.shape != (width := (model.net.config.width,)):
            raise UserError(f"the vector has the shape {[*given.shape]}: expected {[*width]}.")
        return given

    def _choose_sides(
        self, member: Member, target: Target, site: str, length: int
    ) -> tuple[list[str], list[str]]:
        """Lines that have a target and lines that lack it, as many of each as are asked for."""
        lines, most = self.inputs.data.lines, self.settings.lines
        stream = python_stream(self.settings.seed, "lines", target.name)
        if target.feature is None:
            sides: dict[bool, list[str]] = {True: [], False: []}
            for line in stream.sample(lines, len(lines)):
                if min(map(len, sides.values())) < most:
                    sides[has_words(line, target.words)].append(line)
            ours, theirs = sides[True][:most], sides[False][:most]
        else:
            # Of four times as many lines, those in which the feature fires most, and those in
            # which it does least.
            pool = python_stream(self.settings.seed, "lines").sample(
                lines, min(4 * most, len(lines))
            )
            if member.key not in self._fires:
                model = self.inputs.load(member)
                dictionary = self.dictionary.to(model.device)
                self._fires = {member.key: count_firing(model, site, dictionary, pool, length)}
            fires = self._fires[member.key][:, target.feature]
            order, most = fires.argsort(descending=True).tolist(), min(most, len(pool) // 2)
            ours = [pool[i] for i in order[:most] if fires[i] > 0]
            theirs = [pool[i] for i in order[::-1][:most]]
        if min(len(ours), len(theirs)) < 2:
            raise UserError(
                f"{len(ours)} lines have {target.name!r:.60} and {len(theirs)} lack it: expected "
                "at least 2 of both; ask for something else, or give other data."
            )
        return ours, theirs

    def write(self, member: Member, target: Target, schedule: str | None) -> Mapping[str, Rows]:
        """Texts and answers of one target, steered by a schedule, or without one not at all."""
        heading, own = self.head(member, target), self.settings
        ways: list[tuple[dict[str, Any], SteeredWay]] = []
        if schedule is None:
            ways = [({"schedule": "none", "strength": 0.0, "added": "none"}, None)]
        else:
            chosen = heading.forming if schedule == "forms" else choose_steps(schedule, own.steps)  # ty: ignore[invalid-argument-type]
            stream = torch_stream(own.seed, "random direction", target.name)
            noise = torch.randn(len(heading.direction), generator=stream)
            headings = {"own": heading.direction.cpu(), "random": noise / noise.norm()}
            for strength, (name, unit) in product(own.strengths, headings.items()):
                dose = strength * own.steps / len(chosen) * heading.size
                where = {"schedule": schedule, "strength": strength, "added": name}
                ways.append((where, (unit, dose, chosen)))
        rows: dict[str, Rows] = {"steer": [], "recall": []}
        for where, way in ways:
            columns = member.columns | {"target": target.name} | where
            texts, answers = self._draw(member, target, way), self._ask(member, target, way)
            rows["steer"] = [*rows["steer"], *(columns | row for row in texts)]
            rows["recall"] = [*rows["recall"], *(columns | row for row in answers)]
        formed = [
            member.columns | {"target": target.name, "step": step, "gap": gap}
            | {"is_chosen": step in heading.forming}
            for step, gap in enumerate(heading.gaps if schedule is None else (), 1)
        ]  # fmt: skip
        return rows | {"formed": formed}

    def _draw(self, member: Member, target: Target, way: SteeredWay) -> list[dict[str, Any]]:
        """A row for each text that is written one way."""
        model, own = self.inputs.load(member), self.settings
        site, length = self.find_place(model)
        # 1. The first words of lines, without what is asked for.
        lines = self.inputs.data.lines
        shuffled = python_stream(own.seed, "openings", target.name).sample(lines, len(lines))
        openings = (" ".join(line.split()[: own.given]) for line in shuffled)
        lacking = (each for each in openings if not has_words(each, target.words))
        prompts = [prompt for prompt, _ in zip(cycle(lacking), range(own.texts), strict=False)]
        # 2. The texts, whose noise no steering changes.
        seed = derive_seed(own.seed, "texts", target.name) % 2**31
        drawn_by = {"temperature": 1.0, "seed": seed}
        texts = _continue(model, prompts, site, length, own.steps, way, drawn_by)
        # 3. Effect and cost.
        if target.feature is not None:
            dictionary = self.dictionary.to(model.device)
            fires = count_firing(model, site, dictionary, texts, length)
            brought = fires[:, target.feature].tolist()
        else:
            brought = [float(has_words(text, target.words)) for text in texts]
        costs: Sequence[Any] = [None] * len(texts)
        costs = costs if self.judge is None else judge_texts(self.judge, texts)
        return [
            {"fact": f"{target.name}-{i:03d}", "text": text, "brought": share}
            | {"per_token": cost.nll / cost.tokens if cost and cost.tokens else None}
            for i, (text, share, cost) in enumerate(zip(texts, brought, costs, strict=True))
        ]

    def _ask(self, member: Member, target: Target, way: SteeredWay) -> list[dict[str, Any]]:
        """A row for each fact that is asked; none of them states the target."""
        model, own = self.inputs.load(member), self.settings
        site, length = self.find_place(model)
        facts = [x for x in self.inputs.data.facts if not has_words(x.text, target.words)]
        facts = python_stream(own.seed, "asked", target.name).sample(
            facts, min(own.facts, len(facts))
        )
        prompts = [fact.prompt for fact in facts]
        written = _continue(model, prompts, site, length, own.steps, way, {}) if facts else []
        return [
            fact.columns | {"hit": is_contained(text, fact.completion)}
            for fact, text in zip(facts, written, strict=True)
        ]


def _continue(
    model: Model,
    prompts: Sequence[str],
    site: str,
    length: int,
    steps: int,
    way: SteeredWay,
    drawn_by: Mapping[str, Any],
) -> list[str]:
    """What is written after each prompt, a direction being added as a way says."""
    around: Any = nullcontext()
    if way is not None:
        unit, dose, chosen = way
        around = steer(model, site, unit, dose, steps=steps, schedule=chosen)
    settings: dict[str, Any] = {"steps": steps, "length": length, "keep_states": False}
    with around:
        return sample(model, list(prompts), **settings, **drawn_by).texts or []
