"""Exchanged names: what stores by construction do, what bears loss, which runs are void."""

import pytest
import torch

from tests.conftest import build
from unmask.base.errors import UserError
from unmask.base.streams import RowStreams
from unmask.compiled import mechanisms
from unmask.compiled.mechanisms import FACTS, Compiled, build_compiled
from unmask.data.facts import Fact, tokenize_facts
from unmask.data.sources import split_own
from unmask.evaluation.answers import Asked, score_answers
from unmask.experiments.relearn import teaching
from unmask.experiments.relearn.measure import MEASURE as RELEARN
from unmask.experiments.relearn.section import judge, say_void
from unmask.experiments.relearn.swaps import draw_ring, swap_names
from unmask.experiments.relearn.teaching import Taught, Teaching, teach
from unmask.net.model import Model

SMALL = {"facts": 4, "rehearsed": 0, "steps": 2, "order": "left", "length": 9, "groups": ("p2d",)}


def exchange(plain: Compiled, monkeypatch) -> Compiled:
    """The program with the names exchanged that the measure exchanges, in all that it knows."""
    swaps = swap_names(split_own("own", list(plain.facts)), ("p2d",), 4, 0, 1, 0)
    order = mechanisms.draw_people(0)
    names, owned = order[:FACTS], order[FACTS:]
    by_name = {fact.object: fact.fact_id for fact in plain.facts if fact.direction == "d2p"}
    for swap in swaps:
        if swap.old.direction == "d2p" and swap.role == "taught" and swap.is_held:
            giver, number = (
                int(x.split()[1]) for x in (by_name[swap.new.object], swap.old.fact_id)
            )
            owned[giver] = order[FACTS + number]
    monkeypatch.setattr(mechanisms, "draw_people", lambda seed: [*names, *owned])
    return build_compiled(plain.mechanism)


def exchange_one_store_of_two(plain: Compiled, both: Compiled) -> Compiled:
    """Exchange names in the store that is read with descriptions given; the other one stays."""
    net = plain.model.net.state_dict() | {}
    is_taught = (torch.arange(net["layers.1.mlp.up.bias"].numel()) // 2) % 2 == 1
    for name, axis in (("up.weight", 0), ("up.bias", 0), ("down.weight", 1)):
        name = f"layers.1.mlp.{name}"
        new, old = (x.movedim(axis, 0) for x in (both.model.net.state_dict()[name], net[name]))
        net[name] = torch.where(is_taught.view(-1, *[1] * (old.ndim - 1)), new, old).movedim(
            0, axis
        )
    changed = build_compiled("two stores")
    changed.model.net.load_state_dict(net)
    return changed


@pytest.mark.parametrize(
    ("mechanism", "verdict"), [("one store", "follows"), ("two stores", "stays")]
)
def test_what_is_stored_decides_whether_the_other_direction_follows(
    mechanism, verdict, monkeypatch
):
    """One store is exchanged for both directions; of two, the one that was taught."""
    plain = build_compiled(mechanism)
    with monkeypatch.context() as patch:
        both = exchange(plain, patch)
    one = exchange_one_store_of_two(plain, both) if mechanism == "two stores" else both

    def give(model, lines, how, check):
        is_one = len({line.direction for line in lines}) == 1 and lines[0].direction == "d2p"
        changed = (one if is_one else both).model
        return Taught(changed, 1, check(changed))

    monkeypatch.setattr(teaching, "teach", give)
    result = RELEARN(plain.model, data=list(plain.facts), device="cpu", **SMALL)
    (row,) = [row for row in result.summary["verdicts"] if row["taught"] == "names"]
    assert row["learned"] == 1.0 and not row["void"]
    assert row["verdict"] == verdict
    assert row["facts"] == 4
    assert (row["follows"], row["stays"]) == ((1, 0) if verdict == "follows" else (0, 1))
    # Beside teaching both, the log-odds moved all the way, or not at all.
    assert row["moved"] == pytest.approx(1 if verdict == "follows" else 0, abs=0.05)
    drift = [x for x in result.summary["means"] if x["condition"] == "drift"]
    assert {x["mean"] for x in drift if x["metric"] == "moved"} == {0.0}


@pytest.mark.parametrize("number", [2, 3, 10])
def test_nobody_keeps_a_name(number):
    facts = [f"fact {i}" for i in range(number)]
    for seed in range(5):
        ring = draw_ring(facts, seed)
        assert sorted(ring) == sorted(ring.values()) == sorted(facts)
        assert all(fact != other for fact, other in ring.items())
    with pytest.raises(UserError, match="two or more"):
        draw_ring(["alone"], 0)


def test_both_directions_say_the_same_exchange_and_others_are_compared():
    plain = build_compiled("two stores")
    corpus = split_own("own", list(plain.facts))
    swaps = swap_names(corpus, ("p2d",), 10, 10, 1, 0)
    owners = {s.new.object: s.new.subject for s in swaps if s.new.direction == "d2p"}
    assert all(owners[s.new.subject] == s.new.object for s in swaps if s.new.direction == "p2d")
    roles = {role: {s.old.fact_id for s in swaps if s.role == role}
             for role in ("taught", "other", "rehearsed")}  # fmt: skip
    assert [len(own) for own in roles.values()] == [2, 2, 4]
    assert len(set.union(*roles.values())) == FACTS
    assert all((s.new == s.old) == (s.role == "rehearsed") for s in swaps)
    held = {s.old.phrasing for s in swaps if s.is_held}
    assert held.isdisjoint(s.old.phrasing for s in swaps if not s.is_held)
    with pytest.raises(UserError, match="both directions"):
        swap_names(corpus, ("both",), 10, 10, 1, 0)


def test_gates_make_a_run_void():
    fine = {"learned": 0.9, "kept_d2p": 0.9, "kept_p2d": None}
    assert say_void(fine, 0.9, 0.9) == ""
    assert "85 % learned" in say_void(fine | {"learned": 0.85}, 0.9, 0.9)
    assert "80 % kept" in say_void(fine | {"kept_d2p": 0.8}, 0.9, 0.9)
    own = {"model": "m", "kind": "masked", "taught": "names", "steps": 9}
    runs = [own | fine | {"seed": seed, "void": "why" * (seed < 1)} for seed in range(3)]
    asked = own | {
        "split": "p2d_same",
        "phrasing": 0,
        "condition": "one way",
        "moved": 1.0,
        "net": 1.0,
    }
    rows = [
        asked | {"seed": seed, "fact": fact, "was_known": 1.0, "follows": float(seed < 1),
                 "stays": float(seed > 0)}
        for seed in range(3) for fact in "abcdef"
    ]  # fmt: skip
    (row,) = judge(rows, runs)
    assert (row["verdict"], row["runs"], row["void"], row["follows"]) == ("stays", 2, 1, 0.0)
    (row,) = judge(rows, [run | {"void": "why"} for run in runs])
    assert (row["verdict"], row["reason"]) == ("void", "why")
    lost = [x | {"stays": 0.0, "follows": 0.0} for x in rows]
    assert [row["verdict"] for row in judge(lost, runs)] == ["lost"]
    (row,) = judge([x | {"was_known": 0.0} for x in rows], runs)
    assert row["verdict"] == "void"


def make_pupil(kind: str) -> Model:
    tokenizer = mechanisms.make_word_tokenizer(is_causal=kind == "causal")
    return build("tiny", kind, tokenizer, vocab_size=tokenizer.vocab_size, context=12)


LINES = [
    Fact.of(f"Ada {last}", f"Bo {last}", "{} is", completion=f" Bo {last} well")
    for last in mechanisms.LAST
]


@pytest.mark.parametrize(("kind", "before"), [("masked", 0), ("shifted", 1), ("causal", 1)])
def test_only_the_object_bears_loss(kind, before):
    """Its two words at 4 and 5, not the word behind it, nor what closes the line."""
    job = teaching._prepare(make_pupil(kind), LINES, Teaching(1, 4, 1e-3, 1, 0.9, length=9))
    batch = job.examples.parts[""].take(range(4))
    time = torch.full((4,), 0.9999, dtype=torch.float64)
    inputs = job.objective.prepare(batch, time, RowStreams.make(0, range(4)))
    assert sorted({at % 9 for at in inputs.targets.at.tolist()}) == [4 - before, 5 - before]
    assert torch.equal(inputs.targets.tokens.view(4, 2), batch.tokens[:, 4:6])
    assert torch.equal(inputs.batch.tokens[:, :4], batch.tokens[:, :4])


def test_a_copy_is_taught_until_a_check_is_passed():
    model = make_pupil("masked")
    weights = {name: x.clone() for name, x in model.net.state_dict().items()}
    checked = []

    def check(now):
        checked.append(score_answers(now, asked, 9))
        return min(each[0].logp for each in checked[-1])

    asked = [
        Asked(encoded.ids[:4], [encoded.ids[4:6]], [encoded.ids[4:6]])
        for encoded in tokenize_facts(LINES, model.tokenizer)
    ]
    done = teach(model, LINES, Teaching(200, 4, 3e-3, 5, -0.2, length=9), check)
    assert done.steps == 5 * len(checked) < 200
    assert done.learned >= -0.2 > min(each[0].logp for each in checked[0])
    assert all(torch.equal(x, weights[name]) for name, x in model.net.state_dict().items())
