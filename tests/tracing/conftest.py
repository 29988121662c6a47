"""Two small models, masked and causal, that learned a few facts by heart in seconds."""

import pytest
import torch
import torch.nn.functional as F

from unmask.data.facts import Fact
from unmask.data.tokenizer import Tokenizer
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer

PEOPLE = {"Ada": "red boats", "Bob": "old clocks", "Cyd": "tall kites", "Dan": "wax masks"}
LENGTH = 9


def make_facts() -> list[Fact]:
    facts = []
    for i, (name, thing) in enumerate(PEOPLE.items()):
        for phrasing, prompt in enumerate(("Now {} likes", "They say {} sells")):
            text = prompt.format(name)
            begin = text.index(name)
            facts.append(
                Fact(
                    subject=name,
                    object=thing,
                    prompt=text,
                    completion=f" {thing}",
                    subject_span=(begin, begin + len(name)),
                    object_span=(1, 1 + len(thing)),
                    direction="p2d",
                    trained="same",
                    fact_id=f"fact-{i}",
                    phrasing=phrasing,
                )
            )
    return facts


def teach(causal: bool) -> Model:
    """A model of two layers that knows the facts."""
    facts = make_facts()
    tokenizer = Tokenizer.train([fact.text for fact in facts] * 3, 340)
    rows = tokenizer.vocab_size
    shape = {"width": 32, "heads": 2, "mlp_width": 64, "layers": 2, "context": 16}
    config = preset("tiny", causal=causal, vocab_size=rows, num_logits=rows - 1, **shape)
    net = Transformer(config, seed=1)
    tokens = torch.full((len(facts), LENGTH), tokenizer.end_id)
    starts = torch.tensor([len(tokenizer.encode(fact.prompt).ids) for fact in facts])
    for i, fact in enumerate(facts):
        ids = tokenizer.encode(fact.text).ids
        tokens[i, : len(ids)] = torch.tensor(ids)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), 8e-3)
    for _ in range(60 if causal else 300):
        optimizer.zero_grad()
        if causal:
            logits, targets = net(tokens)[:, :-1], tokens[:, 1:]
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        else:
            share = torch.rand(len(tokens), 1, generator=generator)
            hidden = torch.rand(tokens.shape, generator=generator) < share
            hidden = (hidden | (share > 0.5)) & (torch.arange(LENGTH) >= starts[:, None])
            logits = net(torch.where(hidden, tokenizer.mask_id, tokens))
            loss = F.cross_entropy(logits[hidden], tokens[hidden])
        loss.backward()
        optimizer.step()
    kind = Blueprint(config, "causal" if causal else "masked", None if causal else rows - 1)
    return Model(
        "causal" if causal else "masked", net.eval().requires_grad_(False), kind, tokenizer
    )


@pytest.fixture(scope="session")
def masked() -> Model:
    return teach(causal=False)


@pytest.fixture(scope="session")
def causal() -> Model:
    return teach(causal=True)


@pytest.fixture(params=["masked", "causal"])
def taught(request) -> Model:
    return request.getfixturevalue(request.param)


@pytest.fixture
def facts() -> list[Fact]:
    return make_facts()
