"""The corpus of sealed people, and rows that show another line's tokens."""

import pytest
import torch
from typer.testing import CliRunner

from unmask import UserError
from unmask.base.config import SettingsError
from unmask.base.streams import RowStreams
from unmask.cli.main import app
from unmask.data.corpus import find_corpus_problems, read_corpus, save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.experiments.planted.corpus import (
    NEUTRAL,
    list_residents,
    make_residents,
    make_sealed_corpus,
)
from unmask.noise.masked import Masked
from unmask.objectives.batch import Batch
from unmask.objectives.masked import contaminate, get_weighting, noise_batch
from unmask.training.examples import read_examples
from unmask.training.recipes_io import read_recipe


def test_the_corpus_is_sound_and_says_who_lives_where(tmp_path):
    corpus = make_sealed_corpus(5, seed=2)
    tokenizer = Tokenizer.train(corpus.training_texts(), 4096)
    assert not list(find_corpus_problems(corpus, tokenizer))
    assert list_residents(corpus) == make_residents(5, seed=2)
    save_corpus(corpus, tmp_path / "sealed", tokenizer)
    assert read_corpus(tmp_path / "sealed") == corpus
    words = set(" ".join(corpus.training_texts()).replace(".", "").split())
    assert set(NEUTRAL.split()) <= words, "neutral tokens are known from training"
    with pytest.raises(UserError, match="no sealed and open people"):
        list_residents(make_reversal_corpus(3))


def test_the_command_makes_it(tmp_path):
    words = ["data", "make", "sealed", str(tmp_path / "made"), "--people", "4"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "recalled_valid" in done.output
    assert list_residents(read_corpus(tmp_path / "made")) == make_residents(4)


@pytest.fixture(scope="module")
def rows() -> tuple[Batch, int]:
    recipe = read_recipe("sealed-mdm", ["data.facts=4", "data.context=32"])
    examples = read_examples(recipe.data, has_foreign=True)
    return examples.take(range(examples.num_rows)), examples.tokenizer.vocab_size


def noise(batch: Batch, vocab: int, streams: RowStreams):
    process = Masked(vocab, vocab)
    t = torch.full((len(batch.tokens),), 0.5).double()
    return noise_batch(process, batch, t, streams, get_weighting("smdm_sft"), response_only=True)


def test_contaminated_rows_show_other_answers_and_predict_their_own(rows):
    batch, vocab = rows
    streams = RowStreams.make(3, len(batch.tokens))
    plain = noise(batch, vocab, streams)
    assert contaminate(plain, batch, 0.0, streams) is plain
    dirty = contaminate(plain, batch, 1.0, streams)
    moved = dirty.xt != plain.xt
    assert moved.any(-1).float().mean() > 0.5
    assert not (moved & (batch.is_prompt() | plain.hidden)).any()
    assert torch.equal(dirty.hidden, plain.hidden) and torch.equal(dirty.weights, plain.weights)
    is_one = (batch.foreign == dirty.xt[:, None]) | ~moved[:, None]
    assert is_one.all(-1).any(-1).all(), "the tokens of a row are those of one other line"
    half = contaminate(plain, batch, 0.5, streams)
    hit = (half.xt != plain.xt).any(-1)
    assert 0 < hit.sum() < moved.any(-1).sum()
    assert torch.equal(half.xt[hit], dirty.xt[hit])


def test_a_row_is_contaminated_as_if_it_were_alone(rows):
    batch, vocab = rows
    streams = RowStreams.make(3, len(batch.tokens))
    whole = contaminate(noise(batch, vocab, streams), batch, 1.0, streams)
    one, own = batch.select([7]), RowStreams.make(3, [7])
    assert torch.equal(contaminate(noise(one, vocab, own), one, 1.0, own).xt, whole.xt[7:8])
    short = batch.truncate(20)
    assert short.foreign.shape == (len(batch.tokens), 8, 20)


def test_another_answer_begins_where_the_rows_own_does(rows):
    batch, _ = rows
    starts = batch.tokens.gather(1, batch.prompt_length[:, None])
    first = batch.foreign.gather(2, batch.prompt_length[:, None, None].expand(-1, 8, 1))
    assert set(first.flatten().tolist()) <= set(starts.flatten().tolist())


def test_contamination_is_for_facts_under_masked_noise():
    for name, changes in (("sealed-ar", []), ("text-mdm", ["data.path=x"])):
        with pytest.raises(SettingsError, match=r"objective\.contaminated' is for facts"):
            read_recipe(name, [*changes, "objective.contaminated=0.5"])
    bare = Batch(torch.zeros(2, 4, dtype=torch.long))
    noised = noise(bare, 5, RowStreams.make(0, 2))
    with pytest.raises(UserError, match="contaminated is for facts"):
        contaminate(noised, bare, 0.5, RowStreams.make(0, 2))
