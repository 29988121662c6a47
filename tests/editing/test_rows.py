"""Edits that share a pass are those put on one by one; where they act; what directions share."""

import numpy as np
import pytest
import torch

from tests.conftest import make_corpus_once
from tests.editing.edits import DENSE, copy_weights, have_changed, make_edit
from tests.representation.facts import make_facts, make_model
from unmask import UserError
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.data.sources import OWN
from unmask.editing.editor import edit_each
from unmask.editing.outcomes import Examination
from unmask.editing.requests import find_recalled, list_other_texts, make_requests
from unmask.editing.rows import RowEdits
from unmask.editing.sharing import compare_directions, list_prompts, probe_directions, read_shares

TOKENS = torch.randint(0, 200, (4, 12), generator=torch.Generator().manual_seed(1))
SMALL = Corpus("own", {OWN: make_facts()})
QUICK = {"search_steps": 4, "prefixes": 1, "length": 32, "lr": 0.1}


@pytest.mark.parametrize(("name", "kind"), DENSE)
def test_rows_with_their_own_edits_are_edits_put_on_one_by_one(name, kind):
    """Edits of one layer and of several, of one fact and of two, in any order of rows."""
    model = make_model(name, kind)
    edits = [make_edit(model, 1, facts=1), make_edit(model, 0, 2, seed=1), make_edit(model, 1)]
    weights, owners = copy_weights(model), [2, 0, 1, 0]
    together = RowEdits(model, edits)
    with together.on(owners):
        logits = model.logits(TOKENS)
    assert not have_changed(model, weights), "no weight is written"
    shares = together.shares(TOKENS, owners)
    for row, owner in enumerate(owners):
        with edits[owner].on(model):
            alone = model.logits(TOKENS[row : row + 1])
        torch.testing.assert_close(logits[row : row + 1], alone, rtol=1e-3, atol=1e-4)
        own = edits[owner].shares(model, TOKENS[row : row + 1])[edits[owner].layers[-1]].sum(-1)
        torch.testing.assert_close(shares[row], own[0], rtol=1e-3, atol=1e-4)
    changed = make_model(name, kind)
    with torch.no_grad():
        changed.net.block(1).mlp.down.weight[0, 0] += 1
    with pytest.raises(UserError, match="made for another network"):
        RowEdits(changed, edits)


@pytest.fixture(scope="module", params=["masked", "causal"])
def edited(request):
    """An examination of three requests, and their edits."""
    model = make_model(kind=request.param)
    requests = make_requests(SMALL, (), 3, "swap", paraphrases=0, neighbours=1)
    examination = Examination(model, requests, steps=3, length=32)
    facts, objects = zip(*((each.fact, each.object) for each in requests), strict=True)
    edits = list(enumerate(edit_each(model, facts, objects, 1, **QUICK)))
    return examination, edits


def test_all_edits_are_asked_in_one_batch_with_the_same_answers(edited, monkeypatch):
    examination, edits = edited
    apart = examination.ask_each(edits)
    swept = list(examination.sweep(edits, (2,), (30,)))
    calls = []
    genuine = type(examination.model).logits
    monkeypatch.setattr(
        type(examination.model),
        "logits",
        lambda self, *args, **more: calls.append(1) or genuine(self, *args, **more),
    )
    monkeypatch.setattr(examination, "is_together", True)
    together = examination.ask_each(edits)
    one = len(calls)
    examination.ask_each(edits[:1])
    assert len(calls) - one >= one / 2, "three edits cost hardly more passes than one"
    for own, others in zip(together, apart, strict=True):
        for reply, other in zip(own, others, strict=True):
            assert reply.nll == pytest.approx(other.nll, abs=1e-3) and reply.rank == other.rank
            assert reply.text == other.text
            assert reply.states is None or reply.states.equal(other.states)
    assert list(examination.sweep(edits, (2,), (30,))) == swept
    monkeypatch.undo()
    assert examination.ask_clean([0, 1]) == examination.ask_clean([0, 1])


def test_shares_are_read_in_given_and_own_states(edited, monkeypatch):
    """1 where the edit was written; over steps constant at the subject of the causal network."""
    examination, edits = edited
    is_causal = not examination.model.paradigm.sees_later
    replies = examination.ask_each(edits)
    rows = list(read_shares(examination, edits, replies))
    monkeypatch.setattr(examination, "is_together", True)
    for (at, place, row), (*_, other) in zip(
        rows, read_shares(examination, edits, replies), strict=True
    ):
        assert other["share"] == pytest.approx(row["share"], abs=1e-4)
        prompt, answer = examination.cut(
            examination.encode(examination.requests[at].questions[place])
        )
        assert row["tokens"] == len(answer)
        masks = 32 - len(prompt) - row["step"] if row["states"] == "given" else 1
        assert (row["share_masks"] is None) == (is_causal or not masks) or row["states"] == "own"
        assert row["share_words"] >= 0
    for at in range(len(edits)):
        own = [row for i, place, row in rows if i == at and place == 0]
        assert own[0]["states"] == "given" and own[0]["step"] == 0
        assert own[0]["share"] == pytest.approx(1.0, abs=1e-4), "written with this very state"
        assert {row["states"] for row in own} == {"given", "own"}
        spread = max(row["share"] for row in own) - min(row["share"] for row in own)
        assert (spread < 1e-4) == is_causal


def test_the_cosine_of_directions_knows_the_pairs(edited):
    """By hand: outputs of the MLP at both subjects, centred, matched minus unmatched."""
    examination, _ = edited
    asked = [request.questions for request in examination.requests]
    back = [[each for each in own if each.role == "reverse old"] for own in asked]
    numbers = [i for i, own in enumerate(back) if own]
    by_way: dict[str, list[int]] = {}
    for i in numbers:
        by_way.setdefault(examination.requests[i].fact.direction, []).append(i)
    cosines = compare_directions(examination, 1)
    model = examination.model

    def read(question):
        tokens = examination.encode(question)
        prompt = tokens.ids[: tokens.prompt_length]
        fill = prompt[-1] if model.mask_id is None else model.mask_id
        row = torch.tensor([prompt + [fill] * (32 - len(prompt))])
        with model.net.capture("layers.1.mlp_out") as taken:
            model.logits(row)
        return taken["layers.1.mlp_out"][0, tokens.subject[1] - 1].double().numpy()

    for own in by_way.values():
        if len(own) < 3:
            assert all(cosines[i] is None for i in own)
            continue
        sides = [
            np.stack([read(asked[i][0]) for i in own]),
            np.stack([read(back[i][0]) for i in own]),
        ]
        sides = [side - side.mean(0) for side in sides]
        one, other = (side / np.linalg.norm(side, axis=1)[:, None] for side in sides)
        table = one @ other.T
        for at, i in enumerate(own):
            rest = (table[at].sum() - table[at, at]) / (len(own) - 1)
            assert cosines[i] == pytest.approx(table[at, at] - rest, abs=1e-5)


def test_probes_find_what_both_directions_hold():
    """Names that stand in both directions' subjects are told; other words are not."""

    def make(fact, way, phrasing, subject):
        begin = ["They say", "We hear", "I know"][phrasing]
        return Fact.of(
            subject,
            "boats",
            f"{begin} {{}} has",
            direction=way,
            fact_id=f"fact-{fact}",
            phrasing=phrasing,
        )

    names = ["Ann", "Dan", "Eve", "Bob"]
    others = ["red wax", "tin drums", "old bees", "tall kites"]
    model = make_model()

    def probe(words):
        facts = [
            make(fact, way, phrasing, subjects[fact])
            for way, subjects in (("p2d", names), ("d2p", words))
            for fact in range(4)
            for phrasing in range(3)
        ]
        found = probe_directions(model, facts, 1, 32)
        assert set(found) == {(f"fact-{i}", way) for i in range(4) for way in ("p2d", "d2p")}
        return np.mean(list(found.values()))

    same, strange = probe(names), probe(others)
    assert same > 0 and same > strange + 1
    assert probe_directions(model, [make(0, "p2d", 0, "Ann")], 1, 32) == {}


def test_recalled_facts_are_those_that_the_model_says():
    import unmask

    corpus = make_corpus_once(30)
    model = unmask.load("reversal-mdm", device="cpu")
    few = Corpus("few", {"p2d_same": corpus["p2d_same"][:20], "p2d_reverse": corpus["p2d_reverse"]})
    known = find_recalled(model, few, ("p2d",), length=40)
    asked = [corpus["p2d_same"][0], corpus["p2d_same"][10]]
    texts = unmask.sample(model, [fact.prompt for fact in asked], steps=8, length=40).texts
    said = {fact.fact_id for fact, text in zip(asked, texts, strict=True) if fact.object in text}
    assert known == said and known <= {"p2d-000", "p2d-001"}


def test_requests_skip_facts_and_take_some_only():
    corpus = make_corpus_once(6)
    every = make_requests(corpus, ("p2d",), 6)
    later = make_requests(corpus, ("p2d",), 6, skip=4)
    assert [each.fact.fact_id for each in later] == [each.fact.fact_id for each in every[4:]]
    names = {every[1].fact.fact_id, every[4].fact.fact_id}
    some = make_requests(corpus, ("p2d",), 6, only=names)
    assert {each.fact.fact_id for each in some} == names
    assert [each.fact.direction for each in some] == ["p2d", "d2p"], "the two ways in turn"
    assert len(list_prompts(corpus, ("p2d",), sorted(names))) == 2 * 2 * 6


def test_other_texts_speak_of_nobody_in_training():
    corpus = make_corpus_once(6)
    known = " ".join(corpus.training_texts())
    texts = list_other_texts(corpus, 5, 0)
    assert len(texts) == 5 and not any(text in known for text in texts)
    assert list_other_texts(SMALL, 5, 0) == []
