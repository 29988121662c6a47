"""What features keep, when they fire and what recall loses: against laws and sums by hand."""

from functools import partial

import pytest
import torch

import unmask
from tests.measures.asking import ask, show
from tests.representation.facts import PEOPLE, make_fact, make_model
from unmask.base.errors import UserError
from unmask.blocks.tidy import select
from unmask.dictionaries.dictionary import Dictionary, make_random_dictionary
from unmask.dictionaries.fact_features import (
    ablate_features,
    centre_features,
    collect_features,
    compare_features_of_facts,
)
from unmask.dictionaries.life import follow_features
from unmask.dictionaries.reconstruction import (
    collect_states,
    list_replacements,
    score_replacements,
)
from unmask.measures.features import MEASURE
from unmask.measures.features_section import summarise
from unmask.net.families import Family
from unmask.representation.patched import lay_out_prompt, score_patched

SITE, WIDTH = "layers.1.resid_out", 64
FACTS = [make_fact(i, way, p) for i in range(4) for way in ("p2d", "d2p") for p in (0, 1)]
TEXTS = [fact.text for fact in FACTS]


def make_exact() -> Dictionary:
    """Features of which every state is a sum: each number, and its opposite."""
    both = torch.cat([torch.eye(WIDTH), -torch.eye(WIDTH)])
    return Dictionary(both.T, torch.zeros(2 * WIDTH), both, torch.zeros(WIDTH))


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_what_is_kept_lies_between_the_mean_and_the_clean_states(kind):
    model = make_model(kind=kind)
    states = collect_states(unmask.activations(model, SITE, TEXTS))
    replacements = list_replacements(make_exact(), states, rank=WIDTH)
    texts = [(model.encode(text).ids[:9], 9) for text in TEXTS[:3]]
    rows = list(score_replacements(model, SITE, make_exact(), replacements, texts, (0.25, 0.75)))
    for row in rows:
        row |= {"model": "m", "kind": kind, "seed": 0}
    everywhere = select(rows, where="all")
    for fact in range(3):
        for share in {row["share"] for row in rows}:
            same = {row["replaced"]: row for row in select(everywhere, fact=fact, share=share)}
            clean = same["clean"]
            # An exact dictionary, and all principal directions, change nothing.
            for name in ("dictionary", "principal"):
                assert same[name]["nats"] == pytest.approx(clean["nats"], abs=1e-2)
                assert same[name]["lost"] == pytest.approx(0, abs=1e-3)
            assert clean["lost"] == 0 and same["zero"]["lost"] > 1
            assert same["mean"]["nats"] != pytest.approx(clean["nats"], abs=1e-2)
    # Clean nats are those of the model on the canvas, token by token.
    if kind == "causal":
        ids = torch.tensor([texts[0][0]])
        logp = model.logits(ids).log_softmax(-1)[0, :-1]
        by_hand = -logp.gather(-1, ids[0, 1:, None]).sum()
        (first,) = select(everywhere, fact=0, replaced="clean")
        assert first["nats"] == pytest.approx(float(by_hand), rel=1e-4)
        assert first["tokens"] == 8
    else:
        assert {row["where"] for row in rows} == {"masked", "written", "all"}
        (row,) = select(everywhere, fact=0, replaced="clean", share=0.75)
        assert row["tokens"] == 7  # three quarters of nine, rounded


def test_features_are_counted_by_step_as_by_hand():
    model = make_model()
    dictionary = make_random_dictionary(WIDTH, 12, 3)
    make = partial(unmask.activations, model, SITE, ["They say [MASK]*3 boats", "Now [MASK]*2"])
    stream = partial(make, states="denoising", steps=2, batch=4)
    rows, total = follow_features(dictionary, stream())
    for row in rows:
        fires = {True: 0, False: 0}
        positions = {True: 0, False: 0}
        for batch in stream():
            at = batch.step == row["step"]
            features = dictionary.encode(batch.x)[:, row["feature"]]
            for is_masked in fires:
                here = at & (batch.is_masked == is_masked)
                positions[is_masked] += int(here.sum())
                fires[is_masked] += int((features[here] > 0).sum())
        assert (row["fires_masked"], row["fires_written"]) == (fires[True], fires[False])
        assert (row["masked"], row["written"]) == (positions[True], positions[False])
    assert {row["feature"] for row in rows} == set(torch.nonzero(total)[:, 0].tolist())


def test_features_of_a_fact_are_what_its_prompts_have_above_others():
    features = torch.zeros(len(FACTS), 10)
    for i, fact in enumerate(FACTS):
        number = int(fact.fact_id.partition("-")[2])
        features[i, 9] = 5.0 + (fact.direction == "p2d")  # what a direction brings to all
        features[i, number] = 1.0  # one of the fact, in both directions
        features[i, 4 + (number + (fact.direction == "d2p")) % 4] = 1.0  # another in each
    own = centre_features(features, FACTS)
    assert all(float(each[9].abs()) < 1e-6 for each in own.values())
    rows = list(compare_features_of_facts(own, 1))
    assert len(rows) == 16
    same = [row for row in rows if row["fact"] == row["other"]]
    others = [row for row in rows if row["fact"] != row["other"]]
    least = min(row["cosine"] for row in same)
    assert least == pytest.approx(1 / 3, abs=1e-5)
    mean = sum(row["cosine"] for row in others) / len(others)
    assert mean < 0.1


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_taking_features_out_is_a_patch_at_the_layer(kind):
    model, dictionary = make_model(kind=kind), make_exact()
    first = [fact for fact in FACTS if fact.direction == "p2d" and fact.phrasing == 0]
    questions = [fact for fact in FACTS if fact.phrasing == 1]
    rows = list(ablate_features(model, dictionary, 1, first, questions, number=6, draws=2))
    assert {row["ablated"] for row in rows} == {"none", "own", "other", "random"}
    assert len(select(rows, ablated="random")) == 2 * len(questions)
    # By hand for one prompt: its fact's features are set to zero everywhere.
    features = collect_features(model, dictionary, SITE, first, None)
    own = centre_features(features, first)[questions[0].fact_id, "p2d"]
    chosen = own.topk(6).indices

    def act(x):
        kept = dictionary.encode(x)
        kept[..., chosen] = 0.0
        return dictionary.decode(kept)

    prompt = lay_out_prompt(model, questions[0], [questions[0]])
    with model.net.patch({SITE: act}):
        ((score,),) = score_patched(model, [prompt], {})
    (row,) = select(
        rows, ablated="own", fact=questions[0].fact_id, direction=questions[0].direction, phrasing=1
    )
    assert row["logp"] == pytest.approx(score.logp, rel=1e-3)
    (clean,) = select(
        rows,
        ablated="none",
        fact=questions[0].fact_id,
        direction=questions[0].direction,
        phrasing=1,
    )
    assert clean["logp"] != pytest.approx(row["logp"], rel=1e-3)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    families = [
        Family("m", (make_model(),), "masked"),
        Family("twin", (make_model(kind="causal"),), "causal"),
    ]
    facts = [
        make_fact(i, way, p) for i in range(len(PEOPLE)) for way in ("p2d", "d2p") for p in (0, 1)
    ]
    given = {"size": 24, "k": 4, "train_steps": 3, "texts": 3, "steps": 2, "shares": (0.5,)}
    given |= {"facts": 4, "draws": 2, "permutations": 99, "shown": 3}
    return ask(MEASURE, families, facts, tmp_path_factory.mktemp("features"), **given)


def test_the_measure_shows_all_of_it(result):
    text = show(result)
    for words in (
        "cross-entropy recovered",
        "one fact, both directions",
        "own features",
        "first step",
    ):
        assert words in text
    assert {row["model"] for row in result.summary["recovery"]} == {"m", "twin"}
    clean = select(result.summary["recovery"], replaced="clean", metric="nats", model="m")
    assert len(clean) == 3
    assert all(0 < row["p"] <= 1 for row in result.summary["nearness"])
    steps = select(result.summary["steps"], model="m")
    assert {row["step"] for row in steps} == {1, 2}


def test_recovered_is_a_ratio_of_sums(result):
    rows = result.tables["features"].to_pylist()
    own = select(rows, model="m", where="all", share=0.5)
    sums = {}
    for row in own:
        sums[row["replaced"]] = sums.get(row["replaced"], 0.0) + row["nats"]
    expected = (sums["mean"] - sums["random"]) / (sums["mean"] - sums["clean"])
    shown = select(
        summarise(result.tables, result.records[0].settings and MEASURE.settings())["recovery"],
        model="m", where="all", replaced="random", metric="recovered",
    )  # fmt: skip
    if sums["mean"] > sums["clean"]:
        assert shown[0]["mean"] == pytest.approx(expected)
    else:
        assert not shown


def test_dictionaries_are_kept_and_read_again(tmp_path):
    model = make_model()
    given = {"size": 24, "k": 4, "train_steps": 2, "texts": 2, "steps": 1, "shares": (0.5,)}
    given |= {"facts": 2, "draws": 1, "permutations": 19, "dictionaries": str(tmp_path / "kept")}
    families, facts = [Family("m", (model,), "masked")], FACTS
    ask(MEASURE, families, facts, tmp_path / "one", **given)
    kept = Dictionary.load(tmp_path / "kept" / "m-0")
    assert kept.site == SITE and kept.size == 24
    with pytest.raises(UserError, match="states are read at layers.2"):
        ask(MEASURE, families, facts, tmp_path / "two", layer=2, **given)
