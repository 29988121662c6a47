"""The hub's cache as `huggingface_hub` lays it out, filled by a test; SMDM's files in it."""

import json
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from unmask.net.known import KNOWN

SMDM = Path(__file__).parent / "fixtures" / "smdm-tiny"
VOCABULARY = 512
"""Tokens of that network; its mask id comes right after them."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def offline(cache: Path) -> Generator[None]:
    """What the environment's variables would set before the package is imported."""
    with (
        patch("huggingface_hub.constants.HF_HUB_CACHE", str(cache)),
        patch("huggingface_hub.constants.HF_HUB_OFFLINE", True),
        patch("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(cache)),
    ):
        yield


def fill(cache: Path, repo: str, files: Mapping[str, Path]) -> Path:
    """The snapshot of a repository with copies of the files, each at a path inside it."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for place, file in files.items():
        (snapshot / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, snapshot / place)
    return snapshot


def fill_smdm(cache: Path, files: Mapping[str, str], texts: Iterable[str]) -> None:
    """SMDM's repository with the tiny network at those paths, and the tokenizer of another one."""
    settings = {str(Path(place).with_name("lit_config.json")): "lit_config.json" for place in files}
    fill(cache, "nieshen/SMDM", {place: SMDM / file for place, file in (settings | files).items()})
    repo = KNOWN["mdm-1028M"].tokenizer
    assert repo is not None
    write_llama_tokenizer(fill(cache, repo, {}), texts)


def write_llama_tokenizer(folder: Path, texts: Iterable[str]) -> Path:
    """A tokenizer that says, as Llama's does, that texts begin with `<s>`."""
    special = ["<unk>", "<s>", "</s>"]
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    missing = VOCABULARY - backend.get_vocab_size()
    backend.add_tokens([f"<unused-{i}>" for i in range(missing)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", special.index("<s>"))]
    )
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder
