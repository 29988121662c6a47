"""Small models and made-up data that tests of several folders use."""

import functools
import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
import typer.main
import typer.testing

from tests.berglund import write_berglund_files
from tests.shapes import begin_test
from unmask.data.corpus import Corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.net.config import NetConfig
from unmask.net.model import Blueprint, Model
from unmask.net.paradigm import get_paradigm
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.training import examples
from unmask.training.data_settings import DataSettings
from unmask.training.examples import Examples, read_examples

# Two workers share two cores.
torch.set_num_threads(1)
# No power cut comes: nothing waits for the disk.
os.fsync = lambda descriptor: None
# All verbs with all their options are read once, not at every command of a test.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)


def pytest_collection() -> None:
    """Nothing that is imported becomes garbage: none is looked for until all is."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look through it again and again.

    Nor through all the rest: tests leave next to no cycles, and caches that stay.
    """
    gc.freeze()
    gc.set_threshold(700, 10, 100)
    gc.enable()


def prove_alone(*values: object) -> list:
    """Parameters that `make prove` tries and `make test` leaves out."""
    return [pytest.param(value, marks=pytest.mark.prove) for value in values]


def hear_interrupts() -> None:
    """For `preexec_fn`: a child hears Ctrl-C even where tests were started in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    """A call that an earlier test broke off has no say in the shapes of this one."""
    begin_test()


@pytest.fixture(autouse=True, scope="session")
def made_once() -> Generator[None]:
    """Rows that a recipe makes in place are made once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.training.mixture.read_examples", _read)
        yield


_MADE: dict[Any, Examples] = {}


def _read(data: DataSettings, known: Tokenizer | None, has_foreign: bool) -> Examples:
    """As a source makes them, which a test may replace, for the tokenizer of a model."""
    make = examples._MADE.get(data.source)
    if make is None or data.tokenizer or (known and known.chat):
        return read_examples(data, known, has_foreign)
    key = make, data, has_foreign, known and _spell(known)
    if key not in _MADE:
        _MADE[key] = read_examples(data, known, has_foreign)
    return _MADE[key]


def _spell(known: Tokenizer) -> tuple:
    return known.backend.to_str(), known.mask_id, known.pad_id, known.end_id, known.begin_id


KINDS = [
    ("tiny", "masked"), ("tiny", "causal"), ("tiny-grouped", "shifted"), ("tiny-gpt2", "masked"),
    ("tiny-gpt2", "causal"), ("tiny-pythia", "masked"), ("tiny-pythia", "causal"),
    ("tiny-blocks", "masked"), ("tiny-blocks", "causal"), ("tiny-bert", "masked"),
    ("tiny-post", "masked"), ("tiny-llada2", "masked"),
]  # fmt: skip
"""Presets and kinds of model that laws about whole models are held to."""


@pytest.fixture
def unchecked_shapes() -> Generator[None]:
    """For code under a compiler, and for wrong shapes that the package refuses in its own words."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def berglund(tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> Path:
    """A made-up folder in the format of Berglund's reversal-curse files; tests may change it."""
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path_factory.mktemp("cache")))
    return write_berglund_files(tmp_path_factory.mktemp("berglund"))


BLOCKS = (
    "tiny", "tiny-grouped", "tiny-gpt2", "tiny-pythia", "tiny-blocks", "tiny-bert", "tiny-post",
    "tiny-llada2",
)  # fmt: skip


@pytest.fixture(params=[(name, causal) for name in BLOCKS for causal in (False, True)], ids=str)
def net(request: pytest.FixtureRequest) -> Transformer:
    """Each kind of block, as a diffusion network and as a causal one, with lively weights."""
    name, causal = request.param
    return lively(preset(name, causal=causal))


def lively(config: NetConfig, seed: int = 0) -> Transformer:
    """A random network whose logits and attention patterns differ visibly between inputs."""
    net = Transformer(config, seed=seed).eval().requires_grad_(False)
    for name, parameter in net.named_parameters():
        if parameter.ndim > 1:
            # Norms after the additions shrink differences between inputs layer by layer.
            parameter.mul_(10.0 if config.residual == "post" else 5.0)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.normal_(1.0, 0.3, generator=torch.Generator().manual_seed(seed))
        elif name.endswith("bias"):
            parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(seed))
    return net


@pytest.fixture
def tokens() -> torch.Tensor:
    """Four rows of eleven tokens."""
    return torch.randint(0, 512, (4, 11), generator=torch.Generator().manual_seed(7))


@functools.cache
def make_corpus_once(num_facts: int) -> Corpus:
    """A reversal corpus, made once for all tests that ask for it; they must not change it."""
    return make_reversal_corpus(num_facts)


TEXTS = ["The caves of Orsel are deep.", "The baker of Wrenmouth sings."] * 5


def build(
    name: str = "tiny",
    kind: str = "masked",
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    **changes: Any,
) -> Model:
    """A lively model of a kind (`shifted` is masked); without a tokenizer the last token masks."""
    config = preset(name, causal=kind == "causal", **changes)
    known = "masked" if kind == "shifted" else kind
    mask_id = config.vocab_size - 1 if tokenizer is None else tokenizer.mask_id
    has_mask = get_paradigm(known).has_mask
    plan = Blueprint(config, known, mask_id if has_mask else None, shift=kind == "shifted")
    return Model(f"{name}-{kind}", lively(config, seed), plan, tokenizer)


def make_model(name: str = "tiny", causal: bool = False, seed: int = 0) -> Model:
    tokenizer = Tokenizer.train(TEXTS, 280)
    kind = "causal" if causal else "masked"
    return build(name, kind, tokenizer, seed, vocab_size=tokenizer.vocab_size)


def make_noised(kind: str) -> Model:
    """A random model of another kind of noise than masks."""
    tokenizer = Tokenizer.train(TEXTS, 280)
    rows = tokenizer.vocab_size
    more = {"latent_width": 8} if kind == "gaussian" else {}
    config = preset("tiny", vocab_size=rows, num_logits=rows - 1, time=True, **more)
    return Model(kind, lively(config), Blueprint(config, kind, tokenizer.mask_id), tokenizer)
