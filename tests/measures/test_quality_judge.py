"""Judges that are kin to what they judge are refused, as far as records tell."""

import json
import shutil
from pathlib import Path

import pytest

import unmask
from tests.conftest import make_model
from tests.measures.asking import show
from unmask.base.errors import UserError
from unmask.measures.quality import MEASURE as QUALITY

SMALL = {"texts": 2, "length": 10, "steps": (2,), "samplers": ("random",), "device": "cpu"}


def train(folder, changes=(), kind="ar"):
    """A training run of two steps; where its model lies."""
    recipe = f"reversal-{kind}"
    small = ["network.preset=tiny", "network.changes={}", "budget.steps=2", "batch.rows=4"]
    small += ["cadence.evaluate=0", "cadence.facts=0", "cadence.samples=0", "data.facts=2"]
    unmask.train(recipe, folder, *small, *changes, device="cpu")
    return str(folder / "model")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs from nothing; one on from the first; two on from that; one that read other text."""
    folder = tmp_path_factory.mktemp("trained")
    runs = {"first": train(folder / "first"), "other": train(folder / "other", ["seed=7"])}
    runs["child"] = train(folder / "child", [f"start.model={runs['first']}"])
    start = f"start.model={runs['child']}"
    runs["grandchild"] = train(folder / "grandchild", [start])
    runs["opened"] = train(folder / "opened", [start, "seed=5"], kind="mdm")
    runs["apart"] = train(folder / "apart", ["data.seed=9"])
    return runs


@pytest.mark.parametrize(
    ("model", "judge"),
    [
        ("first", "first"),
        ("opened", "child"),
        ("opened", "first"),
        ("first", "grandchild"),
        ("opened", "grandchild"),
    ],
)
def test_a_judge_of_the_lineage_is_refused(model, judge, trained, texts, tmp_path):
    how = f"{judge}/model and .*{model}/model are one model, or were trained from the other or"
    with pytest.raises(UserError, match=how):
        QUALITY(trained[model], data=texts, judge=trained[judge], **SMALL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_copy_of_the_judge_is_refused_as_well(judge, texts, tmp_path):
    copy = shutil.copytree(judge, tmp_path / "copy")
    with pytest.raises(UserError, match="are one model, or were trained"):
        QUALITY(str(copy), data=texts, judge=judge, **SMALL)


def test_the_page_says_what_records_tell_of_the_judge(trained, judge, texts, tmp_path):
    how = SMALL | {"data": texts}
    told = "Records of their trainings show that no model stems from it."
    same, unknown = "was trained on the same text as", "No record tells whether"
    for model, by, expected in (
        (trained["opened"], trained["other"], (True, True)),
        (trained["opened"], trained["apart"], (True, False)),
        (trained["opened"], judge, (False, False)),
        ("reversal-mdm", "reversal-ar", (True, True)),
        (make_model(), trained["apart"], (False, False)),
    ):
        result = QUALITY(model, judge=by, **how)
        (row,) = result.summary["judged"]
        assert (row["is_apart"], row["shares_text"]) == expected
        text = show(result)
        assert [told in text, same in text, unknown in text] == [*expected, not expected[0]]
    # A start that is gone, or holds other weights by now, tells no more than its digest.
    moved = shutil.copytree(Path(trained["child"]).parent, tmp_path / "moved")
    record = json.loads((moved / "run.json").read_text())
    record["settings"]["start"]["model"] = trained["other"]
    (moved / "run.json").write_text(json.dumps(record))
    (row,) = QUALITY(str(moved / "model"), judge=trained["apart"], **how).summary["judged"]
    assert not row["is_apart"]
    with pytest.raises(UserError, match="are one model, or were trained"):
        QUALITY(str(moved / "model"), judge=trained["first"], **how)
