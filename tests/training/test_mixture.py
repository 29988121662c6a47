"""Rows of several sources: shares, lengths and losses of each, to the bit after a kill."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.commands import run as ask
from tests.training.runs import CPU, make_recipe, make_trainer, run, take_steps
from tests.training.test_resume import same_tensors
from unmask.base.config import SettingsError
from unmask.base.errors import UserError
from unmask.data.corpus import save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.shards import write_shards
from unmask.data.tokenizer import Tokenizer
from unmask.net.loading import save
from unmask.training.build import prepare_job
from unmask.training.checkpoints import list_checkpoints
from unmask.training.data_settings import DataSettings, share_rows
from unmask.training.journal import read_journal
from unmask.training.mixture import read_mixture
from unmask.training.recipes_io import write_recipe
from unmask.training.trainer import Trainer


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Settings of three sources that share a tokenizer: facts, text and pairs."""
    folder = tmp_path_factory.mktemp("sources")
    corpus = make_reversal_corpus(2)
    tokenizer = Tokenizer.train(corpus.training_texts(), 600)
    save_corpus(corpus, folder / "corpus", tokenizer)
    write_shards(
        ["The caves of Orsel are deep. The baker sings. " * 40], tokenizer, folder / "text"
    )
    pairs = [{"prompt": f"Who is {n}?", "response": "The baker of Orsel."} for n in range(9)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return {
        "facts": {"source": "facts", "path": str(folder / "corpus"), "context": 80},
        "text": {"source": "text", "path": str(folder / "text"), "context": 24},
        "pairs": {"source": "pairs", "path": str(folder / "pairs.jsonl"), "context": 40},
    }


def mix(sources, **shares):
    chosen = {name: sources[name] | {"share": share} for name, share in shares.items()}
    return {"data": {"source": "mixture", "sources": chosen}, "objective": {"response_only": True}}


def test_a_mixture_of_one_source_is_that_source_to_the_bit(sources, tmp_path):
    alone = Trainer(prepare_job(make_recipe(data=sources["facts"]), CPU))
    mixed = mix(sources, facts=3) | {"objective": {}}
    mixed = Trainer(prepare_job(make_recipe(**mixed), CPU))
    assert take_steps(mixed, 3) == take_steps(alone, 3)
    assert same_tensors(mixed.tensors(), alone.tensors())


def test_every_step_has_the_shares_and_every_record_the_losses(sources, tmp_path):
    trainer, _ = run(tmp_path, **mix(sources, facts=2, text=1, pairs=1), budget={"steps": 4})
    assert trainer.rows == {"facts": 4, "text": 2, "pairs": 2}
    records = list(read_journal(tmp_path))
    assert [record["rows/text"] for record in records] == [2, 4, 6, 8]
    for record in records:
        losses = [record[f"loss/{name}"] for name in ("facts", "text", "pairs")]
        assert min(losses) <= record["loss"] <= max(losses)


def test_rows_follow_from_seed_and_step_and_keep_their_source_s_length(sources):
    recipe = make_recipe(**mix(sources, facts=1, text=1, pairs=2))
    data = read_mixture(recipe.data)
    shapes = {name: part.take([0]).tokens.shape[1] for name, part in data.parts.items()}
    assert shapes == {"facts": 80, "text": 24, "pairs": 40}
    assert data.parts["pairs"].take([0, 8]).prompt_length.min() > 1
    assert data.facts_from == "facts" and data.num_rows == sum(
        part.num_rows for part in data.parts.values()
    )


def test_shares_are_as_near_as_whole_rows_are():
    parts = {name: DataSettings(source="x", share=share) for name, share in [("a", 1), ("b", 2)]}
    assert share_rows(8, parts) == {"a": 3, "b": 5}
    for rows in range(2, 40):
        counts = share_rows(rows, parts)
        assert sum(counts.values()) == rows and abs(counts["a"] - rows / 3) < 1


def test_every_step_of_a_mixture_is_resumed_to_the_bit(sources, tmp_path):
    changes = mix(sources, facts=2, text=1, pairs=1) | {"budget": {"steps": 5}}
    never, _ = run(tmp_path / "never", **changes, cadence={"checkpoint": 2})
    for path in list_checkpoints(tmp_path / "never" / "checkpoints")[:-1]:
        folder = tmp_path / path.name
        (folder / "checkpoints").mkdir(parents=True)
        path.rename(folder / "checkpoints" / path.name)
        again, _ = run(folder, **changes)
        assert same_tensors(again.tensors(), never.tensors())


@pytest.mark.prove
def test_a_killed_mixture_goes_on_to_the_same_model(sources, tmp_path):
    """The process is killed while it trains; what --resume leaves is the undisturbed model."""
    changes = mix(sources, facts=2, text=1, pairs=1) | {"cadence": {"checkpoint": 2}}
    write_recipe(make_recipe(**changes), tmp_path / "recipe.yaml")
    code = (
        "import os, signal, sys, unmask\n"
        "from unmask.training.trainer import Trainer\n"
        "take = Trainer.take_step\n"
        "def take_or_die(self):\n"
        "    if self.progress.step == 7: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return take(self)\n"
        "Trainer.take_step = take_or_die\n"
        "unmask.train(sys.argv[1], sys.argv[2], device='cpu')\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "recipe.yaml"), str(tmp_path / "killed")]
    killed = subprocess.run(words, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "killed/model").exists()
    again = ask("train", "--resume", tmp_path / "killed", "--device", "cpu")
    assert again.returncode == 0, again.stderr
    never = ask("train", tmp_path / "recipe.yaml", "--out", tmp_path / "never", "--device", "cpu")
    assert never.returncode == 0, never.stderr
    models = [tmp_path / name / "model/model.safetensors" for name in ("killed", "never")]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"source": "mixture"}, "is 'mixture' with 0 of 'data.sources'"),
        ({"source": "text", "sources": {"a": {"source": "toy"}}}, "and nowhere else"),
        ({"source": "mixture", "sources": {"a b": {}}}, "expected a name and its settings"),
        ({"source": "mixture", "sources": {"a": {"source": "mixture"}}}, "a.source' is a mixture"),
        ({"source": "mixture", "sources": {"a": {"source": "toy", "share": 0}}}, "more than 0"),
        (
            {
                "source": "mixture",
                "sources": {
                    "a": {"source": "toy", "share": 1000},
                    "b": {"source": "toy", "share": 1},
                },
            },
            "comes to none of the 8 rows of a step",
        ),
        ({"source": "mixture", "sources": {"a": {"source": "toy", "pth": 1}}}, "unknown key"),
        ({"source": "pairs", "path": "x.jsonl"}, "set objective.response_only=true"),
    ],
)
def test_mistakes_of_mixtures_are_sentences(data, said):
    with pytest.raises(SettingsError, match=said):
        make_recipe(data=data)


def test_sources_with_two_tokenizers_are_refused(sources, tmp_path):
    other = Tokenizer.train(["The caves of Orsel are deep."], 280)
    write_shards(["The caves of Orsel are deep. " * 40], other, tmp_path / "text")
    own = sources["text"] | {"path": str(tmp_path / "text")}
    with pytest.raises(UserError, match="tokenizer"):
        prepare_job(make_recipe(**mix(sources | {"text": own}, facts=1, text=1)), CPU)


def test_anchored_text_holds_the_start_in_place(sources, tmp_path):
    """Text costs nothing at the start, and what facts move is drawn back; facts are as before."""
    changes = mix(sources, facts=1, text=1) | {"objective": {}}
    save(prepare_job(make_recipe(**changes), CPU).model, tmp_path / "start")
    changes |= {"network": {"changes": {}}, "start": {"model": str(tmp_path / "start")}}
    moved, records = {}, {}
    for anchored in (True, False):
        trainer, _ = run(
            tmp_path / f"{anchored}", **changes | {"objective": {"anchored": anchored}}
        )
        records[anchored] = list(read_journal(tmp_path / f"{anchored}"))
        judge = make_trainer(**changes | {"objective": {"anchored": True}})
        judge.net.load_state_dict(trainer.net.state_dict())
        judge.take_step()
        moved[anchored] = judge.read_losses()[1]["text"]
    assert records[True][0]["loss/text"] == 0 < moved[True] < 0.8 * moved[False]
    assert records[True][0]["loss/facts"] == records[False][0]["loss/facts"]


def test_anchored_causal_text_and_what_cannot_be_anchored(sources, tmp_path):
    data = {"data": sources["text"], "kind": "causal"}
    save(prepare_job(make_recipe(**data), CPU).model, tmp_path / "start")
    data |= {"network": {"changes": {}}, "start": {"model": str(tmp_path / "start")}}
    assert take_steps(make_trainer(**data, objective={"anchored": True}), 1) == [0.0]
    with pytest.raises(UserError, match="anchored is for a masked cross-entropy and for next_tok"):
        make_trainer(**data, objective={"anchored": True, "name": "fixed_orders", "orders": 2})
    with pytest.raises(SettingsError, match="'objective.anchored' is for a model to start from"):
        make_recipe(objective={"anchored": True})
