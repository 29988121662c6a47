"""interchange: rows are those of the call, layers are cross-fitted, controls stand beside."""

from dataclasses import replace

import pytest

from tests.measures.asking import show
from tests.representation.facts import make_fact, make_model
from unmask import UserError
from unmask.base.config import SettingsError
from unmask.blocks.blocks import Figure, Finding, Notice
from unmask.blocks.tidy import distinct, select
from unmask.data.city_lines import make_city_lines
from unmask.data.corpus import Corpus, save_corpus
from unmask.data.facts import write_facts
from unmask.data.reversal_files import read_reversal_files
from unmask.data.stranger_files import make_strangers
from unmask.measures.interchange import COMPARISON, LOW, MEASURE, pair_swaps
from unmask.measures.runner import read_result
from unmask.representation.interchange import interchange

SMALL = {"phrasings": 2, "tokens": ("all",), "length": 40, "device": "cpu"}


def list_facts(numbers=range(5), ways=("p2d", "d2p"), phrasings=(0, 1)):
    return [make_fact(i, way, p) for way in ways for i in numbers for p in phrasings]


def as_splits(facts):
    """Names as recipients: the measure asks one direction of each split."""
    splits = {
        split: [fact for fact in facts if fact.direction == way]
        for split, way in (("p2d_same", "p2d"), ("p2d_reverse", "d2p"))
    }
    return Corpus("few facts", splits, tuple(splits))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    path = tmp_path_factory.mktemp("strangers") / "facts.jsonl"
    write_facts(path, list_facts((3, 4)))
    return str(path)


@pytest.fixture(scope="module")
def done(tmp_path_factory, strangers):
    models = make_model(layers=2), make_model("tiny-gpt2", "causal", layers=2)
    data, out = as_splits(list_facts(range(3))), tmp_path_factory.mktemp("interchange") / "run"
    return MEASURE(*models, data=data, out=out, strangers=strangers, **SMALL)


def test_rows_are_what_the_call_gives(done):
    model = make_model(layers=2)
    rows = select(done.rows(), model=model.name, split="p2d_same")
    assert distinct(rows, "swap") == ["across", "within", "own", "untrained"]
    assert distinct(rows, "layer") == [None, -1, 0, 1]
    assert len(rows) == 3 * 2 * 4 * 4
    inputs = MEASURE.inputs.read(
        {"models": [model], "data": as_splits(list_facts(range(3)))}, done.settings
    )
    swaps = pair_swaps(inputs, "p2d_same", done.settings)
    expected = interchange(model, swaps, None, "all", length=40)
    for row, other in zip(rows, expected, strict=True):
        assert row["fact"] == other["recipient"] and row["swap"] == other["swap"]
        assert row["logp_donor"] == pytest.approx(other["logp_donor"], rel=1e-4)


def test_scores_stand_beside_their_controls(done):
    means = select(done.summary["means"], model="tiny-masked", split="p2d_same")
    assert distinct(means, "metric") == list(COMPARISON.metrics)
    by_swap = {row["swap"]: row for row in means if row["metric"] == "logp_donor"}
    assert set(by_swap) == {"none", "across", "within", "own", "untrained"}
    assert by_swap["none"]["first_layer"] is None and by_swap["across"]["facts"] == 3
    # Controls are read where across is.
    for name in ("first_layer", "second_layer"):
        assert by_swap["own"][name] == by_swap["untrained"][name] == by_swap["across"][name]
    rows = select(done.rows(), model="tiny-masked", split="p2d_same", swap="across")
    layers = (by_swap["across"]["first_layer"], by_swap["across"]["second_layer"])
    values = [row["logp_donor"] for row in rows if row["layer"] == layers[row["half"]]]
    assert by_swap["across"]["mean"] == pytest.approx(sum(values) / len(values))
    differences = select(done.summary["differences"], model="tiny-masked", split="p2d_same")
    assert [row["minus"] for row in differences] == ["own", "untrained", "within"]
    shares = {row["swap"]: row for row in means if row["metric"] == "says_donor"}
    for row in differences:
        gap = shares["across"]["mean"] - shares[row["minus"]]["mean"]
        assert row["mean"] == pytest.approx(gap)


def test_each_model_is_said_and_a_low_ceiling_with_it(done):
    section = read_result(done.folder).section
    blocks = list(section.walk())
    findings, notices = ([b for b in blocks if isinstance(b, of)] for of in (Finding, Notice))
    ceilings = select(done.summary["means"], swap="within", metric="says_donor")
    models = distinct(done.rows(), "model")
    assert [each.text.partition(",")[0] for each in findings] == [f"In {name}" for name in models]
    low = {row["model"] for row in ceilings if row["high"] < LOW}
    assert len(notices) == bool(low) and all(name in each.text for each in notices for name in low)
    (figure,) = (each for each in blocks if isinstance(each, Figure))
    assert all(line.x[0] == -1 for view in figure.views.values() for p in view for line in p.lines)


def test_what_is_refused(strangers, tmp_path):
    model = make_model(layers=2)
    with pytest.raises(SettingsError, match="'tokens'"):
        MEASURE(model, data=as_splits(list_facts()), **SMALL | {"tokens": ("all", "all")})
    with pytest.raises(UserError, match="expected people that training never named"):
        MEASURE(model, data=as_splits(list_facts()), strangers=strangers, **SMALL)
    write_facts(tmp_path / "facts.jsonl", [replace(f, phrasing=7) for f in list_facts((3, 4))])
    few = {"data": as_splits(list_facts(range(3))), "strangers": str(tmp_path / "facts.jsonl")}
    with pytest.raises(UserError, match="asks nobody in the phrasings of few facts, by their numb"):
        MEASURE(model, **few, **SMALL)
    with pytest.raises(UserError, match="no two people with donors of the other direction"):
        MEASURE(model, data=as_splits(list_facts((0,))), splits=("p2d_same",), **SMALL)
    # One phrasing has neither another one of the recipient's own nor a floor.
    result = MEASURE(
        model, data=as_splits(list_facts((0, 1), phrasings=(0,))), splits=("p2d_same",), **SMALL
    )
    assert "own" not in distinct(result.rows(), "swap") and show(result)
    assert {row["minus"] for row in result.summary["differences"]} == {"within"}


def test_cities_are_asked_with_descriptions_as_donors():
    """A split of a third relation: the donor's city is no word of its description."""
    data = as_splits(list_facts())
    people = {fact.fact_id: fact.subject for fact in data["p2d_same"]}
    data.splits["city"] = make_city_lines(people)[1]
    model = make_model(layers=2)
    small = SMALL | {"layers": (0,), "phrasings": 1, "length": 64}
    result = MEASURE(model, data=data, splits=("city",), **small)
    rows = select(result.rows(), layer=0)
    assert distinct(rows, "swap") == ["across", "within", "own"] and len(rows) == 3 * 5
    assert "city" in show(result)


def test_strangers_stand_beside_berglunds_people(berglund, tmp_path):
    """Recipients in phrasings with a plain description have donors whom the files never name."""
    corpus, folder = read_reversal_files(berglund), tmp_path / "strangers"
    save_corpus(make_strangers(corpus, num_facts=6), folder, tokenizer=None)
    given = {"data": str(berglund), "splits": ("p2d_reverse", "p2d_same"), "strangers": str(folder)}
    model = make_model("tiny-gpt2", "causal", layers=2, context=256)
    small = SMALL | {"layers": (0, 1), "phrasings": 3, "length": 160}
    result = MEASURE(model, **given, **small)
    plain = {"p2d_reverse": {31, 32}, "p2d_same": {30, 32}}
    for split, phrasings in plain.items():
        across, untrained = (select(result.rows(), split=split, swap=swap, layer=0)
                             for swap in ("across", "untrained"))  # fmt: skip
        assert {row["phrasing"] for row in untrained} == phrasings < {30, 31, 32}
        assert len(across) == 4 * 3 and len(untrained) == 4 * 2
        assert {row["answer"] for row in untrained} <= {f"stranger-{i:03d}" for i in range(6)}
        assert all(row["donor"] == row["answer"] for row in untrained)
    gaps = select(result.summary["differences"], minus="untrained")
    assert [(row["split"], row["facts"]) for row in gaps] == [("p2d_reverse", 4), ("p2d_same", 4)]
    # One phrasing each: not every recipient has a stranger beside it, nor need every half.
    one = MEASURE(model, **given, **small | {"phrasings": 1})
    rows = select(one.rows(), split="p2d_reverse", swap="untrained", layer=0)
    assert len(rows) == 2 and len(distinct(rows, "half")) == 1
    assert "untrained donor, other direction" in show(one)
