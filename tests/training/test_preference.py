"""DPO on differences of bounds: exact margins, and the variance that shared masks leave."""

import json
from itertools import combinations

import pytest
import torch

from tests.scripts import load_script
from tests.training.runs import CPU, make_recipe
from unmask.base.config import SettingsError
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.data.pairs import Preference, encode_pairs, read_pairs, read_preferences
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.net.config import NetConfig
from unmask.net.loading import save
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer
from unmask.noise.masked import Masked
from unmask.objectives.batch import Batch, draw_times
from unmask.training.build import prepare_job
from unmask.training.objective_settings import ObjectiveSettings
from unmask.training.preference import PreferenceObjective
from unmask.training.trainer import Trainer

MASK, PROMPT, LENGTH = 5, 1, 4
CONFIG = NetConfig(vocab_size=6, width=16, layers=1, heads=2, mlp_width=32, context=LENGTH)
CHOSEN, REJECTED = (1, 2, 3, 4), (1, 4, 0, 2)


@pytest.fixture(scope="module")
def nets() -> tuple[Transformer, Transformer]:
    """A network, and a start that is near it."""
    net, start = Transformer(CONFIG, 0).double(), Transformer(CONFIG, 0).double()
    with torch.no_grad():
        for own, other in zip(net.parameters(), start.parameters(), strict=True):
            noise = torch.randn(own.shape, generator=torch.Generator().manual_seed(own.numel()))
            other.add_(0.3 * noise.double())
            own.copy_(other + 0.01 * noise.flip(0).double())
    return net, start


def make_objective(start: Transformer, masks: int) -> PreferenceObjective:
    settings = ObjectiveSettings(name="preference", masks=masks, filling=False)
    return PreferenceObjective(settings, Masked(MASK, MASK), start)


def make_pairs(number: int) -> Batch:
    sides = (torch.tensor([row]).expand(number, -1) for row in (CHOSEN, REJECTED))
    prompt = torch.full((number,), PROMPT)
    chosen, rejected = (Batch(side, prompt) for side in sides)
    return Batch(chosen.tokens, prompt, rejected=rejected)


def list_terms(net: Transformer, text: tuple[int, ...]) -> list[torch.Tensor]:
    """By the number of masks, the estimate of the bound under every set of them."""
    rows, own = torch.tensor([text]), LENGTH - PROMPT
    terms = []
    for number in range(1, own + 1):
        values = []
        for places in combinations(range(PROMPT, LENGTH), number):
            noised = rows.clone()
            noised[0, list(places)] = MASK
            logits = net(noised)[0].detach()
            logits[:, MASK] = -torch.inf
            logp = logits.log_softmax(-1)
            values.append(own / number * sum(logp[at, text[at]] for at in places))
        terms.append(torch.stack(values))
    return terms


def find_moments(risen: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean over sets, and the variance, by the number of masks."""
    return (
        torch.stack([x.mean() for x in risen]),
        torch.stack([x.var(correction=0) for x in risen]),
    )


def draw_margins(net, start, masks: int, number: int = 3000) -> torch.Tensor:
    objective, streams = make_objective(start, masks), RowStreams.make(0, number)
    times = RowStreams.make(1, 1)
    t = draw_times(times, number, antithetic=False)
    inputs = objective.prepare(make_pairs(number), t, streams)
    return objective.find_margins(net, inputs).detach()


@pytest.mark.parametrize("masks", (1, 3))
def test_margins_have_the_exact_mean_and_variance(nets, masks):
    """Masks shared with the start, times shared by both responses and spread over the masks.

    With one mask the variance is that of the number of masks and that of their places; three masks
    of a response of three tokens have one number each, and only their places vary.
    """
    net, start = nets
    sides = []
    for text in (CHOSEN, REJECTED):
        own, kept = list_terms(net, text), list_terms(start, text)
        sides.append(find_moments([x - y for x, y in zip(own, kept, strict=True)]))
    (up, spread_up), (down, spread_down) = sides
    places = spread_up + spread_down
    gap = up - down
    variance = places.mean() / masks + (gap.var(correction=0) if masks == 1 else 0.0)
    drawn = draw_margins(net, start, masks)
    assert float(drawn.mean()) == pytest.approx(
        float(gap.mean()), abs=5 * float(drawn.std()) / len(drawn) ** 0.5
    )
    assert float(drawn.var()) == pytest.approx(float(variance), rel=0.1)


def test_shared_masks_leave_out_twice_the_covariance(nets):
    """Var[B(y) - B_start(y)] with the start's own masks, minus with shared ones, is 2 Cov."""
    net, start = nets
    own, kept = (torch.cat(list_terms(x, CHOSEN)) for x in nets)
    sizes = [len(x) for x in list_terms(net, CHOSEN)]
    chance = torch.cat([torch.full((n,), 1 / len(sizes) / n) for n in sizes]).double()

    def cov(x: torch.Tensor, y: torch.Tensor) -> float:
        return float(chance @ (x * y) - (chance @ x) * (chance @ y))

    shared = cov(own - kept, own - kept)
    apart = cov(own, own) + cov(kept, kept)  # independent masks
    assert apart - shared == pytest.approx(2 * cov(own, kept))
    assert 2 * cov(own, kept) > 0.9 * apart  # nearly all of it, near the start
    # What the objective draws has the shared one: its rows are the same for both networks.
    rejected = sum(find_moments(
        [x - y for x, y in zip(*(list_terms(z, REJECTED) for z in nets), strict=True)]
    )[1]) / 3  # fmt: skip
    assert float(draw_margins(net, start, 1).var()) < shared + 3 * float(rejected) + 0.1 * apart


def test_at_the_start_the_loss_is_log_two_and_its_gradient_half_of_betas(nets):
    _, start = nets
    net = Transformer(CONFIG, 0).double()
    net.load_state_dict(start.state_dict())
    objective = make_objective(start, 2)
    t = torch.tensor([0.2, 0.7], dtype=torch.float64)
    inputs = objective.prepare(make_pairs(2), t, RowStreams.make(3, 2))
    loss = objective.loss(net, inputs)
    assert float(loss.detach()) == pytest.approx(0.6931471805599453)
    loss.backward()
    own = [x.grad.clone() for x in net.parameters()]
    net.zero_grad()
    (-0.5 * objective.settings.beta * objective.find_margins(net, inputs).mean()).backward()
    for grad, weight in zip(own, net.parameters(), strict=True):
        assert torch.allclose(grad, weight.grad, atol=1e-12)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preferences")
    lines = [
        {"prompt": f"The caves {i}", "chosen": "are deep.", "rejected": "sing."} for i in range(8)
    ]
    (folder / "both.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    texts = [f"{x['prompt']} {x['chosen']} {x['rejected']}" for x in lines]
    tokenizer = Tokenizer.train(texts, 300)
    config = NetConfig(
        vocab_size=tokenizer.vocab_size, width=32, layers=1, heads=2, mlp_width=64, context=24
    )
    blueprint = Blueprint(config, "masked", tokenizer.mask_id)
    save(Model("x", Transformer(config), blueprint, tokenizer), folder / "model")
    return folder


def test_preferences_are_learned(place):
    recipe = make_recipe(
        data={"source": "preferences", "path": str(place / "both.jsonl"), "context": 24},
        network={"preset": "tiny", "changes": {}}, start={"model": str(place / "model")},
        objective={"name": "preference", "masks": 4, "filling": False}, budget={"steps": 20},
    )  # fmt: skip
    trainer = Trainer(prepare_job(recipe, CPU))
    for _ in range(20):
        trainer.take_step()
    batch = trainer.job.examples.parts[""].take(range(8))
    objective = trainer.job.objective
    t = draw_times(RowStreams.make(1, 1), 8)
    margins = objective.find_margins(
        trainer.net, objective.prepare(batch, t, RowStreams.make(9, 8))
    )
    assert (margins > 1.0).all(), margins


def test_files_of_preferences(place, tmp_path):
    (first, *_) = read_preferences(place / "both.jsonl")
    assert isinstance(first, Preference)
    assert first.chosen.response == " are deep." and first.rejected.response == " sing."
    assert next(read_pairs(place / "both.jsonl")) == first.chosen  # as pairs, the chosen ones
    (tmp_path / "half.jsonl").write_text('{"prompt": "A", "chosen": "b"}\n')
    with pytest.raises(UserError, match="rejected"):
        list(read_preferences(tmp_path / "half.jsonl"))
    # Both responses stay together: where one is too long, neither is a row.
    tokenizer = Tokenizer.train(["a b c d e f"], 300)
    pairs = [x for both in read_preferences(place / "both.jsonl") for x in
             (both.chosen, both.rejected)]  # fmt: skip
    short, long = (len(tokenizer.encode(x.prompt + x.response).ids) for x in pairs[1::-1])
    assert short < long
    with pytest.raises(UserError, match="none of 16 pairs has at most"):
        encode_pairs(pairs, tokenizer, short, together=2)


def test_preferences_by_a_rule():
    """A fact's own completion over the next person's, asked in the same direction and phrasing."""
    facts = make_reversal_corpus(3)["train"]
    made = list(load_script("paper/preferences.py").list_preferences(facts))
    assert 0 < len(made) <= len(facts)
    answers = {fact.prompt: fact.completion for fact in facts}
    for line in made:
        assert line["chosen"] == answers[line["prompt"]] and line["rejected"] != line["chosen"]


def test_what_does_not_go_together_is_refused():
    for changes, sentence in (
        ({"objective": {"name": "preference"}}, "preference need each other"),
        ({"data": {"source": "preferences"}}, "preference need each other"),
        (
            {"data": {"source": "preferences"}, "objective": {"name": "preference"}},
            "'objective.name' preference starts from a model",
        ),
    ):
        with pytest.raises(SettingsError, match=sentence):
            make_recipe(**changes)
