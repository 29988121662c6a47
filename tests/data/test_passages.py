"""One's own passages: which triples are asked for, on which side, and what is refused."""

import json
import re

import pytest
from typer.testing import CliRunner

from unmask import UserError
from unmask.cli.main import app
from unmask.data.corpus import find_corpus_problems, find_leaks
from unmask.data.passages import make_passages, make_passages_corpus, read_passages
from unmask.data.sources import read_own_tokenizer, read_source

TEMPLATES = [
    {"relation": "home", "forward": "{} lives in", "backward": "In {} lives"},
    {"relation": "trade", "forward": "The trade of {} is that of", "backward": "Who is {}? It is"},
]


def tell(i: int) -> dict:
    """A passage that states two triples, each head first."""
    name, town, trade = f"Person{i} Orrin", f"Town{i}", f"the maker{i}"
    stated = [{"head": name, "relation": relation, "tail": tail}
              for relation, tail in (("home", town), ("trade", trade))]  # fmt: skip
    return {"passage": f"{name} was born in {town}, and is {trade} there.", "triples": stated}


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "own.jsonl", *TEMPLATES, *map(tell, range(20)))


def test_both_questions_are_on_one_side(file):
    corpus = make_passages_corpus(read_passages(file))
    asked = [fact for fact in corpus["train"] if fact.phrasing > 0]
    tested = {f.fact_id for split in corpus.splits if split != "train" for f in corpus[split]}
    assert len(asked) == 2 * 32 and len(tested) == 8
    assert not tested & {fact.fact_id for fact in asked}
    assert tested <= {fact.fact_id for fact in corpus["train"]}  # its passage is trained
    assert len(corpus["p2d_same"]) == len(corpus["p2d_reverse"]) == 6
    for same, reverse in zip(corpus["p2d_same"], corpus["p2d_reverse"], strict=True):
        assert (same.subject, same.object) == (reverse.object, reverse.subject)
        assert (same.trained, reverse.trained) == ("same", "reverse")
    texts = set(corpus.training_texts())
    assert {tell(i)["passage"] for i in range(20)} <= texts
    assert list(find_corpus_problems(corpus)) == []


def test_the_folder_is_a_corpus(file, tmp_path):
    words = ["data", "make", "passages", str(file), str(tmp_path / "out"), "--vocab", "400"]
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 0 and "passages of own.jsonl (40 triples, seed 0)" in run.output
    corpus = read_source(tmp_path / "out")
    tokenizer = read_own_tokenizer(tmp_path / "out")
    assert corpus == make_passages_corpus(read_passages(file))
    assert list(find_corpus_problems(corpus, tokenizer)) == []


def test_a_small_file_has_no_validation(tmp_path):
    file = write(tmp_path / "own.jsonl", *TEMPLATES, *map(tell, range(3)))
    make_passages(file, tmp_path / "out", test_share=0.4, vocab=300)
    assert list(read_source(tmp_path / "out").splits) == ["train", "p2d_same", "p2d_reverse"]


def test_triples_that_are_not_asked_for(tmp_path):
    turned = {"passage": "Town90 is where Ann Bell lives.", "triples":
              [{"head": "Ann Bell", "relation": "home", "tail": "Town90"},
               {"head": "Town90", "relation": "home", "tail": "Ann Bell"}]}  # fmt: skip
    several = {"passage": "Bo Kern lives in Town91 and in Town92, as a cook.", "triples":
               [{"head": "Bo Kern", "relation": "home", "tail": town}
                for town in ("Town91", "Town92")]
               + [{"head": "Bo Kern", "relation": "trade", "tail": "a cook"}]}  # fmt: skip
    shared = {"passage": "Cy Dorn is a cook.", "triples":
              [{"head": "Cy Dorn", "relation": "trade", "tail": "a cook"}]}  # fmt: skip
    path = write(tmp_path / "x.jsonl", *TEMPLATES, *map(tell, range(5)), turned, several, shared)
    asked, reasons = read_passages(path).list_asked()
    assert len(asked) == 10 + 1
    assert reasons == {
        "a passage names the tail first, or not both": 1,
        "the head has several tails in this relation": 2,
        "the tail has several heads in this relation": 2,
    }


def leaks(path, seed, fact_id) -> bool:
    try:
        make_passages_corpus(read_passages(path), seed=seed)
    except UserError as error:
        return fact_id in str(error)
    return False


def test_leaks_are_refused_or_left_out(file, tmp_path):
    corpus = make_passages_corpus(read_passages(file))
    fact = corpus["p2d_reverse"][0]
    number = int(re.findall(r"\d+", fact.subject)[0])
    leak = tell(99)
    leak["passage"] += f" In {fact.subject} it is said that {fact.object} is at home."
    leaky = write(tmp_path / "leaky.jsonl", *TEMPLATES, *map(tell, range(20)), leak)
    # Another triple changes who is drawn for the tests: look for a seed that draws this one.
    seed = next(seed for seed in range(100) if leaks(leaky, seed, fact.fact_id))
    with pytest.raises(UserError, match=f"reverse questions of the tests(.|\n)*Person{number}"):
        make_passages(leaky, tmp_path / "out", seed=seed, vocab=400)
    assert not (tmp_path / "out").exists()
    make_passages(leaky, tmp_path / "out", seed=seed, vocab=400, drop_leaks=True)
    kept = read_source(tmp_path / "out")
    assert fact.fact_id not in {each.fact_id for each in kept["p2d_reverse"]}
    assert list(find_leaks(kept)) == [] and len(kept["p2d_reverse"]) > 2


def test_triples_of_the_same_two_are_on_one_side(tmp_path):
    """Else the reverse question of one would be trained under the other's relation."""
    records = [tell(i) for i in range(20)]
    for record in records:
        record["triples"] = [record["triples"][0], record["triples"][0] | {"relation": "trade"}]
    path = write(tmp_path / "x.jsonl", *TEMPLATES, *records)
    for seed in range(5):
        corpus = make_passages_corpus(read_passages(path), seed=seed)
        assert len(corpus["p2d_same"]) == 6 and list(find_corpus_problems(corpus)) == []


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"passage": "A b.", "triple": []}, "unknown field 'triple' .*did you mean 'triples'"),
        ({"passage": "A b.", "triples": "x"}, "'triples' is 'x': expected a list of objects"),
        ({"passage": "A b.", "triples": [{"head": "A", "tail": "b"}]}, "'relation' is missing"),
        (
            {"passage": "A b.", "triples": [{"head": "A", "relation": "r", "tail": "b"}]},
            "'r' has no templates",
        ),
        ({"relation": "r", "forward": "of", "backward": "{} of"}, "expected one {} for what"),
        ({"relation": "home", "forward": "{} a", "backward": "{} b"}, "has templates already"),
        ({"passage": "Nobody here.", "triples": []}, "passage 21 .* before its tail"),
    ],
)
def test_wrong_lines(file, record, said, tmp_path):
    path = write(tmp_path / "wrong.jsonl", *TEMPLATES, *map(tell, range(20)), record)
    with pytest.raises(UserError, match=said):
        make_passages_corpus(read_passages(path))


def test_too_few(tmp_path):
    path = write(tmp_path / "few.jsonl", *TEMPLATES, *map(tell, range(2)))
    with pytest.raises(UserError, match="4 pairs of entities can be asked for.*at least 2"):
        make_passages_corpus(read_passages(path))
    with pytest.raises(UserError, match="has no line with a 'passage'"):
        read_passages(write(tmp_path / "none.jsonl", *TEMPLATES))
