"""The wheel in an environment with the core dependencies alone. Run by `make prove`."""

import os
import subprocess
import sys
import tomllib
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


def test_core_alone_loads_samples_and_scores(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    link_packages(list_needed(project["dependencies"]), tmp_path / "core")
    run(sys.executable, "-m", "venv", "--without-pip", "bare", folder=tmp_path)
    python = tmp_path / "bare" / "bin" / "python"
    (site,) = (tmp_path / "bare" / "lib").glob("python*/site-packages")
    (site / "core.pth").write_text(str(tmp_path / "core"))
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", "wheels", ROOT, folder=tmp_path)
    (wheel,) = tmp_path.glob("wheels/*.whl")
    run(*pip, "--python", python, "install", "--no-deps", wheel, folder=tmp_path)

    lines = run(python, "-W", "error", "-c", SCRIPT, folder=tmp_path).splitlines()
    assert len(lines) == 4 and lines[1] == lines[3] == "True"
    assert lines[0].startswith("We sat down beside") and lines[2].startswith("We sat down beside")
    message = run(tmp_path / "bare" / "bin" / "unmask", folder=tmp_path, status=2)
    assert message.startswith("error: the command unmask needs typer, rich, pyarrow")
    assert message.endswith('pip install "unmask[study]"\n')
