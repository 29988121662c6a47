"""Hub ids on a local cache, without a network; and models known by name."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import unmask
from tests import commands
from tests.conftest import make_model
from tests.hub_cache import (
    COMMIT,
    SMDM,
    VOCABULARY,
    fill,
    fill_smdm,
    offline,
    write_llama_tokenizer,
)
from unmask.base.errors import UserError
from unmask.data.tokenizer import Tokenizer
from unmask.net import hub
from unmask.net.known import KNOWN
from unmask.net.model import Blueprint, Model
from unmask.net.paradigm import list_kinds


def run(*words: object, cache: Path) -> subprocess.CompletedProcess[str]:
    """A command in this process, with what the environment's variables would have set."""
    with offline(cache):
        return commands.run(*words, columns=150)


@pytest.fixture
def cache(tmp_path) -> Path:
    """A cache as `huggingface_hub` lays it out, with one model in it."""
    unmask.save(make_model(), fill(tmp_path / "hub", "someone/tiny-mdm", {}))
    return tmp_path / "hub"


def test_cached_model(cache, tmp_path):
    shown = run("info", "someone/tiny-mdm", cache=cache)
    assert shown.returncode == 0, shown.stderr
    assert "masked" in shown.stdout
    done = run("convert", "someone/tiny-mdm", tmp_path / "copy", "--to", "llada", cache=cache)
    assert done.returncode == 0, done.stderr
    assert unmask.load(tmp_path / "copy", device="cpu").mask_id == make_model().mask_id
    again = run("convert", "someone/tiny-mdm", tmp_path / "copy", cache=cache)
    assert again.returncode == 2 and "already exists" in again.stderr


def test_a_revision(cache, tmp_path, monkeypatch):
    """A branch beside the main one, as SEDD's safetensors are on."""
    repo = cache / "models--someone--tiny-mdm"
    unmask.save(make_model(seed=1), repo / "snapshots" / COMMIT[::-1])
    (repo / "refs" / "refs" / "pr").mkdir(parents=True)
    (repo / "refs" / "refs" / "pr" / "1").write_text(COMMIT[::-1])
    words = ["someone/tiny-mdm", tmp_path / "copy", "--revision", "refs/pr/1", "--block", "4"]
    done = run("convert", *words, cache=cache)
    assert done.returncode == 0, done.stderr
    copy, other = unmask.load(tmp_path / "copy", device="cpu"), make_model(seed=1)
    assert torch.equal(copy.net.head.weight, other.net.head.weight) and copy.net.config.block == 4
    absent = run("info", "someone/tiny-mdm", "--revision", "absent", cache=cache)
    assert absent.returncode == 2 and "neither a path nor in the local cache" in absent.stderr
    with pytest.raises(unmask.UserError, match=r"In the folder \S+ there is: copy,"):
        monkeypatch.chdir(tmp_path.parent)
        unmask.load(f"{tmp_path.name}/copi")
    with pytest.raises(unmask.UserError, match="'main' of reversal-mdm was asked for"):
        unmask.load("reversal-mdm", revision="main")


def test_known_models_are_described():
    """Of a kind that there is, with a size; no repository twice unless it holds several files."""
    assert {known.kind for known in KNOWN.values()} <= {*list_kinds()}
    assert all(known.size and known.uses for known in KNOWN.values())
    places = [(known.repo, known.file) for known in KNOWN.values()]
    assert len(set(places)) == len(places)
    assert (KNOWN["llada2-mini"].uses, KNOWN["gpt2"].uses) == ("all but edit", "all")


def test_models_lists_shipped_cached_and_known(cache):
    few, listed = (run("models", *more, cache=cache) for more in ((), ("--all",)))
    assert "someone/tiny-mdm" in few.stdout and "more that are known" in few.stdout
    assert listed.returncode == 0
    assert "someone/tiny-mdm" in listed.stdout and "cached" in listed.stdout
    assert "mdm_safetensors/mdm-1028M-1600e18.safetensors" in listed.stdout.replace("\n", "")
    assert "Not confirmed from released files" in listed.stdout
    rows = {line.split()[0]: line for line in listed.stdout.splitlines() if line.strip()}
    assert "masked" in rows["llada-8b"] and "causal" in rows["gpt2"]
    counted = re.compile(r"masked\s+[\d.]+ [kM]")
    assert counted.search(rows["reversal-mdm"]) and counted.search(rows["someone/tiny-mdm"])


def test_a_narrow_terminal_cuts_no_name():
    listed = commands.run("models", "--all", columns=80).stdout.split()
    assert set(KNOWN) <= set(listed)


def test_no_such_model_offline(cache):
    done = run("info", "llada-8b", cache=cache)
    said = "'GSAI-ML/LLaDA-8B-Base' is neither a path nor in the local cache"
    assert done.returncode == 2 and said in done.stderr, done.stderr
    for name, said in (
        ("llada-8", "no model 'llada-8': it is not a file or folder, a hub id (owner/name)"),
        ("some one/x y", "cannot be a hub id (owner/name)"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            unmask.load(name)


def test_one_file_of_many_cached(cache, tmp_path):
    """SMDM's repository holds many models: having one is not having them all."""
    folder = fill(cache, "nieshen/SMDM", {}) / "mdm_safetensors"
    folder.mkdir()
    small = unmask.preset(
        "1028M", vocab_size=33, num_logits=32, width=16, mlp_width=16, heads=2, layers=1
    )
    model = Model("x", unmask.Transformer(small), Blueprint(small, "masked", 32))
    unmask.save(model, tmp_path / "x", "smdm")
    for file in (tmp_path / "x").iterdir():
        name = "mdm-1028M-1600e18.safetensors" if file.suffix == ".safetensors" else file.name
        file.rename(folder / name)
    listed = run("models", "--all", cache=cache).stdout
    (mdm,) = [line for line in listed.splitlines() if line.startswith("  mdm-1028M ")]
    (ar,) = [line for line in listed.splitlines() if line.startswith("  ar-1028M ")]
    assert "cached" in mdm and "cached" not in ar
    # Its tokenizer lies in another repository, which looking at it does not need.
    assert run("info", "mdm-1028M", cache=cache).returncode == 0
    absent = run("info", "ar-1028M", cache=cache)
    assert (
        absent.returncode == 2
        and "has no ar_safetensors/ar-1028M-100e18.safetensors here" in absent.stderr
    )


def test_any_file_of_a_repository(cache, tmp_path):
    """It is as the others of its repository: SMDM's come without settings and tokenizer."""
    text = "The caves of Orsel are deep."
    files = {f"{part}/mdm-1028M-{part}.safetensors": "mdm.safetensors" for part in ("one", "two")}
    fill_smdm(cache, files, [text] * 9)
    name = "hub:nieshen/SMDM/two/mdm-1028M-two.safetensors"
    fetched = run("models", "--fetch", name, cache=cache)
    assert fetched.returncode == 0, fetched.stderr
    assert "two/mdm-1028M-two.safetensors" in fetched.stdout and "TinyLlama" in fetched.stdout
    done = run("convert", name, tmp_path / "copy", cache=cache)
    assert done.returncode == 0, done.stderr
    copy = unmask.load(tmp_path / "copy", device="cpu")
    assert copy.mask_id == VOCABULARY
    assert copy.tokenizer.decode(copy.tokenizer.encode(text).ids) == text
    assert run("info", "hub:someone/tiny-mdm", cache=cache).returncode == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hub:someone", "is nothing on the hub: expected hub:OWNER/NAME"),
        ("hub:a/b/../c.safetensors", "is nothing on the hub"),
        ("hub:a/b/*.safetensors", "is nothing on the hub"),
        (
            "hub:nieshen/SMDM/mdm/mdm-1028M.pth",
            "no other weights are fetched, since pickles can run",
        ),
        ("x/mdm-170M.safetensors", "is not there: expected .* or hub:OWNER/NAME/PATH"),
    ],
)
def test_what_is_not_fetched(name, says):
    with pytest.raises(UserError, match=says):
        unmask.load(name)


def test_a_tokenizer_for_a_model_without_one(tmp_path):
    text = "The caves of Orsel are deep."
    file = write_llama_tokenizer(tmp_path, [text] * 9) / "tokenizer.json"
    done = commands.run("convert", SMDM / "mdm.safetensors", tmp_path / "out", "--tokenizer", file)
    assert done.returncode == 0, done.stderr
    model = unmask.load(tmp_path / "out", device="cpu")
    # Its mask lies past the vocabulary, and is kept by the model's own settings.
    assert model.mask_id == model.tokenizer.mask_id == VOCABULARY
    assert model.tokenizer.decode(model.tokenizer.encode(text).ids) == text


def test_dream_tokenizer_without_a_tokenizer_file(tmp_path):
    """Dream's repository has Qwen2's vocabulary and merges; we read them as `transformers` does."""
    from transformers import Qwen2TokenizerFast

    trained = Tokenizer.train(["The caves of Orsel, don't you see 12 of them?"] * 9, 300).backend
    model = json.loads(trained.to_str())["model"]
    names = ("[PAD]", "[END]")
    vocab = [
        token for token in sorted(model["vocab"], key=model["vocab"].get) if token not in names
    ]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    n = len(vocab)
    added = {str(n): {"content": "<|endoftext|>"}, str(n + 1): {"content": "<|mask|>"}}
    config = {"added_tokens_decoder": added, "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer.from_qwen2_files(tmp_path, mask=n + 1)
    assert (ours.end_id, ours.pad_id, ours.mask_id) == (n, n, n + 1)
    theirs = Qwen2TokenizerFast(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    for text in ("Orsel isn't 1234 deep\n\n  See?", "über  den Höhlen 5%", "  a\tb "):
        assert ours.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ours.encode(text).ids) == text


def test_remote_code_is_never_run(cache, tmp_path):
    """A repository's Python files stay unread, whatever its settings ask for."""
    folder = cache / "models--someone--tiny-mdm" / "snapshots" / COMMIT
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "modeling_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    unmask.load(copy, device="cpu")
    # A foreign dialect's settings may ask for their code to be run.
    unmask.save(unmask.load(copy, device="cpu"), tmp_path / "llada", "llada")
    config = json.loads((tmp_path / "llada" / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_evil.Evil"}
    (tmp_path / "llada" / "config.json").write_text(json.dumps(config))
    shutil.copy(copy / "modeling_evil.py", tmp_path / "llada")
    unmask.load(tmp_path / "llada", device="cpu")
    assert not (tmp_path / "ran").exists()


def test_shipped_models_are_found_by_name(tmp_path, monkeypatch):
    """A folder of a model among the package's assets is a shipped model, and can be exported."""
    monkeypatch.setattr(hub, "files", lambda _package: tmp_path)
    assert hub.shipped_models() == {}
    unmask.save(make_model("tiny", causal=True), tmp_path / "tiny-twin")
    assert list(hub.shipped_models()) == ["tiny-twin"]
    model = unmask.load("tiny-twin", device="cpu")
    unmask.save(model, tmp_path / "out", "llama")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            theirs(tokens).logits, model.logits(tokens), atol=1e-5, rtol=1e-5
        )


def test_the_folder_of_a_training_run_is_its_model(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints/step-00000002").mkdir(parents=True)
    (run / "recipe.yaml").touch()
    (run / "checkpoints/step-00000002/checkpoint.json").touch()
    for given in (run, run / "model"):
        with pytest.raises(UserError, match=r"unfinished training run.*--resume \S+run`"):
            hub.find_model(str(given))
    with pytest.raises(UserError, match=r"a checkpoint of a training run.*unmask convert"):
        hub.find_model(str(run / "checkpoints/step-00000002"))
    unmask.save(make_model("tiny", causal=True), run / "model")
    assert hub.find_model(str(run)).path == hub.find_model(str(run / "model")).path == run / "model"
    shutil.copy(run / "recipe.yaml", run / "model")
    assert hub.find_model(str(run / "model")).path == run / "model"
