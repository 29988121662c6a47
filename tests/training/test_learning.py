"""Two minutes of two cores: the causal twin learns one way, diffusion begins to learn both.

Networks of 0.9M parameters on a small reversal corpus, trained from scratch.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from unmask.base.config import build
from unmask.data.corpus import Corpus, save_corpus
from unmask.data.facts import Fact, tokenize_fact
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.evaluation.answers import Asked, score_answers
from unmask.net.model import Model
from unmask.training.build import prepare_job
from unmask.training.journal import read_journal
from unmask.training.loop import run_loop
from unmask.training.parallel import World
from unmask.training.recipe import Recipe
from unmask.training.recipes_io import read_recipe
from unmask.training.trainer import Trainer
from unmask.training.validation import recall

SETTINGS: dict = {
    "network": {
        "preset": "tiny",
        "changes": {"layers": 3, "width": 112, "heads": 4, "mlp_width": 288},
        "scale": 3.0,
    },
    "optimiser": {"rate": 3e-3, "betas": [0.9, 0.99], "decay": 0.01},
    "schedule": {"warmup": 20},
    "budget": {"minutes": 2},
}
VALID = ("d2p_same_valid", "p2d_same_valid", "d2p_reverse_valid", "p2d_reverse_valid")


@pytest.fixture(autouse=True)
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def learn(folder, context: int, **changes: object) -> tuple[Model, Corpus]:
    """A model trained for two minutes, and its corpus: few facts, one ending in each frame."""
    corpus = make_reversal_corpus(4, endings=1)
    save_corpus(corpus, folder / "corpus", None)
    data = {"source": "facts", "path": str(folder / "corpus"), "context": context}
    recipe = build(Recipe, SETTINGS | {"data": data} | changes, "proof")
    trainer = Trainer(prepare_job(recipe, World(torch.device("cpu"))))
    assert 0.5e6 < sum(weight.numel() for weight in trainer.net.parameters()) < 1e6
    run_loop(trainer, folder / "run")
    trainer.net.eval()
    return trainer.job.model, corpus


@pytest.mark.prove
def test_the_causal_twin_recalls_one_way(tmp_path):
    settings = {"objective": {"filling": False}, "batch": {"rows": 32}}
    model, corpus = learn(tmp_path, 56, kind="causal", **settings)
    asked = {name: corpus[name] for name in VALID if "reverse" in name}
    for way in ("d2p", "p2d"):  # training lines, up to the answer
        lines = [fact for fact in corpus["train"] if fact.direction == way][::7]
        asked[way] = [replace(f, completion=f.completion[: f.object_span[1]]) for f in lines]
    shares = {name: recall(model, facts, 1, 56) for name, facts in asked.items()}
    print(shares)
    assert min(shares["d2p"], shares["p2d"]) > 0.9
    assert shares["d2p_reverse_valid"] == shares["p2d_reverse_valid"] == 0


@pytest.mark.prove
def test_the_diffusion_network_begins_to_learn_both_ways(tmp_path):
    model, corpus = learn(tmp_path, 48, kind="masked", batch={"rows": 16})
    losses = [record["loss"] for record in read_journal(tmp_path / "run") if "loss" in record]
    assert sum(losses[-3:]) / 3 < 0.6 * losses[0]
    ranks = {name: measure_ranks(model, corpus[name], 48) for name in VALID}
    print(ranks)
    for name, (true, shuffled) in ranks.items():
        assert true < shuffled, name
    for way in ("same", "reverse"):
        true, shuffled = (
            sum(ranks[f"{group}_{way}_valid"][i] for group in ("d2p", "p2d")) for i in range(2)
        )
        assert true < 0.75 * shuffled, way


def measure_ranks(model: Model, facts: list[Fact], length: int) -> tuple[float, float]:
    """Mean ranks of the true answers and of all shuffled ones, by how much a prompt helps them.

    An answer's log-probability behind a prompt, all of it masked, minus its mean over the prompts
    of the other facts: likely words alone do not win.
    """
    true, shuffled = [], []
    for phrasing in sorted({fact.phrasing for fact in facts}):
        asked = [fact for fact in facts if fact.phrasing == phrasing]
        tokens = [tokenize_fact(fact, model.tokenizer) for fact in asked]
        answers = [each.ids[each.prompt_length :] for each in tokens]
        prompts = [each.ids[: each.prompt_length] for each in tokens]
        scored = score_answers(model, [Asked(p, answers, answers) for p in prompts], length)
        logp = torch.tensor([[one.logp_mean_field for one in row] for row in scored])
        gain = logp - logp.mean(0)
        rank = (gain[:, None, :] > gain[:, :, None]).sum(-1).double()
        own = torch.eye(len(asked), dtype=torch.bool)
        true += rank[own].tolist()
        shuffled += rank[~own].tolist()
    return sum(true) / len(true), sum(shuffled) / len(shuffled)


@pytest.mark.prove
def test_pairs_of_unique_tokens_are_recalled_both_ways_or_one_way(tmp_path):
    """The shipped recipes reach the published contrast on pairs that were only stated."""
    shares = {}
    for name in ("retrieval-mdm", "retrieval-ar"):
        trainer = Trainer(prepare_job(read_recipe(name), World(torch.device("cpu"))))
        run_loop(trainer, tmp_path / name)
        corpus, trained = trainer.job.examples.corpus, trainer.job.model
        assert corpus is not None
        shares[name] = [recall(trained, corpus[test], 8, 10) for test in corpus.tests]
    print(shares)
    same, reverse = shares["retrieval-mdm"]
    assert same > 0.9 and reverse > 0.9
    same, reverse = shares["retrieval-ar"]
    assert same > 0.9 and reverse == 0
