"""Training from scratch: diffusion recalls both ways what its causal twin recalls one way."""

import pytest
import torch

from unmask.training.build import prepare_job
from unmask.training.loop import run_loop
from unmask.training.parallel import World
from unmask.training.recipes_io import read_recipe
from unmask.training.trainer import Trainer
from unmask.training.validation import recall


@pytest.mark.prove
def test_pairs_of_unique_tokens_are_recalled_both_ways_or_one_way(tmp_path):
    """The shipped recipes reach the published contrast on pairs that were only stated."""
    shares = {}
    for name in ("retrieval-mdm", "retrieval-ar"):
        trainer = Trainer(prepare_job(read_recipe(name), World(torch.device("cpu"))))
        run_loop(trainer, tmp_path / name)
        corpus, trained = trainer.job.examples.corpus, trainer.job.model
        shares[name] = [recall(trained, corpus[test], 8, 10) for test in corpus.tests]
    print(shares)
    same, reverse = shares["retrieval-mdm"]
    assert same > 0.9 and reverse > 0.9
    same, reverse = shares["retrieval-ar"]
    assert same > 0.9 and reverse == 0
