"""Self-speculation draws from the causal reading's own distribution: by enumeration, to the bit."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch

from tests.conftest import build, make_model, prove_alone
from unmask import UserError, sample
from unmask.sampling import speculation
from unmask.sampling.speculation import count_per_round
from unmask.sampling.token_sampler import TokenSampler

PROMPT = [1]


def make_tiny(values: int, name: str = "tiny"):
    """A network of so many values and a mask; in both readings some tokens are likelier."""
    changes = {"vocab_size": values + 1, "layers": 1, "num_logits": values, "tied": False}
    return build(name, seed=3, **changes)


class Choices:
    """Every choice of one run, in turn: first the likeliest path, then all others."""

    def __init__(self):
        self.script, self.at, self.chance = list[list[int]](), 0, 1.0

    def choose(self, chances: list[float]) -> int:
        """An outcome of these chances, none of them 0."""
        possible = [i for i, chance in enumerate(chances) if chance > 0]
        if self.at == len(self.script):
            self.script.append(possible)
        outcome = self.script[self.at][0]
        self.at += 1
        self.chance *= chances[outcome]
        return outcome

    def advance(self) -> bool:
        """Go on to the next run; False after the last."""
        while self.script and len(self.script[-1]) == 1:
            self.script.pop()
        if self.script:
            self.script[-1].pop(0)
        self.at, self.chance = 0, 1.0
        return bool(self.script)


def enumerate_runs(model, length: int, drafts: int, monkeypatch, **more) -> Iterator[tuple]:
    """Each text that the sampler can write, with the chance of the run that wrote it."""
    choices = Choices()

    def invert(logp, draws):
        p = logp.exp().flatten(0, -2)
        p = p / p.sum(-1, keepdim=True)
        rows = [choices.choose(row) for row in p.tolist()]
        return torch.tensor(rows).view(logp.shape[:-1])

    def accept(own, proposed, drafted, draws):
        ratio = (own - proposed).gather(-1, drafted[..., None])[..., 0].exp().clamp(max=1)
        flat = [choices.choose([1 - x, x]) == 1 for x in ratio.flatten().tolist()]
        return torch.tensor(flat).view(drafted.shape)

    monkeypatch.setattr(speculation, "invert", invert)
    monkeypatch.setattr(speculation, "accept", accept)
    going = True
    while going:
        settings = {"length": length, "drafts": drafts, "keep_states": False, **more}
        drawn = sample(model, [PROMPT], **settings)
        yield tuple(drawn.tokens[0].tolist()), choices.chance
        going = choices.advance()


def list_chances(model, length: int, values: int, sampler: TokenSampler) -> dict[tuple, float]:
    """p of every text, by the chain rule."""
    chances = {}
    for rest in product(range(values), repeat=length - len(PROMPT)):
        row = torch.tensor([[*PROMPT, *rest]])
        logp = sampler.sharpen(model.logits(row)[0].log_softmax(-1, dtype=torch.float64))
        terms = logp[:-1].gather(-1, row[0, 1:, None]).sum()
        chances[tuple(row[0].tolist())] = float(terms.exp())
    return chances


CASES = [(2, 4, 1, {}), (3, 3, 2, {"top_k": 2}), *prove_alone((2, 4, 2, {}), (3, 3, 2, {}))]
"""Number of tokens, length, drafts, and settings of the sampler."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_texts_are_distributed_as_the_causal_reading_s(case, monkeypatch):
    values, length, drafts, more = case
    model = make_tiny(values).reading("causal")
    own = list_chances(model, length, values, TokenSampler(1.3, **more))
    drawn = dict.fromkeys(own, 0.0)
    runs = enumerate_runs(model, length, drafts, monkeypatch, temperature=1.3, **more)
    for text, chance in runs:
        drawn[text] += chance
    assert sum(drawn.values()) == pytest.approx(1, abs=1e-12)
    distance = sum(abs(drawn[text] - own[text]) for text in own) / 2
    assert distance < 1e-6, "float32 networks; everything after them is float64"


@pytest.mark.parametrize("name", ["tiny", "tiny-blocks", "tiny-grouped"])
@pytest.mark.parametrize("drafts", [1, 5])
def test_greedy_texts_are_the_causal_reading_s(name, drafts):
    model = build(name, "shifted" if name == "tiny-grouped" else "masked").reading("causal")
    prompts, lengths = [[3, 5, 7], [11], [2, 2]], [12, 9, 4]
    usual = sample(model, prompts, length=lengths)
    drawn = sample(model, prompts, length=lengths, drafts=drafts)
    assert drawn.tokens.equal(usual.tokens) and drawn.calls == 2 * drawn.num_steps
    torch.testing.assert_close(drawn.confidence, usual.confidence, rtol=1e-4, atol=1e-6)
    assert 1 <= count_per_round(drawn) <= drafts + 1


def test_where_both_readings_say_the_same_all_drafts_stay():
    model = make_tiny(4)
    with torch.no_grad():
        for weight in (model.net.block(0).attn.out.weight, model.net.block(0).mlp.down.weight):
            weight.zero_()
        model.net.embedding.weight[:] = model.net.embedding.weight[:1].clone()
    drawn = sample(model.reading("causal"), [PROMPT], length=13, drafts=3, temperature=1.0)
    assert count_per_round(drawn) == 4 and drawn.calls == 6


def test_a_row_is_the_same_alone_and_in_a_batch():
    model = make_model().reading("causal")
    prompts = ["The caves", "The baker of Wrenmouth sings.", "The"]
    settings = {"length": 24, "drafts": 3, "temperature": 1.0, "seed": 5}
    together = sample(model, prompts, **settings)
    for i, prompt in enumerate(prompts):
        alone = sample(model, [prompt], **settings)
        assert alone.texts == together.texts[i : i + 1]
        assert alone.committed_at.equal(together.committed_at[i : i + 1])


def test_drafts_are_for_causal_readings():
    with pytest.raises(UserError, match="for the causal reading, tiny-masked:causal"):
        sample(make_model(), "The", drafts=2)
    with pytest.raises(UserError, match="needs a mask id"):
        sample(make_model(causal=True), "The", drafts=2, length=9)
    with pytest.raises(UserError, match="drafts were asked for with planted tokens, guesses"):
        sample(make_model().reading("causal"), "The", drafts=2, guesses=1, length=9)
