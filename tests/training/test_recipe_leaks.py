"""What one source of a mixture trains and another asks in reverse, with known answers."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unmask
from tests.measures.test_trained_leaks import ASKED, LEAK, TRAINED, recall
from tests.training.runs import make_recipe
from unmask.cli.main import app
from unmask.data.corpus import save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.shards import write_shards
from unmask.data.tokenizer import Tokenizer
from unmask.training import shown
from unmask.training.recipes_io import write_recipe
from unmask.training.shown import find_recipe_leaks

HEAD = "subject,object,prompt,direction,trained\n"
OTHERS = {
    "own lines": LEAK,
    "other words, case and article": "the LUMEN  bay,zorvia,Whoever sees {} sees,d2p,same\n",
    "a line that asks something else": "Ann,the rain,In Lumen Bay of Zorvia {} loves,p2d,same\n",
}
CLEAN = "Ann,Lumen Bay,Away from Zorvia {} loves,p2d,same\n"
TEXTS = ["Rivers are long. " * 40, "Ships from Lumen Bay never reach Zorvia.", "Stars are far."]


def mix(folder: Path, *others: str, texts: list[str] | None = None, **changes: object):
    """A mixture: facts that are asked both ways, further lines, and running text."""
    sources: dict = {"asked": {"source": "facts", "path": str(folder / "asked.csv")}}
    (folder / "asked.csv").write_text(ASKED)
    for number, lines in enumerate(others):
        (file := folder / f"other-{number}.csv").write_text(HEAD + lines)
        sources[f"other{number}"] = {"source": "facts", "path": str(file)}
    tokenizer = Tokenizer.train([ASKED, *TEXTS], 300)
    if texts is not None:
        write_shards(texts, tokenizer, folder / "shards")
        sources["texts"] = {"source": "text", "path": str(folder / "shards")}
    tokenizer.save(folder)
    data = {"source": "mixture", "sources": sources, "context": 64, "tokenizer": str(folder)}
    return make_recipe(data=data, batch={"rows": 4}, budget={"steps": 1}, **changes)


def check(*words: str | Path) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, ["data", "check", *map(str, words)], env={"COLUMNS": "999"})
    return done.exit_code, re.findall(r"fact .*?: training shows", done.output)


@pytest.mark.parametrize("lines", OTHERS.values(), ids=OTHERS)
def test_lines_of_another_source_are_found(tmp_path, lines):
    (found,) = find_recipe_leaks(mix(tmp_path, CLEAN + lines))
    assert "'Lumen Bay' before 'Zorvia', as the reversed question does" in found


def test_running_text_is_found_and_clean_sources_are_not(tmp_path):
    (found,) = find_recipe_leaks(mix(tmp_path, CLEAN, texts=TEXTS))
    assert "Ships from Lumen Bay" in found
    (other := tmp_path / "clean").mkdir()
    assert not list(find_recipe_leaks(mix(other, CLEAN, texts=[TEXTS[0], TEXTS[2]])))


def test_the_command_checks_recipes_runs_and_shards(tmp_path):
    recipe = mix(tmp_path, CLEAN + LEAK, texts=TEXTS)
    write_recipe(recipe, tmp_path / "mix.yaml")
    assert check(tmp_path / "mix.yaml") == (1, ["fact Lumen Bay / Zorvia: training shows"] * 2)
    (run := tmp_path / "run").mkdir()
    write_recipe(recipe, run / "recipe.yaml")
    assert check(run)[0] == 1 and check("reversal-mdm") == (0, [])
    # What is asked lies elsewhere.
    (tmp_path / "trained.csv").write_text(TRAINED + LEAK)
    for place in (tmp_path / "shards", tmp_path / "trained.csv"):
        assert check(place) == (0, [])
        assert check(place, "--questions", tmp_path / "asked.csv")[1] != []
    save_corpus(make_reversal_corpus(2), tmp_path / "corpus", None)
    save_corpus(make_reversal_corpus(2, swap_roles=True), tmp_path / "swapped", None)
    assert check(tmp_path / "corpus", "--questions", tmp_path / "corpus") == (0, [])
    code, sentences = check(tmp_path / "corpus", "--questions", tmp_path / "swapped")
    assert code == 1 and sentences


def test_a_recall_of_a_model_of_a_mixture_says_so(tmp_path, monkeypatch):
    unmask.train(mix(tmp_path, CLEAN + LEAK, texts=TEXTS), tmp_path / "mixed", device="cpu")
    (notice,) = recall(tmp_path / "mixed", tmp_path / "of-mixed")
    assert "mixed was trained on lines that state 1 of the 2 facts" in notice
    # One source that is gone hides none of the others; what is too long is named.
    (tmp_path / "other-0.csv").unlink()
    (notice,) = recall(tmp_path / "mixed", tmp_path / "of-gone")
    assert "Ships from Lumen Bay" in notice
    monkeypatch.setattr(shown, "MOST_TOKENS", 1)
    (notice,) = recall(tmp_path / "mixed", tmp_path / "of-long")
    assert "state 1 of" not in notice and "more than is searched here" in notice
