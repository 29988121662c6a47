"""paths: rows that are what the call gives, effects by fact, controls, heads, the section."""

from typing import Any

import numpy as np
import pytest

import unmask
from tests.measures.test_trace import make_wrong
from tests.tracing.learned import LENGTH, make_facts
from unmask.base.config import SettingsError
from unmask.blocks.tidy import distinct, select
from unmask.measures.paths import CLEAN, HIDDEN, MEASURE
from unmask.tracing.path_cells import EVERY_WAY, Bands

USUAL: dict[str, Any] = {"steps": 6, "length": LENGTH, "bands": 2, "device": "cpu"}
FACTS = 2
"""That the masked model recalls."""


@pytest.fixture(scope="module")
def done(masked, causal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths") / "run"
    return MEASURE(masked, causal, make_wrong(), out=folder, **USUAL)


def test_bands_hold_each_layer_once():
    bands = Bands.divide(30, 6)
    assert bands.sent == [-1, 4, 9, 14, 19, 24]
    assert bands.list_above(19) == [(20, 24), (25, 29), (20, 29)]
    assert bands.list_above(24) == [(25, 29)]
    assert Bands.divide(3, 6).edges == (0, 1, 2, 3)


def test_rows_are_what_the_call_gives(done, masked):
    fact = make_facts()[0]
    last = masked.net.config.layers - 1
    rows = select(done.rows(), model="masked", fact="fact-0", phrasing=0, control="none")
    sent = sorted({row["sent"] for row in rows if row["sender"] == "subject"})
    assert sent[0] == -1 and len(sent) == 2
    receivers = [
        "everything",
        [("answer", layer, "attn") for layer in range(sent[1] + 1, last + 1)],
    ]
    receivers.append(("answer", last, "attn_z", 1))
    paths = unmask.patch_paths(
        masked, fact, ("subject", sent[1], "resid"), receivers, steps=6, length=LENGTH,
        corruption="mean", joint="chain_rule",
    )  # fmt: skip
    own = select(rows, sender="subject", sent=sent[1])
    values = [
        *select(own, receiver=EVERY_WAY),
        *select(own, receiver="answer", head=-1, last=last),
        *select(own, receiver="answer", head=1, first=last),
    ]
    expected = paths.values("p").tolist()
    assert [row["p"] for row in values] == pytest.approx(expected, rel=1e-4)
    (clean,), (hidden,) = (select(rows, sender=name) for name in (CLEAN, HIDDEN))
    assert clean["p"] > hidden["p"]
    # Sending the embeddings every way is the clean run.
    (whole,) = select(rows, sender="subject", sent=-1, receiver=EVERY_WAY)
    assert whole["p"] == pytest.approx(clean["p"], rel=1e-4)
    # A causal model has no masks to send from, or to read by.
    others = select(done.rows(), model="causal")
    assert "masks" in distinct(rows, "sender") and "masks" not in distinct(others, "sender")
    assert "masks" not in distinct(others, "receiver")


def test_effects_and_controls_are_by_fact(done, masked):
    summary, last = done.summary, masked.net.config.layers - 1
    (every,) = select(
        summary["effects"], model="masked", sender="subject", sent=-1, receiver=EVERY_WAY,
        control="none", metric="p",
    )  # fmt: skip
    assert every["share"] == pytest.approx(1.0, abs=1e-3) and every["facts"] == FACTS
    rows = {
        control: {
            row["fact"]: row["logp_per_token"]
            for row in select(
                done.rows(), model="masked", sender="subject", sent=-1, receiver="answer", head=-1,
                control=control, first=0, last=last, phrasing=0,
            )
        }
        for control in ("none", "other fact", "random direction")
    }  # fmt: skip
    beyond = [
        value - max(rows[control][fact] for control in ("other fact", "random direction"))
        for fact, value in rows["none"].items()
    ]
    (above,) = select(
        summary["above"], model="masked", sender="subject", sent=-1, receiver="answer", first=0,
        last=last,
    )  # fmt: skip
    assert above["mean"] == pytest.approx(float(np.mean(beyond)), abs=1e-5)
    assert {row["sender"] for row in summary["above"]} == {"subject"}
    counts = {row["model"]: row for row in summary["counts"]}
    assert counts["causal"]["kept"] < counts["causal"]["prompts"]


def test_heads_are_chosen_on_the_other_half(done):
    heads = select(done.summary["heads"], model="masked")
    assert heads and all(row["head"] >= 0 and row["first"] == row["last"] for row in heads)
    assert {row["chosen"] for row in heads} <= {1, 2}
    assert all(2 * row["facts"] == FACTS * row["chosen"] for row in heads)


def test_what_is_refused(causal):
    with pytest.raises(SettingsError, match="'senders'"):
        MEASURE(causal, make_facts(), senders=("subject", "subject"))
