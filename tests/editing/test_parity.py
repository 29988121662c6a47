"""The peers' own edits of a small random GPT-2: ROME and its repairs, MEMIT, EMMET, AlphaEdit.

Their numbers are in tests/fixtures/gpt2-edit-tiny; their updates are [F, D], ours [D, F].
"""

import json
from dataclasses import replace

import pytest
import torch

from tests.fixtures import FIXTURES, load_expected, load_peer
from unmask import Fact
from unmask.editing.edit import Edit, Factors, digest_downs
from unmask.editing.editor import _SearchedFacts, average_keys, read_keys, read_streams
from unmask.editing.settings import Editing
from unmask.editing.update import (
    find_free_space,
    solve_readers,
    solve_rome,
    solve_update,
    weigh_by,
)
from unmask.representation.prompts import Case, PromptRow
from unmask.representation.value_loss import ValueLoss
from unmask.representation.values import Value, search

FOLDER = "gpt2-edit-tiny"
THEIRS = load_expected(FOLDER)
SETTINGS = json.loads((FIXTURES / FOLDER / "edit.json").read_text(encoding="utf-8"))
ROME_LAYER = SETTINGS["rome_layer"]
MEMIT_LAYERS = {"memit1": SETTINGS["memit1_layers"], "memitN": SETTINGS["memitN_layers"]}


def close(one, other, most=1e-4):
    """Within a share of the norm."""
    one, other = one.double(), other.double()
    assert float((one - other).norm()) <= most * float(other.norm()), float((one - other).norm())


def their_update(name):
    left, right = THEIRS[f"{name}_left"].double(), THEIRS[f"{name}_right"].double()
    if f"{name}_dW" in THEIRS:
        close(torch.outer(left, right), THEIRS[f"{name}_dW"], 1e-6)
    return torch.outer(right, left)


@pytest.mark.parametrize("name", ["rome0", "rome0slow", "rome1"])
def test_rome_as_published(name):
    k, divisor = THEIRS[f"{name}_k"], THEIRS[f"{name}_k_divisor"]
    residual = THEIRS[f"{name}_v_star"] - THEIRS[f"{name}_v_now"]
    readers = solve_rome(k, divisor, THEIRS[f"C_l{ROME_LAYER}"])
    close(residual.double()[:, None] @ readers, their_update(name))
    close(THEIRS[f"{name}_v_star"], THEIRS[f"{name}_v0"] + THEIRS[f"{name}_delta"], 1e-6)


@pytest.mark.parametrize("name", ["rrome0", "rrome1", "prome0", "prome1"])
def test_the_repaired_romes_are_one_update_with_their_residuals(name):
    k, moments = THEIRS[f"{name}_k"][:, None], THEIRS[f"C_l{ROME_LAYER}"]
    residual = (THEIRS[f"{name}_v_star"] - THEIRS[f"{name}_v_now"])[:, None]
    close(solve_update(k, residual, moments), their_update(name))
    delta = THEIRS[f"rome{name[-1]}_delta"]
    is_delta = residual[:, 0].allclose(delta, rtol=1e-3, atol=1e-3 * float(delta.norm()))
    assert is_delta == name.startswith("prome"), "theirs writes more than the delta"


@pytest.mark.parametrize("name", MEMIT_LAYERS)
def test_memit_layer_by_layer(name):
    layers = MEMIT_LAYERS[name]
    for number, layer in enumerate(layers):
        keys, moments = THEIRS[f"{name}_keys_l{layer}"].T, THEIRS[f"C_l{layer}"]
        residuals = THEIRS["memit1_z"] - THEIRS[f"{name}_z_now_l{layer}"]
        residuals = residuals.T / (len(layers) - number)
        close(residuals, THEIRS[f"{name}_resid_l{layer}"])
        update = solve_update(keys, residuals, moments, SETTINGS["memit_lambda"])
        close(update, THEIRS[f"{name}_dW_l{layer}"].T)


@pytest.mark.parametrize(("name", "many"), [("emmet4", True), ("emmet1", False)])
def test_emmet_is_memit_with_the_product_of_its_settings(name, many):
    (layer,) = SETTINGS["emmet_layers"]
    ridge = SETTINGS["emmet_lambda"] if many else 0.0
    keys, residuals = THEIRS[f"{name}_keys_l{layer}"].T, THEIRS[f"{name}_resid_l{layer}"]
    moments = THEIRS[f"C_l{layer}"] * SETTINGS["emmet_weight"]
    readers = solve_readers(keys, weigh_by(moments)(keys), ridge)
    close(readers, THEIRS[f"{name}_adj_k_l{layer}"].T)
    if many:
        close(residuals.double() @ readers, THEIRS[f"{name}_dW_l{layer}"].T)


@pytest.mark.parametrize("layer", SETTINGS["alphaedit_layers"])
def test_alphaedit_is_the_same_formula_within_the_free_space(layer):
    """The second batch knows the first one's keys: further columns with residuals of 0."""
    space = find_free_space(THEIRS[f"C_l{layer}"], cut=SETTINGS["alphaedit_threshold"])
    assert space.dimension == int(THEIRS[f"alphaedit_kept_l{layer}"])
    layers_left = len(SETTINGS["alphaedit_layers"]) - SETTINGS["alphaedit_layers"].index(layer)
    earlier = torch.empty(len(THEIRS[f"C_l{layer}"]), 0)
    for batch in ("alphaedit_batch0", "alphaedit_batch1"):
        keys = torch.cat([THEIRS[f"{batch}_keys_l{layer}"].T, earlier], dim=1)
        residuals = (THEIRS[f"{batch}_z"] - THEIRS[f"{batch}_z_now_l{layer}"]).T / layers_left
        readers = solve_readers(keys, space.project(keys), SETTINGS["alphaedit_L2"])
        update = residuals.double() @ readers[: residuals.shape[1]]
        close(update, THEIRS[f"{batch}_dW_l{layer}"].T)
        earlier = THEIRS[f"{batch}_keys_after_l{layer}"].T


@pytest.fixture(scope="module")
def peer():
    return load_peer(FOLDER)


def cut(ids):
    return ids[ids >= 0].tolist()


def lay_out(number):
    """A request as rows: the bare prompt, then one row per prefix, and the subject for the KL."""
    prompt, target = cut(THEIRS["prompts"][number]), cut(THEIRS["targets"][number])
    begin, end = THEIRS["subject_span"][number].tolist()
    rows = []
    for prefix in ([], *map(cut, THEIRS["prefixes"])):
        length = len(prefix) + len(prompt)
        reads = list(range(length - 1, length - 1 + len(target)))
        tokens = [*prefix, *prompt, *target[:-1]]
        rows.append(PromptRow(tokens, len(prefix) + end - 1, reads, target, length))
    subject = prompt[begin:end]
    kl_prompt = PromptRow(subject, len(subject) - 1, [len(subject) - 1], [], len(subject))
    fact = Fact.of("X", "Y", "{} is", fact_id=str(number))
    return Case(fact, ("",) * len(rows), rows, rows, kl_prompt)


def read_logits(peer, number):
    return peer.logits(torch.tensor([cut(THEIRS["prompts"][number])]))[0, -1]


@pytest.mark.parametrize(("name", "lr"), [("rome0", 0.5), ("rome0slow", 0.05), ("rome1", 0.5)])
def test_the_search_walks_romes_path(peer, name, lr):
    case = lay_out(int(name[4]))
    close(read_logits(peer, int(name[4])), THEIRS["last_logits_before"][int(name[4])])
    settings = Editing(lr=lr, norm=0.5, stop="rome", kl_read="subject")
    loss = ValueLoss(peer, [case], ROME_LAYER, settings)
    close(loss.v0[0], THEIRS[f"{name}_v0"])
    (value,) = search(loss, ROME_LAYER, [case])
    assert len(value.losses) == len(THEIRS[f"{name}_losses"])
    close(torch.tensor(value.losses), THEIRS[f"{name}_losses"][:, 0], 1e-3)
    close(value.delta, THEIRS[f"{name}_delta"], 1e-2)


@pytest.mark.parametrize("number", [0, 1])
def test_keys_are_theirs(peer, number):
    keys = read_keys(peer, [lay_out(number)], ROME_LAYER)
    close(average_keys(keys)[0], THEIRS[f"rome{number}_k"])
    close(keys[0, 0], THEIRS[f"prome{number}_k"])
    close(THEIRS[f"rome{number}_k_divisor"], keys[0, 0])
    four = read_keys(peer, [lay_out(i) for i in range(4)], 2)
    close(average_keys(four, 0.5), THEIRS["memit1_keys_l2"])


@pytest.mark.parametrize("name", ["rome0", "rome0slow", "rome1", "rrome0", "rrome1", "prome0"])
def test_an_edited_network_says_what_theirs_says(peer, name):
    factors = Factors(THEIRS[f"{name}_right"][:, None], THEIRS[f"{name}_left"][None])
    edit = Edit({ROME_LAYER: factors}, digest_downs(peer, [ROME_LAYER]))
    number = int(name.removesuffix("slow")[-1])
    with edit.on(peer):
        close(read_logits(peer, number), THEIRS[f"{name}_last_logits_after"])
    close(read_logits(peer, number), THEIRS["last_logits_before"][number])


def write(peer, layers, deltas, cases, settings, weigh, matrices=None):
    """Their deltas written by this editor, keys and streams read by it."""
    values = [replace(NOTHING, delta=delta) for delta in deltas]
    searched = _SearchedFacts(
        model=peer, settings=settings, layers=tuple(layers), facts=[case.fact for case in cases],
        cases=cases, values=values, weigh=weigh, matrices=matrices or {},
        first_keys=read_keys(peer, cases, layers[0]), streams=read_streams(peer, cases, layers[-1]),
        record={},
    )  # fmt: skip
    return searched.write(range(len(cases)))


NOTHING = Value(2, torch.ones(32), torch.zeros(32), (1.0,), 1.0, 1.0, 0.0, 0.5, 0.5, "steps", ())


@pytest.mark.parametrize("name", MEMIT_LAYERS)
def test_the_editor_spreads_over_layers_as_memit_does(peer, name):
    """Keys of the network edited so far, and equal shares of what is left."""
    cases = [lay_out(number) for number in range(4)]
    layers = MEMIT_LAYERS[name]
    close(read_streams(peer, cases, 2), THEIRS["memit1_z0"])
    settings = Editing(ridge=SETTINGS["memit_lambda"], bare_weight=0.5)
    weigh = {layer: weigh_by(THEIRS[f"C_l{layer}"]) for layer in layers}
    edit = write(peer, layers, THEIRS["memit1_z_delta"], cases, settings, weigh)
    for layer in layers:
        close(edit.factors[layer].update, THEIRS[f"{name}_dW_l{layer}"].T)
    with edit.on(peer):
        logp = [read_logp(peer, case) for case in cases]
    close(torch.cat(logp), THEIRS[f"{name}_target_logp_after"], 1e-3)


def read_logp(peer, case):
    row = case.rows[0]
    logp = peer.logits(torch.tensor([row.tokens]))[0].log_softmax(-1)
    return logp[row.reads, row.targets]


def test_the_editor_writes_into_the_null_space_as_alphaedit_does(peer):
    """Their first batch; the second needs the first one's keys, which the formula is held to."""
    layers, cases = SETTINGS["alphaedit_layers"], [lay_out(0), lay_out(1)]
    settings = Editing(ridge=SETTINGS["alphaedit_L2"], bare_weight=0.5, method="null-space")
    weigh = {
        layer: find_free_space(THEIRS[f"C_l{layer}"], cut=SETTINGS["alphaedit_threshold"]).project
        for layer in layers
    }
    edit = write(peer, layers, THEIRS["alphaedit_batch0_z_delta"], cases, settings, weigh)
    for layer in layers:
        close(edit.factors[layer].update, THEIRS[f"alphaedit_batch0_dW_l{layer}"].T)
    with edit.on(peer):
        logp = torch.cat([read_logp(peer, case) for case in cases])
    close(logp, THEIRS["alphaedit_batch0_target_logp_after"], 1e-3)


@pytest.mark.parametrize("number", [0, 1])
def test_the_editor_writes_rome_as_published(peer, number):
    cases = [lay_out(number)]
    matrices = {ROME_LAYER: THEIRS[f"C_l{ROME_LAYER}"]}
    deltas = THEIRS[f"rome{number}_delta"][None]
    edit = write(peer, [ROME_LAYER], deltas, cases, Editing(method="rome"), {}, matrices)
    close(edit.factors[ROME_LAYER].update, their_update(f"rome{number}"))
    bare = [replace(case, key_rows=case.rows[:1]) for case in cases]
    weigh = {ROME_LAYER: weigh_by(matrices[ROME_LAYER])}
    edit = write(peer, [ROME_LAYER], deltas, bare, Editing(), weigh)
    close(edit.factors[ROME_LAYER].update, their_update(f"prome{number}"))


def test_the_search_at_the_mlp_is_memits_at_the_stream(peer):
    """A delta of the MLP's output is one of the stream; only what it is measured by differs."""
    case, (start, stop) = lay_out(0), (0, int(THEIRS["memit1_z_evals"][0]))
    settings = Editing(norm=0.5, clamp=SETTINGS["memit_clamp"], stop="rome", kl_read="subject")
    loss = ValueLoss(peer, [case], 2, settings)
    loss.v0_norm = THEIRS["memit1_z0"][:1].norm(dim=-1)
    (value,) = search(loss, 2, [case])
    close(torch.tensor(value.losses), THEIRS["memit1_z_losses"][start:stop, 0], 1e-3)
    close(value.delta, THEIRS["memit1_z_delta"][0], 1e-2)
