"""Requests and what is asked about them; outcomes with an edit on, which leave nothing behind."""

import json

import pytest

from tests.conftest import make_corpus_once
from tests.editing.edits import copy_weights, have_changed
from tests.representation.facts import make_facts, make_model
from unmask import UserError
from unmask.data.corpus import Corpus
from unmask.data.sources import OWN
from unmask.editing.editor import edit_each, give_object
from unmask.editing.outcomes import Examination
from unmask.editing.requests import give_subject, make_requests, read_requests

CORPUS = make_corpus_once(6)
SMALL = Corpus("own", {OWN: make_facts()})
JUDGED = ("new", "old", "neighbour")
QUICK = {"search_steps": 4, "prefixes": 1, "length": 32, "lr": 0.1}


@pytest.fixture(scope="module")
def requests():
    return make_requests(CORPUS, ("p2d", "d2p", "both"), 4)


def test_fresh_objects_are_in_no_training_text(requests):
    known = " ".join(CORPUS.training_texts()).lower()
    assert len(requests) == 12 and [each.group for each in requests[::4]] == ["p2d", "d2p", "both"]
    for request in requests:
        assert request.object.lower() not in known and request.fact.object.lower() in known
    ways = [request.fact.direction for request in requests]
    assert ways == ["p2d", "d2p"] * 2 + ["d2p", "p2d"] * 2 + ["p2d", "d2p"] * 2


def test_swapped_objects_are_another_facts(requests):
    swapped = make_requests(CORPUS, ("p2d",), 4, "swap")
    owned = {fact.object for split in CORPUS.splits.values() for fact in split}
    for request, fresh in zip(swapped, requests, strict=False):
        assert request.fact == fresh.fact and request.object != request.fact.object
        assert request.object in owned and fresh.object not in owned


def test_every_request_is_asked_from_all_sides(requests):
    for request in requests:
        fact, new = request.fact, request.object
        roles = [question.role for question in request.questions]
        assert roles == [
            *("edited", "paraphrase", "paraphrase"),
            *("neighbour", "neighbour", "neighbour", "reverse new", "reverse old"),
            "reverse neighbour",
        ]
        edited, *again = request.questions[:3]
        assert edited.fact.prompt == fact.prompt and new in edited.fact.completion
        assert len({each.fact.prompt for each in (edited, *again)}) == 3
        for each in (edited, *again):
            assert each.fact.object == new and each.rival == fact.object
            assert fact.subject in each.fact.prompt
        for each in request.questions[3:6]:
            assert each.fact.fact_id != fact.fact_id and each.rival == new
            assert each.fact.direction == fact.direction
        forth, back, other = request.questions[6:]
        # A yes-sayer is right on one of both: the subject and its rival change places.
        assert forth.rival == other.fact.object and other.rival.lower() == fact.subject.lower()
        assert forth.rival != other.rival and other.fact.fact_id != fact.fact_id
        begin, end = forth.fact.subject_span
        assert forth.fact.prompt[begin:end].lower() == new.lower()
        assert back.fact.subject.lower() == fact.object.lower()
        for each in (forth, back):
            assert each.fact.object.lower() == fact.subject.lower()
            assert each.fact.object in each.subjects and len(each.subjects) == 6
        # Roles swapped twice are the fact itself.
        again = give_subject(forth.fact, fact.object)
        assert again.prompt == back.fact.prompt


def test_requests_that_cannot_be_made_are_sentences():
    with pytest.raises(UserError, match="use --objects swap .and --moments identity or "):
        make_requests(SMALL, (), 2)
    with pytest.raises(UserError, match="has one fact"):
        make_requests(Corpus("own", {OWN: make_facts()[:1]}), (), 1, "swap")


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_outcomes_compare_before_and_after(kind):
    model = make_model(kind=kind)
    requests = make_requests(SMALL, (), 2, "swap", paraphrases=0, neighbours=1)
    examination = Examination(model, requests, steps=3, length=32)
    weights = copy_weights(model)
    before = [examination.ask(request.questions) for request in requests]
    edits = edit_each(
        model, [each.fact for each in requests], [each.object for each in requests], 1, **QUICK
    )
    for number, (request, edit) in enumerate(zip(requests, edits, strict=True)):
        rows = list(examination.compare(number, edit, before[number]))
        assert not have_changed(model, weights)
        assert [row["role"] for row in rows] == [each.role for each in request.questions]
        first = rows[0]
        assert first["gain"] == pytest.approx(first["nll_before"] - first["nll_after"])
        assert first["success_after"] == (first["nll_after"] < first["nll_rival_after"])
        assert first["gain"] > 0, "the search made it likelier"
        assert [row["role"] for row in rows[-3:]] == [f"reverse {name}" for name in JUDGED]
        for row in rows[-3:-1]:
            assert 1 <= row["rank_after"] <= 5 and isinstance(row["said_after"], bool)
        assert [row["success_after"] is None for row in rows[-3:]] == [False, True, False]
        swept = [row for _, row in examination.sweep([(number, edit)], (2,), (30, 8))]
        # On a canvas of 8 nothing fits.
        assert {(row["length"], row["steps"]) for row in swept} == {(32, 2), (30, 3), (30, 2)}
        shorter = Examination(model, requests, steps=2, length=30)
        again = list(shorter.compare(number, edit, shorter.ask(request.questions)))
        for name in ("text_before", "text_after", "said_before", "said_after"):
            expected = [row[name] for row in again if row["text_after"] is not None]
            own = [row for row in swept if (row["length"], row["steps"]) == (30, 2)]
            assert [row[name] for row in own] == expected
        nothing = edit_each(
            model, [request.fact], [request.object], 1, **(QUICK | {"search_steps": 0})
        )[0]
        for row in examination.compare(number, nothing, before[number]):
            assert row["gain"] == pytest.approx(0, abs=1e-6)
            assert row["text_after"] == row["text_before"]
            assert row["rank_after"] == row["rank_before"]


def test_all_questions_are_written_where_that_is_asked():
    requests = make_requests(SMALL, (), 1, "swap", paraphrases=1, neighbours=1)
    for write_all in (False, True):
        examination = Examination(make_model(), requests, 2, 32, write_all)
        replies = dict(zip(requests[0].questions, examination.ask_clean([0])[0], strict=True))
        silent = {question.role for question, reply in replies.items() if reply.text is None}
        assert silent == (set() if write_all else {"neighbour", "reverse neighbour"})


def test_roles_swapped_are_scored_by_the_same_function():
    """The rival's cost is the right answer's, once both change places."""
    model = make_model()
    (request, *_) = make_requests(SMALL, (), 1, "swap", paraphrases=0)
    question = request.questions[0]
    turned = type(question)(
        "edited", give_object(question.fact, question.rival), question.fact.object
    )
    swapped = type(request)(request.fact, request.object, "own", (question, turned))
    one, other = Examination(model, [swapped], length=32).ask(swapped.questions)
    assert one.nll == pytest.approx(other.nll_rival) and one.nll_rival == pytest.approx(other.nll)


def write(path, records):
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


def test_counterfact_bake_and_zsre_are_read(tmp_path):
    rewrite = {"prompt": "The mother tongue of {} is", "subject": "Danielle Darrieux"}
    rewrite |= {"target_new": {"str": "English"}, "target_true": {"str": "French"}}
    counterfact = {
        "case_id": 7,
        "requested_rewrite": rewrite,
        "paraphrase_prompts": ["Shayna does this. Danielle Darrieux, a native"],
        "neighborhood_prompts": ["The native language of Montesquieu is"],
    }
    target = {"str": "Danielle Darrieux"}
    counterfact["reverse_qa"] = {"prompt": "English is spoken by", "target_new": target}
    (request,) = read_requests(write(tmp_path / "a.json", [counterfact]))
    assert request.object == "English" and request.fact.text.endswith("Darrieux is French")
    assert [each.role for each in request.questions] == [
        *("edited", "paraphrase", "neighbour", "reverse new")
    ]
    assert request.questions[2].fact.object == "French" and request.questions[2].rival == "English"
    zsre = {"subject": "Watts Hall", "src": "What university did Watts Hall attend?"}
    zsre |= {"answers": ["Illinois"], "alt": "Michigan", "loc_ans": "the band"}
    zsre |= {"rephrase": "Which school was attended by Watts Hall?"}
    zsre |= {"loc": "nq question: who sang it"}
    (request,) = read_requests(write(tmp_path / "b.json", [zsre]))
    assert request.object == "Michigan" and request.questions[-1].fact.prompt == "who sang it"
    numbered = {"requested_rewrite": {"subject": "Watts Hall", "target_true": {"str": 7}}}
    bad = [([], "no list"), ({}, "no list"), ([{"src": "x"}], "record 0 lacks 'subject'")]
    bad += [([each], "record 0 has another form") for each in (3, zsre | {"answers": []}, numbered)]
    for records, words in bad:
        with pytest.raises(UserError, match=words):
            read_requests(write(tmp_path / "c.json", records))
    (tmp_path / "d.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        read_requests(tmp_path / "d.json")
