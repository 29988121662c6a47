"""represent: what a run keeps, what its summary counts, what its section may say."""

import numpy as np
import pyarrow
import pytest

import unmask
from tests.conftest import lively, make_corpus_once
from tests.evaluation.conftest import thin
from tests.measures.asking import ask, show
from unmask import UserError
from unmask.base.config import SettingsError
from unmask.blocks.blocks import Finding, Notice
from unmask.blocks.tidy import distinct, group_by, select
from unmask.data.sources import OWN
from unmask.measures.represent import MEASURE, RepresentSettings, stack_vectors
from unmask.measures.represent_section import GIVEN, READ_NOT_USED, summarise
from unmask.measures.runner import read_result
from unmask.measures.trace import MEASURE as TRACE
from unmask.net.families import Family
from unmask.net.model import Blueprint, Model

FACTS = 4
SMALL = {"facts": FACTS, "groups": ("p2d",), "search_steps": 3, "prefixes": 2, "lr": 0.05}
QUICK = SMALL | {"lens": False, "probes": False}
KEYS = ("k_star", "k_bare")
SHAPE = {"width": 32, "heads": 2, "mlp_width": 64, "context": 96}


@pytest.fixture(scope="module")
def whole():
    return make_corpus_once(6)


@pytest.fixture(scope="module")
def corpus(whole):
    return thin(whole)


@pytest.fixture(scope="module")
def tokenizer(whole):
    return unmask.Tokenizer.train(whole.training_texts(), 1200)


@pytest.fixture(scope="module")
def masked(tokenizer) -> Family:
    return Family("mdm", (make_model("mdm", tokenizer),), "masked")


@pytest.fixture(scope="module")
def causal(tokenizer) -> Family:
    """Two training seeds."""
    seeds = tuple(make_model("ar", tokenizer, causal=True, seed=seed) for seed in (0, 1))
    return Family("ar", seeds, "causal")


def make_model(name, tokenizer, causal=False, seed=0, **changes) -> Model:
    shape = SHAPE | changes
    config = unmask.preset("tiny", vocab_size=tokenizer.vocab_size, causal=causal, **shape)
    kind = ("causal", None) if causal else ("masked", tokenizer.mask_id)
    return Model(name, lively(config, seed), Blueprint(config, *kind), tokenizer)


@pytest.fixture(scope="module")
def result(masked, causal, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("represent")
    return ask(MEASURE, [masked, causal], corpus, folder, layer="0,1", **SMALL)


def test_tables_hold_every_question_layer_and_checkpoint(result):
    rows = result.rows()
    assert len(rows) == 3 * 2 * 2 * FACTS  # checkpoints, layers, directions
    for row in rows:
        assert len(row["losses"]) == 3 and row["updates"] == 2 and row["prefixes"][0] == ""
        assert row["split"] == ("p2d_same" if row["direction"] == "p2d" else "p2d_reverse")
        assert row["trained"] == ("same" if row["direction"] == "p2d" else "reverse")
        assert row["chosen_by"] == "given"
    vectors = stack_vectors(result.tables["vectors"])
    assert all(each.shape[1] == (32, 64)[name in KEYS] for name, each in vectors.items())
    distance = np.linalg.norm(vectors["delta"], axis=1)
    np.testing.assert_allclose(distance, [row["distance"] for row in rows], rtol=1e-5)
    # The lens has 4 moments of a masked model, 1 of a causal one; networks have 3 layers.
    lens = group_by(result.rows("lens"), "model", "seed").values()
    assert [len(each) for each in lens] == [2 * FACTS * 3 * moments for moments in (4, 1, 1)]
    probes = result.rows("probes")
    ways = [(one, other) for one in ("d2p", "p2d") for other in ("d2p", "p2d")]
    assert distinct(probes, "layer", "fitted", "tested") == [
        (i, *w) for i in range(-1, 3) for w in ways
    ]
    readings = [("mdm", "canvas"), ("mdm", "prompt"), ("mdm", "subject")]
    assert distinct(probes, "model", "reading") == [*readings, ("ar", "canvas"), ("ar", "subject")]
    assert READ_NOT_USED in [b.text for b in result.section.blocks if isinstance(b, Notice)]


def test_a_run_finds_what_single_calls_find(result, masked, corpus):
    row = next(row for row in result.rows() if row["layer"] == 1 and row["direction"] == "d2p")
    at = result.rows().index(row)
    (fact,) = (fact for fact in corpus["p2d_reverse"] if fact.prompt == row["prompt"])
    how = {"prefixes": row["prefixes"]}
    key = unmask.extract_key(masked.members[0], fact, 1, **how)
    value = unmask.extract_value(masked.members[0], fact, 1, search_steps=3, lr=0.05, **how)
    vectors = stack_vectors(result.tables["vectors"].slice(at, 1))
    np.testing.assert_allclose(vectors["k_star"][0], key.k_star, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(vectors["v0"][0], value.v0, rtol=1e-4, atol=1e-5)
    assert row["p_after"] == pytest.approx(value.p_after, rel=1e-4)


def test_a_trace_chooses_the_layer_of_its_model(masked, causal, corpus, tmp_path):
    """A model that the trace does not know is looked into at its middle layer."""
    how = {"splits": ("d2p_same",), "facts": 1, "parts": ("mlp",), "at": ("first",)}
    how |= {"corruption": "mean", "any_answer": True, "window": 1}
    one = type(corpus)("one fact", {"d2p_same": corpus["d2p_same"][:1]})
    trace = ask(TRACE, [masked], one, tmp_path / "trace", **how)
    cells = select(trace.summary["averages"], part="mlp", role="last subject", control="none")
    effects = {row["layer"]: row["mean"] for row in cells}
    best = max((0, 1), key=lambda layer: effects[layer])  # layer 2 is the last
    changes = QUICK | {"trace": (str(tmp_path / "trace"),), "facts": 1, "search_steps": 1}
    run = ask(MEASURE, [masked, causal], corpus, tmp_path / "run", **changes)
    chosen = {(row["model"], row["layer"], row["chosen_by"]) for row in run.rows()}
    assert chosen == {("mdm", best, "trace"), ("ar", 1, "middle")}
    assert "by a trace" in show(run)
    with pytest.raises(UserError, match=r"is a run of `unmask represent`: expected one of `unmask"):
        ask(MEASURE, [masked], corpus, tmp_path / "b", **changes | {"trace": (str(run.folder),)})


def test_prefixes_are_cut_from_a_text(masked, corpus, tmp_path):
    text = "Rain fell on the harbour all day. The boats stayed in until the evening bell rang."
    (tmp_path / "text.txt").write_text(text)
    changes = QUICK | {"facts": 1, "prefixes": 3, "prefix_text": str(tmp_path / "text.txt")}
    run = ask(MEASURE, [masked], corpus, tmp_path / "run", **changes)
    (prefixes,) = {tuple(row["prefixes"]) for row in run.rows()}
    assert prefixes[0] == "" and len(set(prefixes)) == 3
    assert all(prefix in text for prefix in prefixes)


def test_own_facts_are_one_group(masked, corpus, tmp_path):
    """In one phrasing they have no probes, which is said."""
    first = {fact.fact_id: fact for fact in reversed(corpus["p2d_same"])}
    facts = [first[fact_id] for fact_id in sorted(first)[:3]]
    own = type(corpus)("own facts", {OWN: facts})
    run = ask(MEASURE, [masked], own, tmp_path, **SMALL | {"lens": False, "facts": 30})
    assert {row["group"] for row in run.rows()} == {OWN} and len(run.rows()) == 3
    (notice,) = (block for block in run.section.blocks if isinstance(block, Notice))
    assert "No probes were fitted for own facts: they need at least 2 facts" in notice.text


def test_groups_that_the_data_lack_are_noticed(masked, corpus, tmp_path):
    splits = {name: facts for name, facts in corpus.splits.items() if not name.startswith("both")}
    changes = QUICK | {"groups": ("p2d", "both"), "facts": 1, "search_steps": 1}
    run = ask(MEASURE, [masked], type(corpus)("some", splits), tmp_path, **changes)
    assert {row["group"] for row in run.rows()} == {"p2d"}
    assert "The data have no facts trained both ways." in show(run)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layer": "7"}, "layer 7 is out of range: mdm has layers 0 to 2"),
        ({"layer": "0,2"}, "layer 2 is the last: .* choose a layer from 0 to 1"),
        ({"layer": "x"}, "layer 'x' cannot be read"),
        ({"phrasing": 50}, "phrasing 50 was asked for"),
        ({"length": 20}, "a canvas of 20 in a context of 96 does not hold: use a shorter prompt"),
    ],
)
def test_mistakes_are_found_before_any_search(masked, corpus, tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        ask(MEASURE, [masked], corpus, tmp_path / "run", **QUICK | changes)
    assert not list(tmp_path.glob("run/parts/*/*"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"groups": ()}, "'groups' is empty"),
        ({"stop": "soon"}, "'stop' is 'soon'"),
        ({"objective": "room"}, "'objective' is 'room', expected one of seed, rome"),
        ({"layer": "1", "trace": ("run",)}, "'trace' chooses one as well: leave one out"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, sentence):
    with pytest.raises(SettingsError, match=sentence):
        RepresentSettings(**changes)


def test_settings_are_those_of_the_search():
    """Weights that are not given are the objective's; a clamp of 0 is no limit."""
    assert RepresentSettings().extraction.kl == 1.0
    rome = RepresentSettings(objective="rome", clamp=0.0, norm=0.25).extraction
    assert (rome.kl, rome.norm, rome.kl_read, rome.clamp) == (0.0625, 0.25, "subject", 0.0)


def make_tables(rows, probes=()) -> dict:
    """Tables of a run, as far as a summary reads them."""
    usual = {"model": "mdm", "kind": "masked", "seed": 0, "group": "p2d", "split": "p2d_same"}
    usual |= {"layer": 1, "chosen_by": "given", "losses": [0.0], "prefixes": [""]}
    usual |= {"p_before": 0.1, "p_after": 0.9, "relative_distance": 1.0, "diverged": False}
    about = {"model": "mdm", "kind": "masked", "seed": 0, "group": "p2d", "phrasing": 2}
    return {
        "represent": pyarrow.Table.from_pylist([usual | row for row in rows]),
        "probes": pyarrow.Table.from_pylist([about | row for row in probes]),
        "lens": pyarrow.Table.from_pylist([]),
    }


ONE = [{"fact": "0"}]


def make_probes(
    num_facts: int, hits: dict[int, int], tested: str = "p2d", reading: str = "canvas"
) -> list[dict]:
    """Predictions by layer: the first so many facts are right, the others one off."""
    return [
        {"reading": reading, "layer": layer, "fitted": "d2p", "tested": tested, "fact": f"{i:02d}"}
        | {"predicted": f"{i if i < count else (i + 1) % num_facts:02d}"}
        for layer, count in hits.items()
        for i in range(num_facts)
    ]


def test_diverged_facts_are_counted_and_left_out():
    """A fact that diverged under one training seed is left out of all of them."""
    rows = [
        {"fact": f"{i}", "seed": seed, "p_after": 0.2 * i, "diverged": (i, seed) == (4, 1)}
        for i in range(5)
        for seed in (0, 1)
    ]
    summary = summarise(make_tables(rows), RepresentSettings())
    (search,) = summary["searches"]
    assert (search["facts"], search["diverged"]) == (4, 1)
    means = {row["metric"]: row["mean"] for row in summary["values"]}
    assert means["p_after"] == pytest.approx(0.3) and means["elicited"] == 0.25


@pytest.mark.parametrize(
    ("p_after", "outcome"), [(0.9, "above"), (0.1, "below"), (0.5, "above"), (0.4999, "below")]
)
def test_values_elicit_from_a_half_on(p_after, outcome):
    tables = make_tables([{"fact": f"{i}", "p_after": p_after} for i in range(20)])
    (row,) = select(summarise(tables, RepresentSettings())["elicited"], metric="elicited")
    assert row["outcome"] == outcome and row["mean"] == float(outcome == "above")
    nothing = summarise(tables, RepresentSettings(search_steps=0))["elicited"]
    assert not any("outcome" in row for row in nothing), "nothing was searched"


def test_probes_are_corrected_for_their_layers():
    """One layer tells half of the facts, the others none: its p stands, theirs does not shrink."""
    rows, settings = ONE, RepresentSettings()
    probes = make_probes(20, {0: 0, 1: 10, 2: 0})
    summary = summarise(make_tables(rows, probes), settings)
    by_layer = {row["layer"]: row for row in summary["probes"]}
    assert [by_layer[layer]["mean"] for layer in (0, 1, 2)] == [0.0, 0.5, 0.0]
    assert by_layer[1]["p"] == by_layer[1]["p_layers"] == pytest.approx(1e-5, rel=1e-3)
    assert by_layer[1]["p_family"] == by_layer[1]["p_layers"]
    assert by_layer[0]["p_layers"] == 1.0
    assert all(row["p_layers"] >= row["p"] for row in summary["probes"])
    assert by_layer[1]["outcome"] == "above" and "outcome" not in by_layer[0]
    # The more layers, the likelier one of them is that good by chance.
    few, many = (
        summarise(make_tables(rows, make_probes(20, dict.fromkeys(range(n), 2))), settings)
        for n in (1, 12)
    )
    assert many["probes"][0]["p_layers"] >= few["probes"][0]["p_layers"] == few["probes"][0]["p"]


def test_probes_of_one_question_are_a_family():
    """Of three readings across directions, Holm's least p is three times as large."""
    probes = [
        row
        for reading, hits in (("canvas", 3), ("prompt", 3), ("subject", 1))
        for row in make_probes(20, {0: hits}, reading=reading)
    ] + make_probes(20, {0: 20}, tested="d2p")
    summary = summarise(make_tables(ONE, probes), RepresentSettings())
    rows = {(row["reading"], row["tested"]): row for row in summary["probes"]}
    assert rows["canvas", "p2d"]["p_family"] == pytest.approx(3 * rows["canvas", "p2d"]["p"])
    assert rows["subject", "p2d"]["p_family"] >= rows["subject", "p2d"]["p"] > 0.3
    assert rows["canvas", "d2p"]["p_family"] == rows["canvas", "d2p"]["p_layers"]
    # Facts that change their names are right in one of so many.
    assert rows["canvas", "p2d"]["null_mean"] == pytest.approx(1 / 20, abs=1e-3)


def test_the_section_leads_with_probes_across_directions(result):
    blocks = result.section.blocks
    findings = [block for block in blocks if isinstance(block, Finding)]
    assert list(blocks[: len(findings)]) == findings and len(findings) == 7
    assert len(result.outcomes) == 2 * 5 + 2, "both directions of each reading, and values"
    judged = [row for row in result.summary["probes"] if "outcome" in row]
    for own, finding in zip(group_by(judged, "model", "reading").values(), findings, strict=False):
        weaker = max(own, key=lambda row: row["p_family"])
        assert finding.outcome == weaker["outcome"] and f"In {weaker['model']}" in finding.text
        assert f"fitted on {GIVEN[weaker['fitted']]}, layer {weaker['layer']}" in finding.text
    text = show(result)
    assert "name → description, as trained" in text and "description → name, reversed" in text
    assert "nan" not in text and show(read_result(result.folder)) == text
