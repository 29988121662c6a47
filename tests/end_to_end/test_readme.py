"""README and the list of verbs hold what they say: Python, commands, the moving picture."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer

from unmask.cli.main import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
VERBS = (ROOT / "docs" / "verbs" / "README.md").read_text("utf-8")

SMALLER = {
    "data make reversal": "--facts 2",
    "study": "--quick",
    "order": "--limit 1 --steps 2 --splits d2p_same",
    "recall": "--limit 1 --steps 1 --no-controls --splits d2p_same",
    "perplexity": "--limit 60",
    "nll": "--limit 1 --splits d2p_same",
    "factorization": "--limit 1",
    "knowns": "--limit 2",
    "trace": "--facts 1 --splits d2p_same --parts resid --steps 2 --at first --samples 1",
    "knockout": "--facts 1 --splits d2p_same --steps 2 --windows 1 --edges answer:subject",
    "paths": "--facts 1 --splits d2p_same --steps 2 --bands 2 --senders subject --no-heads",
    "represent": "--facts 10 --groups p2d --steps 2 --prefixes 1 --layer 2",
    "symmetry": "--permutations 20",
    "interchange": "--facts 2 --phrasings 1 --splits d2p_same --tokens last --layers 0",
    "erasure": "--facts 2 --phrasings 1 --groups d2p --states 8 --starts 0 --draws 1",
    "slots": "--facts 4 --phrasings 2 --groups d2p --permutations 99",
    "alignment": "--facts 2 --groups d2p",
    "edit": "--facts 1 --groups p2d --layer 0 --moments identity --search-steps 2 --prefixes 1",
    "relearn": "--facts 2 --rehearsed 0 --phrasings 1 --groups d2p --updates 1 --steps 1",
    "correctors": "--languages 1 --draws 1 --rows 4 --correctors uniform=1 --remaskings conf",
    "bench": "--methods lens,attention --mechanisms decoy --forms 1",
    "circuit": "--facts 1 --splits d2p_same --known 0 --edges 0.001 --strongest 0.001 --points 1",
    "subspaces": "--splits d2p_same --facts 6 --phrasings 1 --known 0 --updates 1 --ranks 2",
    "gradients": "--number 2 --tokens 2 --length 2 --scales 1 --each 1 --draws 2",
    "lens": "--limit 2 --steps 2 --splits d2p_same",
    "steer": "--number 1 --texts 2 --facts 1 --lines 4 --steps 2 --strengths 0.4 --schedules all",
    "quality": "--texts 2 --steps 2 --samplers random",
    "mending": "--texts 2 --shares 0.2 --calls 4",
    "infilling": "--texts 2 --gaps 1 --candidates 1",
    "transparency": "--splits d2p_same --languages 1 --states 1 --steps 2",
    "parallel": "--splits d2p_same --steps 8 --thresholds 0.5 --caches none --languages 1",
    "train": "data.facts=2 network.preset=tiny budget.steps=1 batch.rows=2 cadence.facts=0 "
    "cadence.samples=0",
    "toy": "--variants masked --steps 2 --samples 20",
}
"""What makes a command of the list short."""
LONG = {"study", "report", "harness", "edit", "interchange", "erasure", "slots", "correctors"}
LONG |= {"represent", "symmetry", "factorization", "paths", "trace", "knockout", "bench"}
LONG |= {"quality", "mending", "infilling", "relearn", "parallel", "transparency", "gradients"}
LONG |= {"alignment", "circuit", "features", "subspaces", "steer", "lens"}
"""Run by `make prove`."""
ELSEWHERE = {"guidance", "planted", "sweep"}
"""Need data or models of their own: their tests and the examples of their pages run them."""
SERVED = {"explore"}
"""Goes on until it is stopped: tests/explorer/test_explore_command.py runs it."""


def read_commands() -> list[list[str]]:
    (block,) = re.findall(r"```console\n(unmask study .*?)```", VERBS, re.DOTALL)
    return [shlex.split(re.split(r" {2,}", line)[0])[1:] for line in block.splitlines()]


def execute(words: list[str]) -> None:
    name = " ".join(words[:3])
    more = SMALLER.get(name if name in SMALLER else words[0], "").split()
    assert app([*words, *more], standalone_mode=False) in (None, 0), words


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder to run commands in, with the files that they name; without further processes."""
    monkeypatch.setattr("unmask.toy.run.LocalEngine", lambda count: None)
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "README.md", tmp_path)
    known = {"subject": "Bjorn", "attribute": "one", "template": "{} is the"}
    known |= {"prompt": "Bjorn is the", "prediction": " one", "relation_id": "P1"}
    (tmp_path / "knowns.json").write_text(json.dumps([known | {"known_id": 0}]))
    page = (ROOT / "docs" / "verbs" / "harness.md").read_text("utf-8")
    for name, text in re.findall(r"```\w+ (friends\.\w+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_commands(folder):
    for words in read_commands():
        if words[0] not in LONG | ELSEWHERE | SERVED:
            execute(words)


@pytest.mark.prove
def test_long_commands(folder):
    for words in read_commands():
        if words[:3] == ["data", "make", "reversal"]:
            app([*words, "--facts", "10"], standalone_mode=False)
        elif words[0] in LONG:
            execute(words)
    assert (folder / "runs" / "study" / "page.html").is_file()


def test_its_python(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    written, shape, patched = capsys.readouterr().out.splitlines()
    assert "Renzo Calverinth" in written and "Renzo Calverinth" not in code
    assert shape.startswith("torch.Size([1, ") and "Renzo" not in patched


def test_the_primers_python(capsys):
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "primer.md").read_text(), re.DOTALL
    )
    exec(compile("\n".join(blocks), "primer.md", "exec"), {})
    first, *_, last = re.findall(r"^We sat down .*", capsys.readouterr().out, re.MULTILINE)
    assert "[MASK]" in first and "[MASK]" not in last


def test_it_is_short():
    """One screen to know what it is, two to begin."""
    assert len(README.splitlines()) <= 120
    assert README.index("pip install") < README.index("%")


def test_the_moving_picture_is_small_and_needs_nothing_else():
    picture = (ROOT / "docs" / "unmasking.svg").read_text("utf-8")
    assert "docs/unmasking.svg" in README[:900] and len(picture) < 1_000_000
    assert "<script" not in picture and "href" not in picture and "url(" not in picture
    assert picture.count('class="f"') > 12 and "prefers-reduced-motion" in picture


def test_every_verb_is_listed():
    listed = {words[0] for words in read_commands()}
    assert set(typer.main.get_command(app).commands) <= listed
