"""What the peers' own code computed on small checkpoints in their formats: we agree with it."""

import pytest
import torch

import unmask
from tests.fixtures import FIXTURES, load_expected, load_peer
from tests.parity.peers import check_round_trip
from unmask.net.loading import inspect

CLOSE = {"atol": 1e-4, "rtol": 0.0}
SMDM = {"mdm": ("masked", 512), "ar": ("causal", None)}
FOLDERS = {"llada-tiny": 398, "dream-tiny": 398}


@pytest.mark.parametrize("file", SMDM)
def test_smdm(file):
    model, expected = load_peer(f"smdm-tiny/{file}.safetensors"), load_expected("smdm-tiny")
    assert (model.kind, model.mask_id) == SMDM[file]
    logits = model.logits(expected[f"{file}_tokens"])
    torch.testing.assert_close(logits, expected[f"{file}_logits"], **CLOSE)


def test_smdm_needs_its_rounded_tables():
    """The rounding of the rotary tables shows: without it we would not agree."""
    model, expected = load_peer("smdm-tiny/mdm.safetensors"), load_expected("smdm-tiny")
    plain = unmask.Transformer(
        unmask.NetConfig(**(vars(model.net.config) | {"rotary_tables": "float32"})), seed=None
    )
    plain.load_state_dict(model.net.state_dict())
    difference = (plain(expected["mdm_tokens"]) - expected["mdm_logits"]).abs().max()
    assert difference > 10 * CLOSE["atol"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_llada_and_dream(folder):
    model, expected = load_peer(folder), load_expected(folder)
    assert (model.kind, model.mask_id) == ("masked", FOLDERS[folder])
    torch.testing.assert_close(model.net(expected["tokens"]), expected["logits"], **CLOSE)
    aligned = model.logits(expected["tokens"])
    if folder == "dream-tiny":
        # Row i predicts position i: Dream's raw row i - 1; the first keeps its own.
        torch.testing.assert_close(aligned[:, 1:], expected["logits"][:, :-1], **CLOSE)
        torch.testing.assert_close(aligned[:, :1], expected["logits"][:, :1], **CLOSE)
    else:
        torch.testing.assert_close(aligned, expected["logits"], **CLOSE)


@pytest.mark.parametrize(
    "path", [*FOLDERS, "smdm-tiny/mdm.safetensors", "smdm-tiny/ar.safetensors"]
)
def test_round_trip_key_for_key(path, tmp_path):
    blueprint, dialect, checkpoint = inspect(FIXTURES / path)
    (file,) = checkpoint.weights.files
    check_round_trip(load_peer(path), file, tmp_path / "back", dialect.name)
    assert inspect(tmp_path / "back")[0] == blueprint


def test_shift_with_padding():
    """Dream's rows keep their own first token wherever padding puts it, at chosen rows too."""
    model = load_peer("dream-tiny")
    row = torch.randint(0, 400, (1, 9), generator=torch.Generator().manual_seed(0))
    alone = model.logits(row)[0]
    left = torch.cat((torch.zeros(1, 4, dtype=torch.long), row), 1)
    real = torch.arange(13)[None] >= 4
    torch.testing.assert_close(model.logits(left, real)[0, 4:], alone, atol=1e-5, rtol=1e-5)
    at = torch.tensor([0, 1, 5])
    torch.testing.assert_close(model.logits(row, at=at)[0], alone[at], atol=1e-5, rtol=1e-5)
    mask = torch.zeros(1, 9, dtype=torch.bool)
    mask[0, at] = True
    torch.testing.assert_close(model.logits(row, at=mask), alone[at], atol=1e-5, rtol=1e-5)
