"""What some tries of `keep_language.py` are made of: an objective and a source of rows."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import unmask
from unmask.base.seeds import derive_seed
from unmask.data.facts import tokenize_facts
from unmask.data.shards import Shards, Windows
from unmask.data.sources import read_corpus_folder
from unmask.data.tokenizer import Tokenizer
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch
from unmask.training.data_settings import DataSettings
from unmask.training.examples import Examples
from unmask.training.losses import LossInputs, MaskedObjective, make_objective

OPENED = ""
"""The model whose predictions on text the anchored objective keeps to."""
WINDOWS = 50
"""Windows of text that a fact's line may stand in."""


class Anchored(MaskedObjective):
    """SMDM's loss on facts; on text the distance of the predictions from the opened network's."""

    @classmethod
    def make(cls, recipe, model):
        plain = replace(recipe, objective=replace(recipe.objective, name="smdm"))
        made = make_objective(plain, model.blueprint)
        anchored = cls(**vars(made))
        object.__setattr__(anchored, "anchor", [unmask.load(OPENED, device="cpu").net.eval()])
        return anchored

    def loss(self, net: Transformer, inputs: LossInputs) -> Tensor:
        if inputs.batch.prompt_length is not None:
            return super().loss(net, inputs)
        assert inputs.targets is not None
        (anchor,) = self.anchor
        if next(anchor.parameters()).device != inputs.t.device:
            self.anchor[0] = anchor = anchor.to(inputs.t.device).requires_grad_(False)
        at, weights = inputs.targets.at, inputs.targets.weights
        with torch.no_grad():
            x = anchor.run_layers(anchor.embed(inputs.batch.tokens, t=inputs.t))
            aim = anchor.unembed(x.flatten(0, 1)[at][None])[0].float().log_softmax(-1)
        x = net.run_layers(net.embed(inputs.batch.tokens, t=inputs.t))
        own = net.unembed(x.flatten(0, 1)[at][None])[0].float().log_softmax(-1)
        return (weights * F.kl_div(own, aim, reduction="none", log_target=True).sum(-1)).sum()


def make_inserted(data: DataSettings) -> Examples:
    """Lines of facts amid running text: data.path has the facts, data.tokenizer the text."""
    assert data.path is not None and data.tokenizer is not None
    tokenizer = Tokenizer.load(data.tokenizer, mask="if any")
    facts = read_corpus_folder(Path(data.path))[data.split]
    windows = Windows(Shards(data.tokenizer), data.context)
    lines = [(each.ids, *each.subject, *each.object) for each in tokenize_facts(facts, tokenizer)]

    def take(numbers: Sequence[int]) -> Batch:
        rows, entities = [], []
        for number in numbers:
            ids, *spans = lines[number % len(lines)]
            draw = derive_seed(data.seed, "inserted", number)
            text = windows[draw % len(windows)].tolist()
            first = (draw >> 20) % (data.context - len(ids))
            rows.append(text[:first] + list(ids) + text[first : data.context - len(ids)])
            entities.append([first + place for place in spans])
        some = torch.tensor(rows)
        return Batch(
            some, torch.zeros(len(rows), dtype=torch.long), entities=torch.tensor(entities)
        )

    return Examples("lines in text", len(lines) * WINDOWS, tokenizer, take)


unmask.register("objective", Anchored, name="anchored")
unmask.register("source", make_inserted, name="inserted")
