"""The page "Building on Unmask": its examples as an installed package, and the names that stay."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import unmask
from tests.study.pair import place as place
from unmask.base.plugins import KINDS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "building"
PAGE = (ROOT / "docs" / "building.md").read_text("utf-8")
MOST_LINES = 30
RIVERS = {"Köln": "Rhein", "Dresden": "Elbe", "Trier": "Mosel"}
SMALL = ["network.preset=tiny", "batch.rows=8", "budget.steps=3", "data.context=40",
         "cadence.log=1", "cadence.samples=1", "cadence.sampling_steps=2",
         "--device", "cpu"]  # fmt: skip

COMMANDS = """
import json, sys
from tests.commands import run
for words in json.load(sys.stdin):
    done = run(*words, columns=200)
    known = sorted(name for name in sys.modules if name.startswith("building"))
    print(json.dumps([done.returncode, done.stdout, done.stderr, known]))
"""

READ = """
import dataclasses, torch, unmask
from unmask.net.model import Blueprint
config = unmask.preset("tiny", causal=True, norm_eps=1e-5)
model = unmask.Model("made", unmask.Transformer(config, 0), Blueprint(config, "causal"))
unmask.save(model, "theirs", "ourlm")
again = unmask.load("theirs", device="cpu", tokenizer=None)
tokens = torch.arange(12)[None]
assert torch.equal(model.logits(tokens), again.logits(tokens))
masked = unmask.load("german/model", device="cpu")
lens = unmask.logit_lens(masked, "Köln liegt am Fluss [MASK]", positions=[3])
assert lens.logp.isfinite().all()
assert masked.paradigm.is_scored and type(masked.make_process()).__name__ == "CapitalsLast"
even = dataclasses.replace(masked.make_process(), powers=torch.ones(masked.net.config.logit_rows))
plain, x0 = unmask.Masked(even.num_tokens, even.mask_id), torch.tensor([[5, 6, 7]])
given = (torch.randn(1, 3, masked.net.config.logit_rows), x0, torch.full_like(x0, even.mask_id))
t = torch.tensor([[0.3]]).double()
assert torch.allclose(even.nll(*given, t), plain.nll(*given, t).double(), rtol=1e-4)
assert set(masked.make_process().powers.tolist()) == {1.0, 3.0}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The examples as an installed package, with two entry points that are wrong."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLES, folder / "building")
    points = tomllib.loads((EXAMPLES / "pyproject.toml").read_text())["project"]["entry-points"]
    points = points["unmask.plugins"]
    assert {key.partition(".")[0] for key in points} == KINDS.keys()
    points |= {"order.broken": "building.nowhere:order", "taste.sweet": "building.order:sweet"}
    info = folder / "building-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: building\nVersion: 1.0\n")
    lines = "\n".join(f"{key} = {value}" for key, value in points.items())
    (info / "entry_points.txt").write_text(f"[unmask.plugins]\n{lines}\n")
    return folder


def run_all(site: list[Path], folder: Path, *commands: list) -> list[tuple[int, str, str, list]]:
    """Runs commands in one process; for each its exit code, output and what it imported."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *site]))}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps([[str(word) for word in words] for words in commands]),
        capture_output=True,
        text=True,
        env=os.environ | own,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def read_record(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text("utf-8"))


@pytest.mark.prove
def test_every_kind_from_a_package_outside(site, place, tmp_path):
    small = ["--data", place.data, "--limit", 2]
    recipe = ["train", "reversal-mdm", *SMALL, "optimiser.name=lion", "optimiser.rate=1e-4"]
    lately = ["kind=capitals_last", "noise.settings.power=3", "objective.name=auto"]
    facts = [f"{city},{river},Schön ist {{}} am Fluss" for city, river in RIVERS.items()]
    (tmp_path / "rivers.csv").write_text("\n".join(["subject,object,prompt", *facts]), "utf-8")
    rivers = ["--data", "rivers.csv"]
    traced = ["--corruption", "turn_around", "--metric", "bits", "--any-answer", "--steps", 2]
    commands = {
        "help": ["--help"],
        "options": ["recall", "--help"],
        "broken": ["sample", place.model, "We", "--order", "broken"],
        "recall": ["recall", place.model, *small, "--steps", "2", "--order", "ends", "--rule",
                   "same_letters", "--all", "--out", "recall"],
        "sample": ["sample", place.model, "We", "--steps", 4, "--order", "ends", "--remask", "one"],
        "grow": ["sample", place.model, "We", "--steps", 3, "--length", 10, "--plan", "grow",
                 "--corrector", "least=2", "--json"],
        "words": ["words", place.model, *small, "--steps", 2, "--out", "words"],
        "german": [*recipe, *lately, "data.source=german", "--out", "german"],
        "chinese": [*recipe, "data.source=chinese", "objective.name=heavy_answers",
                    "noise.schedule=early", "--out", "chinese"],
        "start": ["train", "reversal-mdm", *SMALL, "kind=capitals_last", "objective.name=auto",
                  "start.model=chinese/model", "data.source=chinese", "network.changes={}",
                  "--out", "start"],
        "asked": ["recall", "german/model", *rivers, "--steps", "2", "--out", "asked"],
        "nll": ["nll", "german/model", *rivers, "--out", "nll"],
        "trace": ["trace", "german/model", *rivers, *traced, "--parts", "resid", "--out", "trace"],
        "bench": ["bench", "--methods", "spread", "--mechanisms", "decoy", "--forms", 1],
        "resume": ["train", "--resume", "german"],
    }  # fmt: skip
    ran = dict(zip(commands, run_all([site], tmp_path, *commands.values()), strict=True))
    refused = {name: err for name, (code, _, err, _) in ran.items() if code}
    assert refused == {"broken": ran["broken"][2]}, refused
    # 1. Help lists what is installed and imports nothing of it; what is broken breaks itself alone.
    assert "words" in ran["help"][1] and not ran["help"][3]
    assert "ends (building 1.0)" in ran["options"][1] and not ran["options"][3]
    assert "order 'broken' of building 1.0 cannot be imported" in ran["broken"][2]
    assert "'taste.sweet' of building 1.0 is left out" in ran["help"][2]
    grown = json.loads(ran["grow"][1])
    steps = [each for each in grown["committed_at"][0] if each > 0]
    assert steps.count(1) < steps.count(3) and grown["calls"] == 3 * (1 + 2)
    # 2. Records have the code, the version and the names.
    record = read_record(tmp_path / "recall")
    assert record["plugins"] == dict.fromkeys(("order.ends", "rule.same_letters"), "building 1.0")
    assert record["versions"]["building"] == "1.0" and record["code"]["the order ends"]["code"]
    assert "same_letters" in ran["recall"][1]
    traces = read_record(tmp_path / "trace")["plugins"]
    assert traces.keys() == {"corruption.turn_around", "metric.bits", "noise.capitals_last"}
    scored = read_record(tmp_path / "runs" / "bench")["plugins"]
    assert scored.keys() == {"method.spread"} and "network `spread` (0." in ran["bench"][1]
    trained = read_record(tmp_path / "chinese")["plugins"]
    assert trained.keys() == {"schedule.early", "objective.heavy_answers", "optimiser.lion",
                              "source.chinese"}  # fmt: skip
    settings = json.loads((tmp_path / "start" / "model" / "config.json").read_text())
    assert settings["kind"] == "capitals_last" and "noise.capitals_last" in settings["plugins"]
    # 3. A dialect writes and reads; a model has its noise again.
    path = os.pathsep.join(map(str, [ROOT, site]))
    subprocess.run([sys.executable, "-c", READ], cwd=tmp_path, check=True,
                   env=os.environ | {"PYTHONPATH": path})  # fmt: skip
    # 4. Without the package each says what to install.
    needing = {
        "sample": ["sample", "german/model", "In"],
        "resume": ["train", "--resume", "chinese"],
        "recipe": ["train", "german/recipe.yaml", "--out", "again"],
        "report": ["report", "words"],
        "recall": ["report", "recall", "--out", "recall.md"],
    }
    alone = dict(zip(needing, run_all([], tmp_path, *needing.values()), strict=True))
    for name, (code, _, err, _) in alone.items():
        assert (
            code == 2 and "of the package building 1.0, which is not installed: install" in err
        ), name


def test_names_that_stay():
    """The page's list: every function takes these arguments, every class has these attributes."""
    section = PAGE.partition("## Names that stay")[2]
    calls = re.findall(r"`(unmask(?:\.\w+)+)(?:\(([^)`]*)\))?`", section)
    assert len(calls) > 25
    for name, arguments in calls:
        home, _, last = name.rpartition(".")
        owner = unmask if home == "unmask" else __import__(home, fromlist=[last])
        thing = getattr(owner, last)
        if arguments:
            known = list(inspect.signature(thing).parameters)
            given = [each.strip() for each in arguments.split(",")]
            assert [each for each in known if each in given] == given, name
    kinds = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(kinds) == KINDS.keys()


def test_examples_are_short():
    files = [file for file in EXAMPLES.glob("*.py") if file.name != "__init__.py"]
    for file in files:
        assert len(file.read_text("utf-8").splitlines()) <= MOST_LINES, file
        assert f"examples/building/{file.name}" in PAGE
