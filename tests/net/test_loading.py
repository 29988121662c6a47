"""Models on disk: own format, names, bad input; nothing half-written, nothing half-believed."""

import itertools
import json
import subprocess
import sys
from math import nan
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.conftest import TEXTS, make_model
from tools import write_formats
from unmask import Tokenizer, UserError
from unmask.net import placing
from unmask.net.dialects import DIALECTS
from unmask.net.known import KNOWN
from unmask.net.model import Blueprint, Model


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        holder = config["network"] if key in config["network"] else config
        if value is None:
            del holder[key]
        else:
            holder[key] = value
    (folder / "config.json").write_text(json.dumps(config))


def change_weights(folder: Path, drop: str | None = None, **add: torch.Tensor) -> None:
    weights = load_file(folder / "model.safetensors")
    if drop:
        del weights[drop]
    save_file(weights | add, folder / "model.safetensors")


def cut_short(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(5000)


def rename(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)


def add_second(folder: Path) -> None:
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    rename(folder, "one.safetensors")


def damage_a_number(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["embedding.weight"][5, 7] = torch.nan
    save_file(weights, folder / "model.safetensors")


NORM, EXTRA = "layers.1.mlp_norm.weight", torch.zeros(3)
NARROW = {NORM: torch.ones(5)}
BAD = {
    "not a whole safetensors file": cut_short,
    f"{NORM} has shape [5], expected [64]": lambda f: change_weights(f, **NARROW),
    f"1 missing ({NORM})": lambda f: change_weights(f, drop=NORM),
    "1 too many (stray)": lambda f: change_weights(f, stray=EXTRA),
    "tokens, but its embedding has 200 rows": lambda f: change_config(
        f, vocab_size=200, num_logits=200, mask_id=3
    ),
    "'width' is missing": lambda f: change_config(f, width=None),
    "'kind' is missing": lambda f: change_config(f, kind=None),
    "'kind' is 'painted', expected one of masked": lambda f: change_config(f, kind="painted"),
    "model format 9, expected 1": lambda f: change_config(f, format=9),
    "holds 2 candidate models (one.safetensors, other.safetensors)": add_second,
    "holds pickled weights, which can run code when they are read: convert them": lambda f: rename(
        f, "pytorch_model.bin"
    ),
    "is a GGUF file": lambda f: rename(f, "model.Q4_1.gguf"),
    "embedding.weight holds numbers that are not finite": damage_a_number,
    "model_type 'mamba'": lambda f: change_config(f, model_type="mamba"),
    "holds no weights": lambda f: (f / "model.safetensors").unlink(),
    "mask id 4096 is not in": lambda f: change_config(f, mask_id=4096),
    "'mask_id' is 3.5, expected an integer": lambda f: change_config(f, mask_id=3.5),
    "'shift' is 'no', expected true or false": lambda f: change_config(f, shift="no"),
    "'kind' is 'causal', but the network sees both": lambda f: change_config(f, kind="causal"),
    "unknown key 'mask_idd'": lambda f: change_config(f, mask_idd=3),
    "holds a JSON list, expected an object": lambda f: (f / "config.json").write_text("[]"),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_input(saved, said):
    BAD[said](saved)
    with pytest.raises(UserError) as caught:
        unmask.load(saved, device="cpu")
    assert said in str(caught.value)
    assert str(saved) in str(caught.value)


LLAMA = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
QWEN2, DREAM = LLAMA | {"model_type": "qwen2"}, LLAMA | {"model_type": "Dream"}
LLADA = {"model_type": "llada", "d_model": 32, "n_layers": 1, "n_heads": 2, "mlp_hidden_size": 64}
LLADA |= {"max_sequence_length": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "vocab_size": 64}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            LLAMA | {"hidden_size": None, "rms_norm_eps": None},
            "'hidden_size' is missing; 'rms_norm",
        ),
        (LLAMA | {"hidden_size": "64"}, "'width' is '64', expected an integer"),
        (LLAMA | {"hidden_act": "gelu"}, "'hidden_act' is 'gelu', but only 'silu' is supported"),
        (
            LLAMA | {"rope_parameters": {"rope_type": "longrope"}},
            "rotary scaling 'longrope' is not",
        ),
        (LLAMA | {"rope_scaling": {"type": "yarn"}}, "'factor' is None, expected a number"),
        (LLAMA | {"rope_theta": nan}, "'rotary_base' is nan, expected a finite number above 0"),
        (LLAMA | {"num_attention_heads": 3}, "'width' 32 is not a multiple of 'heads' 3"),
        (QWEN2 | {"use_sliding_window": True}, "'use_sliding_window' is True, but only False"),
        (DREAM, "'mask_token_id' is missing"),
        (LLADA, "'mask_token_id' is missing"),
        (LLADA | {"mask_token_id": 63, "alibi": True}, "'alibi' is True, but only False"),
        (LLADA | {"mask_token_id": 99}, "mask id 99 is not in 0..63"),
        (LLAMA | {"model_type": []}, "has the model_type []: expected a text"),
    ],
)
def test_foreign_settings(tmp_path, settings, said):
    (tmp_path / "config.json").write_text(json.dumps(settings))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError) as caught:
        unmask.load(tmp_path, device="cpu")
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.prove
def test_peak_memory(tmp_path):
    """A load needs little more than the weights: one block of a tensor at a time."""
    config = unmask.preset("34M")
    net = unmask.Transformer(config).bfloat16()
    unmask.save(Model("x", net, Blueprint(config, "masked", 32_000)), tmp_path / "x", "smdm")
    size = (tmp_path / "x" / "model.safetensors").stat().st_size
    script = """
import sys, unmask
from pathlib import Path
import unmask.net.loading as loading
loading._try_out = lambda *_: None  # its first product brings the maths library's own buffers
def held(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024
before = held("VmRSS:")
unmask.load(sys.argv[1], device="cpu", dtype="stored")
print(held("VmHWM:") - before)
"""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    # On a small model what the interpreter loads meanwhile shows; the benchmark has a large one.
    assert 0.8 * size < int(done.stdout) < 1.05 * size + 140e6


def test_files_by_name(saved, tmp_path):
    assert unmask.load(saved / "model.safetensors", device="cpu").kind == "masked"
    for name, said in (("w.pt", "pickled"), ("w.gguf", "GGUF"), ("w.txt", "is not a checkpoint")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(UserError, match=said):
            unmask.load(tmp_path / name)
    with pytest.raises(UserError, match="is not there: expected a model's folder"):
        unmask.load(tmp_path / "absent")


def test_shards_that_are_missing(tmp_path):
    unmask.save(make_model(), tmp_path / "model", shard_bytes=50_000)
    next((tmp_path / "model").glob("model-00002-*")).unlink()
    with pytest.raises(UserError, match="names model-00002-of-.*, not there"):
        unmask.load(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="two candidate models"):
        unmask.load(tmp_path / "model")


def test_memory_is_logged_and_checked(saved, caplog, capsys, monkeypatch):
    unmask.load(saved, device="cpu")
    assert (caplog.messages, *capsys.readouterr()) == ([], "", "")
    with caplog.at_level("INFO", "unmask"):
        unmask.load(saved, device="cpu")  # small: nobody waits for it
        assert caplog.messages == []
        monkeypatch.setattr(placing, "_NOTICED_BYTES", 1000)
        unmask.load(saved, device="cpu")
    (message,) = caplog.messages
    assert message.startswith(f"loading {saved}: ") and "float32 on cpu" in message
    monkeypatch.setattr(placing, "free_bytes", lambda device: 1000)
    with pytest.raises(
        UserError, match="does not fit: it needs .* 1 kB are free; choose a smaller"
    ):
        unmask.load(saved, device="cpu")


def test_tokenizers_by_choice(saved, tmp_path):
    assert unmask.load(saved, device="cpu", tokenizer=None).tokenizer is None
    Tokenizer.train(TEXTS[::-1], 280).save(tmp_path / "other")
    model = unmask.load(saved, device="cpu", tokenizer=tmp_path / "other")
    assert model.tokenizer is not None
    Tokenizer.train(["short"] * 9, 262).save(tmp_path / "third")
    with pytest.raises(UserError, match="the mask id 27. is not in"):
        unmask.load(saved, device="cpu", tokenizer=tmp_path / "third")


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        ("llama", "causal False would become True"),
        ("gpt2", "norm 'rms' would become 'layer'"),
        ("dream", "shift False would become True; qkv_bias False would become True"),
        ("smdm", "rotary_tables 'float32' would become 'bfloat16'"),
        ("lama", "dialect 'lama' is unknown: did you mean 'llama'"),
    ],
)
def test_a_dialect_that_cannot_say_it_refuses(tmp_path, dialect, said):
    with pytest.raises(UserError, match=said):
        unmask.save(make_model(), tmp_path / "out", dialect)
    assert list(tmp_path.iterdir()) == []


def test_tables_of_formats():
    """They are what `tools/write_formats.py` writes; every dialect has a row, and tests there."""
    page = write_formats.PAGE.read_text("utf-8")
    assert write_formats.write_tables(page) == page, "run python tools/write_formats.py"
    assert page.count("-tiny") > 15
    assert write_formats.TESTS.keys() == DIALECTS.keys()
    assert {known.dialect for known in KNOWN.values()} <= DIALECTS.keys()
    for test in itertools.chain(*write_formats.TESTS.values()):
        file, _, name = test.partition("::")
        assert f"def {name}(" in (write_formats.ROOT / file).read_text(), test


def test_smdm_size_from_the_file_name(tmp_path):
    config = unmask.preset("6M", vocab_size=33, num_logits=32)
    net = unmask.Transformer(config).bfloat16()
    unmask.save(Model("x", net, Blueprint(config, "masked", 32)), tmp_path / "x", "smdm")
    named = tmp_path / "mdm-6M-10e18.safetensors"
    (tmp_path / "x" / "model.safetensors").rename(named)
    loaded = unmask.load(named, device="cpu")
    assert loaded.net.config == config and loaded.mask_id == 32
    # A size in the name of a folder above means nothing.
    (tmp_path / "ar-19M-runs").mkdir()
    moved = named.rename(tmp_path / "ar-19M-runs" / named.name)
    assert unmask.load(moved, device="cpu").net.config == config
    moved.rename(tmp_path / "mine.safetensors")
    with pytest.raises(UserError, match="does not say how large it is: expected a name such as"):
        unmask.load(tmp_path / "mine.safetensors")
