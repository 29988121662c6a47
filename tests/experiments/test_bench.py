"""Methods are scored against what is true of a network, which they do not see."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import unmask
from unmask.base.plugins import find_registry
from unmask.blocks.blocks import Finding, Notice
from unmask.blocks.tidy import select
from unmask.evaluation.statistics import cluster, estimate_mean
from unmask.experiments.bench import scoring
from unmask.experiments.bench.methods import METHODS, NotApplicableError, Probe
from unmask.experiments.bench.networks import list_networks, list_truth
from unmask.experiments.bench.rewrite import Rewrite, write_others
from unmask.experiments.bench.task import Localisation, count_positions, list_localisations

OWN = ("interchange", "cut", "path", "probe", "trace-mask", "attribution", "random")


@pytest.fixture(scope="module")
def result():
    """Two stores, without and with the decoy, each in one form."""
    return unmask.bench(methods=OWN, mechanisms=("two stores", "decoy"), forms=1)


@pytest.fixture(scope="module")
def tables(result):
    return {name: table.to_pylist() for name, table in result.tables.items()}


def read_mean(result, method: str, metric: str = "auroc") -> float:
    (row,) = select(result.summary["methods"], model=method, metric=metric)
    return row["mean"]


def test_exchanges_and_cuts_find_what_matters_and_random_numbers_do_not(result):
    assert read_mean(result, "interchange") == read_mean(result, "cut") == 1.0
    assert 0.3 < read_mean(result, "random") < 0.7
    assert read_mean(result, "trace-mask", "false") == 0.0  # what it finds is there
    assert read_mean(result, "attribution") < read_mean(result, "trace-mask") < 1.0
    # A path finds what carries the fact, not what is needed and alike in all questions.
    assert 0.6 < read_mean(result, "path") < 1.0 and read_mean(result, "path", "false") == 0.0
    first = result.section.blocks[0]
    assert isinstance(first, Finding) and "`interchange` (1.00) find nearly all" in first.text


def test_a_permuted_truth_is_found_by_chance(tables):
    """The best method falls to chance where the truth of each network's places is shuffled."""
    stream, areas, names = np.random.default_rng(0), [], []
    scores = select(tables["bench"], method="interchange")
    for deal in range(60):
        truth = [dict(row) for row in tables["truth"]]
        for network in {row["network"] for row in truth}:
            own = [row for row in truth if row["network"] == network and row["is_read"] is None]
            for row, matters in zip(
                own, stream.permutation([x["matters"] for x in own]), strict=True
            ):
                row["matters"] = bool(matters)
        for row in scoring.score_networks(scores, truth, tables["runs"]):
            areas.append(row["auroc"])
            names.append(f"{row['fact']} {deal}")
    chance = estimate_mean(cluster(areas, names))
    assert chance.low < 0.5 < chance.high and chance.high - chance.low < 0.1


def test_a_probe_reads_the_decoy_which_nothing_uses(result, tables):
    """The subject stands at the verb in the last layer: read there, and of no effect."""
    read = {"network": "decoy 1", "part": "resid", "layer": 2, "position": 3, "step": 1}
    (probe,) = select(tables["bench"], method="probe", **read)
    (exchange,) = select(tables["bench"], method="interchange", **read)
    (true,) = select(tables["truth"], **read)
    assert probe["score"] == 1.0 and abs(exchange["score"]) < 1e-3 and not true["matters"]
    (beside,) = select(tables["bench"], method="probe", **read | {"network": "two stores 1"})
    assert beside["score"] < 0.5
    at_verb = {"method": "probe", "role": "verb"}
    (row,) = select(result.summary["false"], mechanism="decoy", **at_verb)
    (beside,) = select(result.summary["false"], mechanism="two stores", **at_verb)
    assert row["clear"] > 0 == beside["clear"]
    misled = [each.text for each in result.section.blocks if isinstance(each, Notice)]
    assert any("The decoy misleads `probe`" in text for text in misled)
    assert not any("The decoy misleads `interchange`" in text for text in misled)


def test_one_store_and_two_are_told_apart_by_exchanges_not_by_maps_of_places():
    """By what exchanges, lines and edits say of the other direction; traces look alike in both."""
    shared = {}
    for network in list_networks(("one store", "bridge", "two stores", "relay"), forms=1):
        here, there = (list_localisations(network.compiled, verb)[0] for verb in range(2))
        methods = METHODS["interchange"], Probe(), Rewrite()
        shared[network.mechanism] = [method.compare(here, there) for method in methods]
    ones, twos = (
        np.array([shared[name] for name in pair])
        for pair in (("one store", "bridge"), ("two stores", "relay"))
    )
    assert (ones.min(0) > twos.max(0) + 0.2).all()


def test_an_edit_gives_a_key_another_questions_value_and_no_other_key():
    """In the layer of the store the answer follows; where no neuron fires nothing is written."""
    (network,) = list_networks(("two stores",), forms=1)
    task = list_localisations(network.compiled)[0]
    scores, at, store = Rewrite().localise(task)["mlp"], task.subject[1] - 1, 1
    assert scores[at, store] > 0.99 and scores[:, store].sum() == scores[at, store]
    (edit,) = write_others(task, store, [(0, at)])
    with edit.on(task.model):
        edited = task.predict()
    assert edited[0] < 0.01 and torch.allclose(edited[1:], task.clean[1:])


def test_methods_see_no_truth():
    """A task has a model, tokens and answers; the model's name does not say its mechanism."""
    (network,) = list_networks(("decoy",), forms=1)
    task = list_localisations(network.compiled)[0]
    assert task.model.name == "network" and not hasattr(task.model, "program")
    assert {each.name for each in fields(Localisation)} == {
        "model", "tokens", "subject", "position", "words", "step", "others"
    }  # fmt: skip
    assert task.clean.min() > 0.99 and task.reads == task.position
    with count_positions(task.model) as cost:
        task.predict()
    assert cost.positions == task.tokens.numel() * task.model.net.config.layers


def test_a_threshold_comes_from_other_mechanisms(tables):
    """What is true of a network does not move its own threshold."""
    scores, runs = select(tables["bench"], method="trace-mask"), tables["runs"]
    turned = [
        row | {"matters": row["matters"] != (row["mechanism"] == "decoy")}
        for row in tables["truth"]
    ]
    limits = [
        {row["fact"]: row["threshold"] for row in scoring.score_networks(scores, truth, runs)}
        for truth in (tables["truth"], turned)
    ]
    assert limits[0]["decoy 1"] == limits[1]["decoy 1"]
    assert limits[0]["two stores 1"] != limits[1]["two stores 1"]


def test_areas_are_those_of_others_with_ties():
    stream = np.random.default_rng(1)
    for _ in range(20):
        values, is_true = stream.integers(0, 6, 30) / 5, stream.random(30) < 0.3
        is_true[:2] = True, False
        assert scoring.find_area(values, is_true) == pytest.approx(roc_auc_score(is_true, values))
        area = scoring.find_precision(values, is_true)
        assert area == pytest.approx(average_precision_score(is_true, values))
    assert scoring.find_top(np.array([2.0, 1, 1, 0]), np.array([True, True, False, False])) == 0.75
    sides = [(np.array([3.0, 2, 1, 0]), np.array([True, True, False, False]))]
    assert scoring.choose_threshold(sides) == 1.5
    assert scoring.choose_gap(np.array([0.0, 0.1, 0.8]), np.array([False, False, True])) == 0.45


def test_truth_of_causal_networks_has_no_edge_to_what_comes_later():
    networks = list_networks(("relay",))
    causal = next(each for each in networks if each.columns["reads"] == "causal")
    edges = [row for row in list_truth(causal.compiled) if row["is_read"] is not None]
    assert edges and all(row["is_read"] < row["position"] for row in edges)
    assert any(row["matters"] for row in edges)
    task = list_localisations(causal.compiled)[0]
    with pytest.raises(NotApplicableError):
        METHODS["trace-mask"](task)


def test_a_method_of_ones_own_is_scored_beside_others():
    """One that knows the answer's position alone; named by the settings, and taken out again."""

    def near_the_answer(task):
        scores = task.blank()
        for own in scores.values():
            own += torch.arange(len(own))[:, None]
        return scores

    unmask.register("method", near_the_answer)
    try:
        result = unmask.bench(methods=("near_the_answer",), mechanisms=("decoy",), forms=1)
    finally:
        find_registry("method").remove("near_the_answer")
    (row,) = select(result.summary["methods"], metric="auroc")
    assert 0.5 < row["mean"] < 1.0 and row["passes"] == 0
    with pytest.raises(unmask.UserError, match="'methods' has 'near_the_answer', expected some of"):
        replace(result.settings, methods=("near_the_answer",))
    with pytest.raises(unmask.UserError, match="has no mechanism.json: expected a folder"):
        unmask.bench("reversal-mdm")
