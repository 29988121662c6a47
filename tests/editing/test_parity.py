"""The peers' own edits of a small random GPT-2: ROME and its repairs, MEMIT, EMMET, AlphaEdit.

Their numbers are in tests/fixtures/gpt2-edit-tiny; their updates are [F, D], ours [D, F].
"""

import json

import pytest
import torch

from tests.fixtures import FIXTURES, load_expected
from unmask.editing.update import (
    find_free_space,
    solve_readers,
    solve_rome,
    solve_update,
    weigh_by,
)

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
    ridge = SETTINGS["emmet_weight"] * SETTINGS["emmet_lambda"] if many else 0.0
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
