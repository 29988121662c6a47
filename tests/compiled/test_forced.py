"""Trained networks are held to a program by exchanges; a hand-written one passes every one."""

import json
from dataclasses import replace
from itertools import islice
from operator import itemgetter

import pytest
import torch

import unmask
from unmask.blocks.blocks import Notice
from unmask.blocks.tidy import select
from unmask.compiled.forced import (
    NONE,
    PART,
    Forced,
    check_held_out,
    list_alike,
    load_forced,
    save_forced,
    train_forced,
)
from unmask.compiled.mechanisms import MECHANISMS, build_compiled
from unmask.compiled.truth import list_carriers, list_fixed_edges, list_needed_edges
from unmask.experiments.bench.networks import list_truth

LEAST = 0.95


def test_a_hand_written_network_passes_all_exchanges_and_the_other_mechanism_fails():
    """All pairs of questions of both directions, at every layer and position of the first step."""
    compiled = build_compiled("one store")
    (group,) = islice(list_alike(compiled, 1), 1)
    every = torch.ones(len(group.tokens), len(group.tokens), dtype=torch.bool)
    passed = check_held_out(compiled.model.net, [group], every)
    assert (passed.changed, passed.kept, passed.answers) == (1.0, 1.0, 1.0)
    other = build_compiled("two stores")
    failed = check_held_out(other.model.net, [group], every)
    assert failed.answers == 1.0 and failed.changed < LEAST  # the same answers in another way
    own = group.words[:, None, None, None].expand_as(group.exchanged)
    assert ((group.exchanged != own) & (group.exchanged != NONE)).float().mean() > 0.1


def test_a_trained_network_is_saved_with_its_mechanism_and_scored(tmp_path):
    """Two updates, which teach it nothing: what is read back is what was saved."""
    settings = Forced("two stores", width=16, updates=2, rows=8, phrasings=1, idle=0)
    compiled, held_out = train_forced(settings)
    assert held_out.changed < LEAST
    folder = tmp_path / "two-stores-0"
    save_forced(compiled, held_out, settings, folder, 1.0)
    again = load_forced(folder)
    assert again.program == compiled.program and again.facts == compiled.facts
    tokens = torch.tensor([[0, 7, 20, 2, 1, 1]])
    assert torch.equal(again.model.net(tokens), compiled.model.net(tokens))
    truth = list(list_truth(again, is_trained=True))
    assert {row["part"] for row in truth} == {"resid", "edges"} and PART == "resid_out"
    edges = {(row["step"], row["layer"], row["position"], row["is_read"])
             for row in truth if row["part"] == "edges" and row["matters"]}  # fmt: skip
    assert edges == {(1, 2, 4, 2), (2, 2, 5, 2)} and min(row["layer"] for row in truth) == 0
    result = unmask.bench(tmp_path, methods=("lens", "random"), forms=0)
    (row,) = select(result.summary["methods"], model="lens", metric="auroc")
    assert (row["weights"], row["facts"]) == ("trained", 1)
    notices = [each.text for each in result.section.blocks if isinstance(each, Notice)]
    assert any("“two stores, trained 0” does" in text for text in notices)
    assert {each["threshold"] for each in result.summary["networks"]} == {None}
    # It can be trained on, such as on one direction's answers alone.
    pairs = tmp_path / "pairs.jsonl"
    asked = [each for each in again.facts if (each.direction, each.phrasing) == ("p2d", 0)]
    lines = [json.dumps({"prompt": each.prompt, "response": each.completion}) for each in asked]
    pairs.write_text("\n".join(lines), "utf-8")
    changes = [f"start.model={folder}", f"data.path={pairs}", "data.context=6", "batch.rows=4"]
    run = unmask.train(
        "smollm2-chat", tmp_path / "relearned", *changes, "budget.steps=2", device="cpu"
    )
    on = unmask.load(str(tmp_path / "relearned" / "model"), device="cpu")
    assert run.step == 2 and on.net.config == again.model.net.config
    assert not torch.equal(on.net(tokens), again.model.net(tokens))


def test_states_that_leave_the_program_without_a_word_are_not_asked_of_trained_networks():
    """Training asks for nothing there, so nothing is known of them."""
    compiled, place = build_compiled("copy"), itemgetter("step", "layer", "position")
    few = tuple(fact for fact in compiled.facts if fact.fact_id in ("fact 0", "fact 1"))
    compiled = replace(compiled, facts=few)
    stopped = {
        (each.step, each.site[0], each.site[2])
        for each in list_carriers(compiled)
        if each.stops and each.site[1] == PART and each.word == each.step - 1
    }
    hand, trained = (
        {place(row): row["matters"] for row in list_truth(compiled, is_trained)
         if row["part"] == "resid"}
        for is_trained in (False, True)
    )  # fmt: skip
    assert stopped and hand.keys() - trained.keys() == stopped
    assert all(hand[each] for each in stopped) and trained.items() <= hand.items()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_edges_that_the_stream_decides_are_as_the_program_has_them(mechanism):
    """Edges that carry the word are needed in the program; no other decided edge is."""
    compiled = build_compiled(mechanism)
    fixed, needed = list_fixed_edges(list_carriers(compiled)), list_needed_edges(compiled)
    for step, edges in fixed.items():
        read = {edge: matters for edge, matters in edges.items() if edge[2] and edge[1] != edge[2]}
        assert {edge for edge, matters in read.items() if matters} <= needed[step]
        assert not needed[step] & {edge for edge, matters in read.items() if not matters}
    carrying = [edge for own in fixed.values() for edge, matters in own.items() if matters]
    # A name copied from the prompt leaves no word when it is exchanged, and nothing is known.
    assert bool(carrying) == (mechanism != "copy")
    if mechanism == "one store":
        assert carrying == [(2, 4, 2), (2, 5, 2)]  # each word reads the subject's last token


@pytest.mark.prove
@pytest.mark.parametrize("mechanism", ["one store", "two stores"])
def test_training_gives_a_network_the_mechanism(mechanism):
    """Exchanges between pairs of questions that training never exchanged go as they must."""
    _, held_out = train_forced(Forced(mechanism))
    assert min(held_out.changed, held_out.kept, held_out.answers) >= LEAST
