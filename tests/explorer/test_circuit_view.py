"""The circuit of the shown fact is that of `unmask circuit`: exact nodes, exact edges, by step."""

import pytest
import torch

from tests.explorer.pages import ANSWER, PROMPT, SUBJECT
from tests.explorer.test_views import run_code, stream
from unmask.data.corpus import TESTS
from unmask.data.facts import tokenize_fact
from unmask.explorer.circuits import LEAST_SHOWN
from unmask.explorer.interventions import make_page_fact
from unmask.explorer.session import read_shipped_corpus
from unmask.tracing.circuits import Wiring
from unmask.tracing.clean_run import generate
from unmask.tracing.contrasts import contrast_step, list_partners
from unmask.tracing.settings import Tracing

SPAN = [PROMPT.index(SUBJECT), PROMPT.index(SUBJECT) + len(SUBJECT)]
BODY = {"model": "model", "prompt": PROMPT, "subject": SPAN, "answer": ANSWER, "edges": 12}


@pytest.fixture(scope="module")
def events(client):
    return stream(client, "circuit", BODY)


@pytest.fixture(scope="module")
def other(explorer):
    """The fact of the corpus that stands beside the question."""
    model = explorer.models["model"]
    corpus = read_shipped_corpus(model)
    splits = [corpus[split] for split in TESTS]
    facts, own = next((all_, fact) for all_ in splits for fact in all_ if fact.prompt == PROMPT)
    clean = generate(model, make_page_fact(PROMPT, SPAN, ANSWER), Tracing(steps=16))
    tokens = list_partners(clean, own, facts)[0]
    texts = (each for each in facts if tokenize_fact(each, model.tokenizer) == tokens)
    return clean, tokens, next(texts)


def test_nodes_and_edges_are_exact(events, other):
    clean, tokens, _ = other
    steps = [event for name, event in events if name == "step"]
    assert [each["step"] for each in steps] == [clean.t1, clean.t2] == events[0][1]["steps"]
    for each in steps:
        wiring = Wiring(contrast_step(clean, each["step"], tokens))
        between = wiring.ends()[0] - wiring.ends()[1]
        assert each["clean"] - each["other"] == pytest.approx(between, rel=1e-4)
        lost = wiring.measure_nodes() / between
        assert len(each["nodes"]) == int((lost.abs() >= LEAST_SHOWN).sum()) > 3
        for node in each["nodes"]:
            assert node["effect"] == pytest.approx(float(lost[find(wiring, node)]), abs=1e-4)
        edges = {(*find(wiring, e["to"]), *find(wiring, e["from"])): e for e in each["edges"]}
        assert len(edges) == len(each["edges"]) > 3
        chosen = torch.zeros_like(wiring.edges)
        for at in edges:
            chosen[at] = True
        exact = wiring.measure_edges(chosen) / between
        for at, edge in edges.items():
            assert edge["effect"] == pytest.approx(float(exact[at]), abs=1e-4)
        sizes = [abs(edge["effect"]) for edge in each["edges"]]
        assert sizes == sorted(sizes, reverse=True)


def find(wiring, node):
    """The number of a component and of a role, by what the page is sent."""
    own = {name: node[name] for name in ("layer", "part", "head")}
    (number,) = [i for i, each in enumerate(wiring.components) if vars(each) == own]
    return number, wiring.names.index(node["role"])


@pytest.mark.prove
def test_the_copied_code_and_a_question_given_by_hand_give_the_same(client, events, other):
    steps = [event for name, event in events if name == "step"]
    assert run_code(client, "circuit", BODY)["answer"] == steps
    _, _, fact = other
    given = {"other_subject": fact.subject, "other_answer": fact.object}
    again = stream(client, "circuit", BODY | given)
    assert [event for name, event in again if name == "step"] == steps


def test_what_cannot_stand_beside_a_question_is_said(client):
    for given, words in (
        ({"other_subject": "Mira", "other_answer": "Bo"}, "expected as many"),
        ({"other_subject": "Mira"}, "the other question is not whole"),
        ({"other_subject": "Mira", "other_answer": ANSWER}, "the other question is not whole"),
        ({"prompt": f"{PROMPT} and", "answer": "Bo"}, "no other question of the same shape"),
    ):
        (error,) = [
            data["error"]
            for name, data in stream(client, "circuit", BODY | given)
            if name == "error"
        ]
        assert words in error


def test_a_question_that_is_not_told_from_the_other_has_no_circuit(client):
    """Reversed, the twin knows nothing: what is little would be shares of nothing."""
    steps = [
        event
        for name, event in stream(client, "circuit", BODY | {"model": "twin"})
        if name == "step"
    ]
    first = steps[0]
    assert first["clean"] - first["other"] < 1 and first["nodes"] == first["edges"] == []
    assert torch.isfinite(torch.tensor([each["clean"] for each in steps])).all()
