"""trace: tables that are complete and resume, what is kept and why, what is refused."""

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest

import unmask
from tests.measures.asking import show
from tests.tracing.learned import LENGTH, make_facts
from unmask import UserError
from unmask.base.errors import NotMeasuredError
from unmask.blocks import labels
from unmask.blocks.blocks import Figure, Finding
from unmask.blocks.tidy import group_by
from unmask.data.corpus import Corpus
from unmask.measures.runner import read_result
from unmask.measures.trace import MEASURE, TraceSettings
from unmask.tracing import facts as tracing
from unmask.tracing.corruption import Noise
from unmask.tracing.metrics import METRICS
from unmask.tracing.table import ONE_TOKEN, OTHER_FACT, RESULT, SHUFFLED

USUAL = {
    "corruption": "gaussian",
    "steps": 6,
    "length": LENGTH,
    "window": 2,
    "samples": 2,
    "phrasings": 2,
    "device": "cpu",
}
MODELS = ("masked", "causal")


def make_wrong(at=-1):
    """Facts of which one answer, the last unless named, is wrong."""
    facts = make_facts()
    facts[at] = replace(facts[at], object="old boats", completion=" old boats", object_span=(1, 10))
    return facts


def trace(*subjects, **changes):
    return MEASURE(*subjects, **USUAL | changes)


@pytest.fixture(scope="module")
def done(masked, causal, tmp_path_factory):
    """Both models in one run."""
    return trace(masked, causal, make_wrong(), out=tmp_path_factory.mktemp("trace") / "run")


def test_what_is_kept_and_left_out_is_counted(done):
    rows = done.rows("facts")
    assert [(row["model"], row["split"]) for row in rows] == [
        (name, "own") for name in MODELS for _ in range(8)
    ]
    causal = [row for row in rows if row["model"] == "causal"]
    (wrong,) = [row for row in causal if not row["kept"]]
    assert (wrong["object"], wrong["reason"]) == ("old boats", "not recalled")
    assert causal[0]["said"].strip() == "red boats" and 0.5 < causal[0]["clean"] <= 1
    assert {(row["t1"], row["t2"]) for row in causal if row["kept"]} == {(1, 2)}
    counts = {row["model"]: row for row in done.summary["counts"]}
    assert (counts["causal"]["prompts"], counts["causal"]["kept"]) == (8, 7)
    assert counts["causal"]["facts"] == 4 and counts["causal"]["left_out"] == "1 not recalled"
    assert (counts["masked"]["joint"], counts["causal"]["joint"]) == ("mean_field", "chain_rule")


def test_the_table_is_tidy_and_complete(done, causal):
    table = done.tables["trace"]
    which = ["model", "kind", "seed", "split", "fact", "phrasing", "direction", "trained"]
    how = ["stage", "corruption", "step", "control", "part", "layer", "head", "token", "role"]
    assert table.schema.names == [*which, *how, "sample", "value"]
    fact = make_facts()[0]
    own = (pc.field("fact") == "fact-0") & (pc.field("phrasing") == 0)
    own = table.filter(own & (pc.field("model") == "causal"))
    first = own.filter(pc.field("stage") == "first")
    result = first.filter(pc.field("control") == RESULT)
    tokens = len(causal.tokenizer.encode(fact.text).ids) - 1
    for part in ("resid", "mlp", "attn"):
        rows = result.filter(pc.field("part") == part)
        assert rows.num_rows == tokens * causal.net.config.layers * USUAL["samples"]
    assert set(first["control"].to_pylist()) == {RESULT, OTHER_FACT, SHUFFLED}
    # The numbers are the trace's own.
    noise = tracing.make_corruption(
        TraceSettings(samples=2, corruption="gaussian"), causal, make_wrong()
    )
    (grid,) = unmask.trace_steps(
        causal, fact, steps=6, at="first", corruption=noise, window=2, length=LENGTH
    )
    cell = (pc.field("part") == "mlp") & (pc.field("layer") == 1) & (pc.field("token") == 2)
    values = result.filter(cell & (pc.field("sample") == 1))["value"].to_pylist()
    assert values == pytest.approx([float(grid.values("mlp")[2, 1, 1])], abs=1e-9)
    flows = own.filter(pc.field("part") == "flow")
    assert sorted(flows["role"].to_pylist()) == ["committed", "subject"]


def test_tokens_are_those_of_the_clean_run(done):
    kept = [row for row in done.rows("facts") if row["kept"]]
    for fact in kept:
        keys = ("model", "fact", "phrasing")
        tokens = [
            row for row in done.rows("tokens") if all(row[name] == fact[name] for name in keys)
        ]
        assert [row["position"] for row in tokens] == list(range(len(tokens)))
        given = "".join(row["piece"] for row in tokens if row["written"] == 0)
        assert given.rstrip("⏎") == fact["prompt"]
        answer = "".join(row["piece"] for row in tokens if row["in_answer"])
        assert answer.strip() == fact["object"]
        steps = [row["written"] for row in tokens if row["in_answer"]]
        assert (min(steps), max(steps)) == (fact["t1"], fact["t2"])
        assert (
            "".join(row["piece"] for row in tokens if row["in_subject"]).strip()
            == (fact["subject"])
        )


@pytest.mark.parametrize("mode", ["restore", "ablate"])
def test_effects_of_single_texts_average_to_the_averages(masked, causal, mode):
    """Texts kept cell by cell are the same effects: their mean over tokens and facts."""
    found = trace(masked, causal, make_facts(), facts=2, phrasings=1, mode=mode)
    texts, checked = found.summary["texts"], 0
    for row in found.summary["averages"]:
        if row["control"] != RESULT or row["layer"] < 0:
            continue
        keys = ("model", "split", "stage", "part", "role")
        cells = [text for text in texts if all(text[name] == row[name] for name in keys)]
        by_text = group_by(cells, "fact", "phrasing").values()
        means = [np.mean([each["effects"][row["layer"]] for each in own]) for own in by_text]
        if row["role"] in ("other mask", "other token"):  # of which some stand after the end
            continue
        assert row["mean"] == pytest.approx(np.mean(means), abs=1e-12)
        assert row["facts"] == len(means)
        checked += 1
    assert checked > 50


@pytest.mark.parametrize("metric", [*METRICS, "own"])
def test_every_metric_makes_a_run(causal, tmp_path, metric):
    def first_token(logp, clean, corrupted, which):
        return logp[..., which, 0]

    chosen = first_token if metric == "own" else metric
    found = trace(causal, make_facts(), metric=chosen, parts=("resid",), facts=2, out=tmp_path)
    table = found.tables["trace"]
    assert pc.all(pc.is_finite(table["value"])).as_py()
    # A logit difference has both answers in it.
    controls = {RESULT, OTHER_FACT} | ({SHUFFLED} if metric != "logit_difference" else set())
    assert set(table["control"].to_pylist()) == controls
    asked = table.filter(pc.field("part") == "asked")["value"].to_pylist()
    assert asked and all(1 <= count <= 4 for count in asked)
    again = read_result(tmp_path)
    assert show(again) == show(found)
    assert ("first_token" if metric == "own" else labels.METRICS[metric]) in show(again)


def test_a_corruption_of_one_s_own(masked, tmp_path):
    strong, weak = (Noise(sigma=sigma, samples=2) for sigma in (3.0, 0.01))
    settings = {"parts": ("resid",), "at": ("first",), "out": tmp_path}
    found = trace(masked, make_facts(), corruption=strong, **settings)
    assert {row["sigma"] for row in found.rows("facts")} == {3.0}
    assert read_result(tmp_path).settings.corruption == repr(strong)
    # Another strength is another run.
    with pytest.raises(UserError, match="corruption was .*sigma=3.0.* and is now .*sigma=0.01"):
        trace(masked, make_facts(), corruption=weak, **settings)


def test_facts_that_the_first_model_recalls_come_first(causal, masked):
    facts = make_facts()
    wrong = make_wrong(0)[0]
    asked = {"facts": 2, "consider": 4, "phrasings": 1, "at": ("first",), "parts": ("resid",)}
    for models in ((causal,), (causal, masked)):
        found = trace(*models, [wrong, *facts[2:]], **asked)
        for model in models:
            rows = [row for row in found.rows("facts") if row["model"] == model.name]
            assert [row["fact"] for row in rows] == ["fact-1", "fact-2"]
        counts = {(row["model"], row["considered"], row["recalled"]) for row in found.rows("facts")}
        assert ("causal", 4, 3) in counts and len(counts) == len(models)
    assert "3 of 4" in show(found)


def test_splits_take_turns(causal):
    """So that a run that is cut short has facts of every split."""
    facts = make_facts()
    corpus = Corpus("two splits", {"d2p_same": facts[:4], "p2d_same": facts[4:]})
    inputs = MEASURE.inputs.read(
        {"models": [causal], "data": corpus}, chosen := TraceSettings(splits=tuple(corpus.splits))
    )
    keys = [job.key for job in MEASURE.jobs(inputs, chosen)]
    assert [key.split("-")[-3:-1] for key in keys] == [["fact", str(i)] for i in (0, 2, 1, 3)]


def test_the_window_is_that_of_the_shallowest_model(masked, causal, done):
    assert {row["window"] for row in done.rows("facts")} == {2}
    settings = {"window": None, "facts": 1, "phrasings": 1, "at": ("first",)}
    found = trace(masked, causal, make_facts(), **settings)
    assert {row["window"] for row in found.rows("facts")} == {1}
    assert "layers changed together" in show(found)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"corruption": "fire"}, "'fire'"),
        ({"metric": "fire"}, "metric 'fire' is unknown"),
        ({"corruption": "mask"}, "causal is a causal model and has no mask"),
        ({"at": ("never",)}, "'at' has 'never', expected first, t1"),
        ({"at": ("0",)}, "'at' has '0', expected first"),
        ({"at": ()}, "'at' is empty"),
        ({"parts": ("resid", "resid")}, "none twice"),
        ({"parts": ("brain",)}, "'parts' is"),
    ],
)
def test_mistakes_are_found_before_anything_runs(masked, causal, tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        trace(masked, causal, make_facts(), out=tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_single_fact_says_what_it_lacks(causal):
    facts, wrong = make_facts(), make_wrong(0)[0]
    with pytest.raises(UserError, match="'old boats' is not recalled in what the model said"):
        trace(causal, wrong)
    with pytest.raises(UserError, match="no other subject has"):
        trace(causal, facts[0], corruption="replace")
    with pytest.raises(UserError, match="name a --foil"):
        trace(causal, facts[0], metric="logit_difference")
    forced = trace(causal, wrong, any_answer=True)
    assert forced.rows("facts")[0]["forced"]


def test_a_single_fact_is_shown_as_a_text(masked):
    found = trace(masked, make_facts()[0], at=("first",))
    first, *others = found.section.blocks
    assert isinstance(first, Finding) and first.outcome == "too few"
    figure = next(block for block in others if isinstance(block, Figure))
    assert figure.name == "texts"
    (panels,) = figure.views.values()
    heads = [panel.title.partition(":")[0] for panel in panels]
    assert heads == [labels.PARTS[part] for part in ("resid", "mlp", "attn")]
    text = show(found)
    assert ": red boats, " in text and "Ada*" in text and "→ ░" in text and "█" in text


def test_a_run_in_which_nothing_is_recalled(causal, tmp_path):
    wrong = [make_wrong()[-1], replace(make_wrong()[-1], fact_id="another")]
    for _ in range(2):  # also when it is resumed
        with pytest.raises(NotMeasuredError, match="is recalled by causal,") as raised:
            trace(causal, wrong, out=tmp_path)
        assert raised.value.code == "none recalled"
    with pytest.raises(UserError, match="None of the facts that were asked is recalled"):
        _ = read_result(tmp_path).summary
    with pytest.raises(UserError, match="no fact could be traced .no subject as long"):
        trace(causal, make_facts()[:2], corruption="replace")


def test_joint_cells_windows_and_metrics_side_by_side(masked, causal, tmp_path):
    """Of one run: several positions at once, single tokens, narrow windows, three metrics."""
    metrics = ("p", "logp_per_token", "logit_difference")
    found = trace(
        *(masked, causal, make_facts()),
        out=tmp_path / "run",
        metric="logp",
        also=metrics,
        together=True,
        windows=(1,),
        at=("first",),
        corruption="mean",
    )
    rows = found.rows()
    own = [row for row in rows if (row["fact"], row["phrasing"]) == ("fact-0", 0)]
    for name, model in (("masked", masked), ("causal", causal)):
        results = [row for row in own if row["model"] == name and row["control"] == RESULT]
        parts = {row["part"] for row in results if row["layer"] >= 0}
        assert parts == {"resid", "mlp", "attn", "mlp@1", "attn@1"}
        cells = {(row["part"], row["layer"], row["role"]): row for row in results}
        (clean,) = [row for row in results if row["part"] == "clean"]
        # The subject's embeddings are all that was hidden; above the last layer it is the answer's.
        last = model.net.config.layers - 1
        assert cells["resid", last, "whole answer"]["value"] == pytest.approx(
            clean["value"], abs=1e-4
        )
        assert np.exp(clean["value"]) == pytest.approx(clean["p"], rel=1e-5)
        assert clean["logp_per_token"] == pytest.approx(clean["value"] / 2, rel=1e-5)
        # A single token's own row gives back all of that token.
        single = [row for row in own if row["model"] == name and row["control"] == ONE_TOKEN]
        ends = [row["value"] for row in single if row["part"] == "clean"]
        assert len(ends) == 2 and sum(ends) == pytest.approx(clean["value"], rel=1e-4)
        top = [row for row in single if row["layer"] == last and row["part"] == "resid"]
        rows_read = [row["value"] for row in top if row["token"] >= 0]
        assert rows_read == pytest.approx(ends, abs=1e-4)
    text = show(read_result(found.folder))
    assert "all positions of the answer" in text and "single tokens" in text
    assert all(labels.METRICS[metric] in text for metric in metrics)
    assert {row["metric"] for row in found.summary["further"]} == set(metrics)
    windows = {row["part"]: (row["first"], row["last"]) for row in found.summary["averages"]
               if row["layer"] == 1}  # fmt: skip
    assert windows["mlp"] == (0, 1) and windows["mlp@1"] == (1, 1)
