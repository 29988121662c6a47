"""Every command of docs/study-on-smdm.md as printed, on a tiny network in SMDM's format.

Names are those of the page, found in a cache that the test fills; sizes are cut. No number means
anything.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow
import pytest
import torch
from safetensors.torch import load_file

from tests import commands
from tests.berglund import PEOPLE, describe, write_berglund_files
from tests.hub_cache import SMDM, VOCABULARY, fill_smdm, offline, write_llama_tokenizer
from unmask.net.hub import find_model
from unmask.net.known import KNOWN
from unmask.net.loading import load

PAGE = (Path(__file__).parents[2] / "docs" / "study-on-smdm.md").read_text("utf-8")
NAMES = ("mdm-1028M", "ar-1028M", "mdm-1028M-reverse")
SMALLER = {
    "train": "batch.rows=2 budget.steps=2 schedule.warmup=1 data.context=128 cadence.facts=0 "
    "cadence.samples=0",
    "sample": "--length 128 --steps 2",
    "recall": "--limit 1 --steps 1 --length 128 --no-controls",
    "nll": "--limit 1 --length 128",
    "knowns": "--limit 2",
    "perplexity": "--limit 60 --context 16 --repeats 2",
    # Networks that have learned nothing recall nothing.
    "trace": "--facts 1 --steps 2 --samples 1 --window 1 --any-answer --splits d2p_same",
    "represent": "--facts 10 --groups p2d --search-steps 2 --prefixes 1 --length 128",
    "symmetry": "--permutations 19 --tests 99",
}
"""What makes a command of the page short."""
MANY = [
    describe(f"{name} Holtby", "gardener", "taught", "teaching", f"{thing} to hum at dusk")
    for name, thing in zip(
        ["Mira", "Casper", "Petra", "Lorcan", "Selma", "Anton", "Wilma", "Jonas", "Orla", "Tobin"],
        ["hedges", "roses", "tulips", "oaks", "ferns", "elms", "asters", "pines", "ivies", "reeds"],
        strict=True,
    )
]
"""As many people as a test of symmetry needs."""


def read_commands() -> list[list[str]]:
    return [shlex.split(line) for line in re.findall(r"^unmask (.*)$", PAGE, re.MULTILINE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the page tells to fetch, in the places that it names."""
    folder = tmp_path_factory.mktemp("author")
    (folder / "reversal_curse").mkdir()
    with patch.dict(PEOPLE, p2d=MANY):
        write_berglund_files(folder / "reversal_curse")
    lines = [
        json.loads(line)
        for file in sorted((folder / "reversal_curse").glob("*_train.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    texts = [line["prompt"] + line["completion"] for line in lines]
    files = {KNOWN[name].file or "": f"{name.partition('-')[0]}.safetensors" for name in NAMES}
    fill_smdm(folder / "cache", files, texts)
    known = {"subject": "Mira Holtby", "attribute": "gardener", "template": "{} is the"}
    known |= {"prompt": "Mira Holtby is the", "prediction": " gardener", "relation_id": "P1"}
    (folder / "known_1000.json").write_text(json.dumps([known | {"known_id": 0}]))
    packed = "".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in texts).encode()
    compress = partial(pyarrow.compress, codec="zstd", asbytes=True)
    (folder / "slimpajama.jsonl.zst").write_bytes(compress(packed))
    # What SMDM's own script leaves, and the settings that a tiny network's name cannot say.
    saved = {"model": load_file(SMDM / "mdm.safetensors"), "step_count": 562}
    torch.save(saved, folder / "iter-000562-ckpt.pth")
    shutil.copy(SMDM / "lit_config.json", folder)
    write_llama_tokenizer(folder, texts)
    return folder


def test_the_names_of_the_page_are_known():
    listed = set(re.findall(r"\| `((?:mdm|ar)-1028M\S*)` \|$", PAGE, re.MULTILINE))
    assert listed == set(NAMES)
    for name in NAMES:
        place = Path(KNOWN[name].file or "")
        assert f"`{place.parent}` | `{place.name}`" in PAGE


@pytest.fixture
def asked(folder, monkeypatch) -> Iterator[Callable[[list[str]], None]]:
    """Asks a command of the page, at small size, where its files lie."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("UNMASK_CACHE", str(folder / "unmask-cache"))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "study-on-smdm.md", "exec"), {})

    def ask(words: list[str]) -> None:
        done = commands.run(*words, *SMALLER.get(words[0], "").split())
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr}"

    with offline(folder / "cache"):
        yield ask


def test_its_first_commands(asked):
    """From the checkpoint's files to its first answers."""
    run = read_commands()
    last = next(number for number, words in enumerate(run) if words[0] == "recall")
    for words in run[: last + 1]:
        asked(words)


@pytest.mark.prove
def test_every_command(folder, asked):
    run = read_commands()
    assert {words[0] for words in run} >= {*SMALLER, "models", "info", "convert", "data", "report"}
    for words in run:
        asked(words)
    pages = {word for words in run for word in words if word.endswith((".md", ".html"))}
    assert all((folder / page).stat().st_size > 1000 for page in pages)
    assert find_model("mdm-1028M").find_tokenizer() is not None
    own = load("runs/smdm-own", device="cpu")
    assert (own.mask_id, own.net.config.vocab_size) == (VOCABULARY, VOCABULARY + 1)
    assert own.tokenizer is not None and own.tokenizer.begin_id == 1
