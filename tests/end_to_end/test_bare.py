"""From nothing: the wheel with the core dependencies alone, the notebook's, and a clone's set-up.

Run by `make prove`.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.prove

SCRIPT = """
import sys, unmask
assert unmask.__file__.startswith(sys.prefix), unmask.__file__
from unmask.evaluation.perplexity import score_documents

for name in ("reversal-mdm", "reversal-ar"):
    model = unmask.load(name)
    print(unmask.sample(model, ["We sat down beside"], length=8).texts[0])
    (score,) = score_documents(model, ["We sat down beside the well."])
    print(score.nll > 0)
"""


def run(*words: object, folder: Path, status: int = 0) -> str:
    # No PYTHONPATH: it would let in what the environment leaves out.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def list_needed(requirements: list[str]) -> set[str]:
    """The packages of the requirements and of all their own, as they are installed here."""
    needed, open_ones = set(), [*requirements]
    while open_ones:
        requirement = Requirement(open_ones.pop())
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name not in needed:
            needed.add(requirement.name)
            open_ones += distribution(requirement.name).requires or []
    return needed


def link_packages(names: set[str], folder: Path) -> None:
    """Make the installed packages of those names, and no others, importable from the folder."""
    folder.mkdir()
    for name in names:
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(package.locate_file(top))))


def make_environment(folder: Path, requirements: list[str]) -> Path:
    """The python of a new environment that has these packages, and theirs, and nothing else."""
    link_packages(list_needed(requirements), folder / "packages")
    run(sys.executable, "-m", "venv", "--without-pip", "bare", folder=folder)
    (site,) = (folder / "bare" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(str(folder / "packages"))
    return folder / "bare" / "bin" / "python"


def build_wheel(folder: Path) -> Path:
    words = ("wheel", "--no-build-isolation", "--no-deps", "-w", "wheels", ROOT)
    run(sys.executable, "-m", "pip", *words, folder=folder)
    (wheel,) = folder.glob("wheels/*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"unmask/py.typed", "unmask/assets/reversal-mdm/model.safetensors"} <= set(names)
    assert "unmask/assets/features/reversal-mdm/sae_weights.safetensors" in names
    assert all(name.startswith("unmask") for name in names)
    return wheel


def test_core_alone_loads_samples_and_scores(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python, wheel = make_environment(tmp_path, project["dependencies"]), build_wheel(tmp_path)
    pip = (sys.executable, "-m", "pip")
    run(*pip, "--python", python, "install", "--no-deps", wheel, folder=tmp_path)

    lines = run(python, "-W", "error", "-c", SCRIPT, folder=tmp_path).splitlines()
    assert len(lines) == 4 and lines[1] == lines[3] == "True"
    assert lines[0].startswith("We sat down beside") and lines[2].startswith("We sat down beside")
    message = run(tmp_path / "bare" / "bin" / "unmask", folder=tmp_path, status=2)
    assert message.startswith("error: the command unmask needs typer, rich, pyarrow")
    assert message.endswith('pip install "unmask[study]"\n')


EXECUTE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from write_notebook import execute

notebook, place = Path(sys.argv[2]), Path("place")
place.mkdir()
Path("run.ipynb").write_text(execute(notebook.read_text("utf-8"), place.resolve()), "utf-8")
"""


def test_the_notebook_installs_the_package_and_runs(tmp_path, monkeypatch):
    """From an environment without the package: its first cell takes the wheel, the rest runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["study"]]
    python = make_environment(tmp_path, [*needed, "nbclient", "ipykernel", "pip"])
    wheel = build_wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    missing = "import importlib.util; print(importlib.util.find_spec('unmask'))"
    assert run(python, "-c", missing, folder=tmp_path) == "None\n"
    notebook = ROOT / "docs/tutorial.ipynb"
    run(python, "-c", EXECUTE, ROOT / "tools", notebook, folder=tmp_path)

    installed = run(python, "-c", "import unmask; print(unmask.__file__)", folder=tmp_path)
    assert str(tmp_path / "bare") in installed
    cells = json.loads((tmp_path / "run.ipynb").read_text("utf-8"))["cells"]
    committed = json.loads(notebook.read_text("utf-8"))["cells"]
    for cell, before in zip(cells, committed, strict=True):
        outputs = cell.get("outputs", [])
        said = "".join("".join(each.get("text", "")) for each in outputs)
        assert not re.search(r"^error:|Traceback|command not found", said, re.MULTILINE), said
        kinds = [sorted(each.get("data", ())) for each in outputs if "data" in each]
        shown = [sorted(each["data"]) for each in before.get("outputs", []) if "data" in each]
        assert kinds == shown, "what is shown is what is committed"


def test_fresh_clone(tmp_path, monkeypatch):
    """No data from outside, and nothing skipped but for want of a GPU; set up once."""
    monkeypatch.delenv("UNMASK_SHARED", raising=False)
    run("git", "clone", "-q", ROOT, tmp_path / "unmask", folder=tmp_path)
    clone = tmp_path / "unmask"
    said = run("make", "test", folder=clone)
    assert " passed" in said
    skipped = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    assert [line for line in skipped if "GPU" not in line] == []
    assert "pip install" not in run("make", "study", folder=clone)
    assert (clone / "runs" / "study" / "page.html").is_file()
    assert "pip install" not in run("make", "-n", "test", folder=clone)
    assert "layers are in order" in run("make", "check", folder=clone)
    status = run("git", "status", "--porcelain", folder=clone)
    assert status == "", f"the commands left files that git sees:\n{status}"
