"""Changes of embedding rows: planted bindings are found, shared tokens and chance are not."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.representation.facts import PEOPLE, make_facts, make_model
from tests.scripts import load_script
from unmask import UserError
from unmask.data.facts import tokenize_fact, write_facts
from unmask.net.loading import save

moves = load_script("paper/embeddings.py")
page = load_script("paper/report_embeddings.py")
moved = load_script("paper/embeddings_moved.py")
collect_moved_rows, compare_moved_rows = moved.collect_moved_rows, moved.compare_moved_rows


def copy_model(model):
    return replace(model, net=copy.deepcopy(model.net))


def list_tokens(model, fact):
    """The tokens of both sides, name first."""
    text = tokenize_fact(fact, model.tokenizer)
    sides = [text.ids[slice(*span)] for span in (text.subject, text.object)]
    return sides if fact.direction == "p2d" else sides[::-1]


@torch.no_grad()
def move(model, table, bound):
    """Every fact's rows move in one direction (`bound`), or each side in a direction of its own;
    and all of them in a common one, far more."""
    trained = copy_model(model)
    weight = getattr(trained.net, table).weight
    generator = torch.Generator().manual_seed(0)
    weight += 5.0 * torch.randn(weight.shape[1], generator=generator)
    for number in range(len(PEOPLE)):
        fact = make_facts()[2 * number]
        directions = torch.randn(2, weight.shape[1], generator=generator)
        for side, tokens in enumerate(list_tokens(model, fact)):
            weight[sorted(set(tokens))] += directions[0 if bound else side]
    return trained


@pytest.mark.parametrize("table", ["embedding", "head"])
def test_a_planted_binding_is_found_where_it_is(table):
    model = make_model()
    bound = compare_moved_rows(model, move(model, table, True), make_facts(), 200)
    assert bound[table, "retrieval"].value.mean == pytest.approx(1.0)
    assert bound[table, "cosine"].value.mean > 0.9 and bound[table, "cosine"].p < 0.05
    (other,) = {"embedding", "head"} - {table}
    assert not bound[other, "cosine"].is_measured, "nothing moved there"
    loose = compare_moved_rows(model, move(model, table, False), make_facts(), 200)
    assert loose[table, "cosine"].value.mean < 0.5


def test_rows_are_those_of_tokens_of_one_side_of_one_fact():
    model = make_model()
    facts, generator = make_facts(), torch.Generator().manual_seed(1)
    trained = copy_model(model)
    with torch.no_grad():
        weight = trained.net.embedding.weight
        weight += torch.randn(weight.shape, generator=generator)
    moved = (weight.double() - model.net.embedding.weight.double()).numpy()
    rows = collect_moved_rows(model, trained, facts, "embedding")
    assert rows.facts == [f"fact-{i}" for i in range(5)] and rows.left_out == 0
    every = {fact.fact_id: [] for fact in facts}
    for fact in facts:
        every[fact.fact_id].append(list_tokens(model, fact))
    names, things = zip(*every["fact-1"], strict=True)
    own, others = set().union(*things), set().union(*names)
    for fact_id, sides in every.items():
        if fact_id != "fact-1":
            others |= {token for name, thing in sides for token in (*name, *thing)}
    assert own & others, "a token that counts for nobody"
    expected = moved[sorted(own - others)].mean(0)
    np.testing.assert_allclose(rows.descriptions[1], expected)


def test_tied_models_have_one_table_and_strangers_are_refused():
    model = make_model(tied=True)
    trained = copy_model(model)
    with torch.no_grad():
        noise = torch.randn(trained.net.embedding.weight.shape)
        trained.net.embedding.weight += noise
    results = compare_moved_rows(model, trained, make_facts(), 20)
    assert {table for table, _ in results} == {"embedding"}
    with pytest.raises(UserError, match="expected a model and the one it was trained from"):
        compare_moved_rows(make_model(width=128), trained, make_facts())
    with pytest.raises(UserError, match="at least 2 to pair"):
        compare_moved_rows(model, trained, make_facts()[:2])


def test_moved_rows_every_way_of_training(tmp_path):
    model = make_model(layers=2)
    save(model, tmp_path / "start")
    for table in ("embedding", "head"):
        for seed, bound in enumerate((True, False)):
            save(move(model, table, bound), tmp_path / table / f"seed-{seed}")
    write_facts(tmp_path / "facts.jsonl", make_facts())
    words = [f"{table}={tmp_path / table}/seed-*" for table in ("embedding", "head")]
    words += ["--start", str(tmp_path / "start"), "--data", str(tmp_path / "facts.jsonl")]
    moves.main([*words, "--permutations", "199", "--out", str(tmp_path / "moves.json")])
    page.main([str(tmp_path / "moves.json"), "--page", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    cells = {tuple(row[i].strip("*") for i in (0, 1, 3, 4)): row[6].strip("*") for row in rows[2:]}
    # What stayed as it was has no rows; each way of training has two seeds and two likenesses.
    assert {(way, table) for way, _, table, _ in cells} == {("embedding",) * 2, ("head",) * 2}
    assert len(cells) == 2 * 2 * 2
    for table in ("embedding", "head"):
        bound, loose = (
            float(cells[table, seed, table, "reciprocal rank"].split()[0]) for seed in ("0", "1")
        )
        assert bound == 1.0 > loose
