"""Without the packages of the extra `study`: what works, and what is said where it does not."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from unmask.base import extras
from unmask.base.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"scikit-learn": "sklearn"}
"""Names of modules that are not their package's."""

# A module that is None in `sys.modules` counts as not installed.
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS['study']}))\n"

LIBRARY = """
import unmask
from unmask.base.progress import show_stages, track, watch
from unmask.data.chat import ChatTemplate
from unmask.evaluation.perplexity import score_documents

for name in unmask.__all__:
    getattr(unmask, name)
for name in ("reversal-mdm", "reversal-ar"):
    model = unmask.load(name)
    print(unmask.sample(model, ["We sat down beside"], length=8).texts[0])
    (score,) = score_documents(model, ["We sat down beside the well."])
    print(f"{score.nll:.1f}")
with watch("work") as move, show_stages(["one"]) as mark:
    move(1, 2, "half")
    mark("one", True)
print(list(track("ab", "letters")))
for call in (lambda: unmask.recall(model), lambda: ChatTemplate("").render([])):
    try:
        call()
    except unmask.UserError as error:
        print(error)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + script], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize(("extra", "modules"), EXTRAS.items())
def test_the_extras_are_the_projects(extra, modules):
    packages = [re.split(r"[<>=]", line)[0] for line in PROJECT["optional-dependencies"][extra]]
    assert tuple(MODULES.get(name, name) for name in packages) == modules


def test_load_sample_and_score_need_no_extra():
    done = run(LIBRARY)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("work: step 1 of 2  half\n")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("We sat down beside") and lines[2].startswith("We sat down beside")
    assert lines[4] == "['a', 'b']"
    assert lines[5].startswith("unmask.recall needs typer, rich, pyarrow")
    assert lines[6].startswith("a chat template needs jinja2, ")
    assert all(line.endswith('pip install ".[study]"') for line in lines[5:])


def test_the_command_says_how_to_install_it():
    done = run("import runpy; runpy.run_module('unmask', run_name='__main__')")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: the command unmask needs typer, rich,")
    assert done.stderr.endswith('pip install ".[study]"\n')


def test_the_hint_names_the_checkout_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert extras.name_install("study") == f'pip install "{ROOT}[study]"'
    monkeypatch.setattr(extras, "HOME", tmp_path)
    assert extras.name_install("study") == 'pip install "unmask[study]"'
