"""erasure: rows are those of the call, erasers of facts stand beside their controls."""

import pytest

from tests.measures.asking import show
from tests.representation.facts import make_fact, make_model
from unmask import UserError
from unmask.base.config import SettingsError
from unmask.blocks.tidy import distinct, select
from unmask.data.corpus import Corpus
from unmask.measures.erasure import COMPARISON, MEASURE, choose_group_prompts
from unmask.representation.erasure import compare_erasers
from unmask.representation.prompts import make_prefixes

SPLITS = {"p2d": "p2d_same", "d2p": "p2d_reverse"}
SMALL = {"phrasings": 1, "starts": (-1, 1), "draws": 2, "length": 48, "states": 12, "device": "cpu"}


def make_corpus(numbers=range(5), phrasings=(0, 1)):
    """Each direction in a test split, half of the phrasings in its validation split."""
    splits = {}
    for way, split in SPLITS.items():
        for end, phrasing in zip(("", "_valid"), phrasings, strict=False):
            splits[split + end] = [make_fact(i, way, phrasing) for i in numbers]
    return Corpus("few facts", splits, tuple(SPLITS.values()))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    models = make_model(layers=2), make_model("tiny-gpt2", "causal", layers=2)
    out = tmp_path_factory.mktemp("erasure") / "run"
    return MEASURE(*models, data=make_corpus(), out=out, groups=("p2d",), **SMALL)


def test_prompts_that_are_asked_are_not_fitted_to():
    settings = MEASURE.settings(groups=("p2d",), **SMALL)
    prompts = choose_group_prompts(make_corpus(), settings)["p2d"]
    assert {way: own["split"] for way, own in prompts.columns.items()} == SPLITS
    for way in ("p2d", "d2p"):
        questions, fitted = prompts.questions[way], prompts.fitted[way]
        assert len(questions) == len(fitted) == 5
        assert not {f.prompt for f in questions} & {f.prompt for f in fitted}
        assert {f.direction for f in (*questions, *fitted)} == {way}


def test_rows_are_what_the_call_gives(done):
    model = make_model(layers=2)
    prompts = choose_group_prompts(make_corpus(), done.settings)["p2d"]
    prefixes = make_prefixes(model, 3, 0)
    assert len(prefixes) * 5 >= done.settings.states
    expected = compare_erasers(
        model, prompts.fitted, prompts.questions, prefixes, (-1, 1), "all", None, 48, 0, 2
    )
    rows = select(done.rows(), model=model.name)
    # Nothing erased; by two directions, of facts once and controls twice, from two layers on.
    assert len(rows) == 5 * (2 + 2 * 2 * (1 + 2 + 2) * 2)
    for row, other in zip(rows, expected, strict=True):
        assert row.items() >= {name: x for name, x in other.items() if name != "logp"}.items()
        assert row["logp"] == pytest.approx(other["logp"], rel=1e-4)
        assert row["split"] == SPLITS[row["direction"]]


def test_erasers_stand_beside_their_controls(done):
    means = select(done.summary["means"], model="tiny-masked", split="p2d_reverse")
    assert distinct(means, "metric") == list(COMPARISON.metrics)
    cells = {(row["source"], row["eraser"], row["start"]) for row in means}
    assert len(cells) == 1 + 2 * 3 * 2 and (None, "none", None) in cells
    where = {"model": "tiny-masked", "split": "p2d_reverse", "start": -1}
    rows = select(means, start=-1, metric="logp_token")
    by = {(row["source"], row["eraser"]): row["mean"] for row in rows}
    own = select(done.rows(), **where, fitted="p2d", eraser="fact")
    own = [row["logp"] / row["tokens"] for row in own]
    assert by["other", "fact"] == pytest.approx(sum(own) / len(own))
    gaps = select(done.summary["differences"], **where, metric="logp_token")
    assert {(row["source"], row["minus"]) for row in gaps} == {
        (source, minus) for source in ("own", "other") for minus in ("random", "permuted")
    }
    for row in gaps:
        gap = by[row["source"], "fact"] - by[row["source"], row["minus"]]
        assert row["mean"] == pytest.approx(gap) and row["low"] <= row["mean"] <= row["high"]


def test_what_is_refused():
    model = make_model(layers=2)
    with pytest.raises(SettingsError, match="'groups' is empty"):
        MEASURE(model, data=make_corpus(), **SMALL | {"groups": ()})
    with pytest.raises(UserError, match="no prompts left to fit to in p2d and d2p"):
        MEASURE(model, data=make_corpus(phrasings=(0,)), groups=("p2d",), **SMALL)
    with pytest.raises(UserError, match="erased from layer 7 on: tiny-masked has layers 0 to 1"):
        MEASURE(model, data=make_corpus(), groups=("p2d",), **SMALL | {"starts": (7,)})


def test_facts_of_ones_own_are_a_split_for_each_direction():
    facts = [make_fact(i, way, p) for way in ("p2d", "d2p") for i in range(5) for p in (0, 1)]
    result = MEASURE(make_model(layers=2), data=facts, **SMALL | {"starts": (0,), "draws": 1})
    assert distinct(result.rows(), "split") == ["p2d_same", "p2d_reverse"]
    assert show(result)
