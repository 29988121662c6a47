"""Every stage of `make paper` once, on a CPU: each command as it stands, with its sizes cut.

GPU minutes are scarce: a path, two options that do not go together or a page that cannot be drawn
should show here first. No number that is measured here means anything. Run by `make prove`.
"""

import json
import lzma
import re
import shlex
import shutil
import time
from pathlib import Path

import pytest
import yaml

from tests.berglund import PEOPLE, write_berglund_files
from tests.scripts import load_script
from unmask.base.identity import digest_file
from unmask.data.text import read_documents
from unmask.data.tokenizer import Tokenizer
from unmask.net.loading import save
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer

ROOT = Path(__file__).parents[2]
paper = load_script("paper/run.py")
LAYERS = 4
TRAINING = {
    "budget.tokens": "null", "budget.steps": "2", "batch.rows": "4", "batch.micro": "null",
    "schedule.warmup": "1", "cadence.log": "1",
}  # fmt: skip
ALWAYS: dict[str, dict[str, str]] = {
    "unmask train": TRAINING,
    "unmask train (?!.*start.model)": {"network.preset": "tiny"},
    r"unmask train \{worlds\}": {"batch.rows": "26"},  # of which two are new
    "unmask (recall|nll|factorization|knowns|order|lens)": {"--limit": "2"},
    "unmask (recall|order|lens)": {"--steps": "2"},
    # Networks that have learned nothing recall nothing.
    "unmask (trace|knockout|paths)": {"--any-answer": "", "--facts": "1", "--steps": "2"},
    "unmask (interchange|slots)": {"--facts": "4"},
    "unmask erasure": {"--facts": "2", "--states": "8", "--draws": "1"},
    "unmask represent": {"--facts": "2", "--steps": "2", "--prefixes": "2"},
    "unmask symmetry": {"--permutations": "19", "--tests": "99"},
    "unmask slots": {"--permutations": "19"},
    "unmask relearn": {
        "--facts": "2", "--rehearsed": "0", "--updates": "1", "--steps": "2", "--rows": "2",
    },
    "unmask alignment": {"--facts": "2"},
    "unmask planted": {
        "--people": "1", "--at-steps": "1", "--lengths": "32", "--counts": "4", "--starts": "0",
        "--orders": "confidence", "--remasks": "none",
    },
    "unmask guidance": {
        "--passes": "8,16",
        "--draws": "2",
        "--texts": "4",
        "--trained-on": "8",
    },
    "unmask correctors": {"--languages": "1", "--draws": "2", "--rows": "4", "--most-calls": "8"},
    "unmask gradients": {"--number": "2", "--tokens": "2", "--length": "2", "--draws": "2"},
    "unmask circuit": {
        "--any-answer": "", "--facts": "1", "--known": "0", "--edges": "0.001",
        "--strongest": "0.001", "--points": "1", "--neurons": "1", "--steps": "4",
    },
    "unmask subspaces": {"--facts": "6", "--known": "0", "--updates": "2", "--ranks": "2"},
    "unmask features": {
        "--facts": "2", "--texts": "2", "--draws": "1", "--size": "32", "--k": "4",
        "--train-steps": "2", "--steps": "2",
    },
    "unmask steer": {
        "--number": "1", "--texts": "2", "--facts": "1", "--lines": "4", "--steps": "2",
        "--schedules": "all,late", "--strengths": "0.4",
    },
    "unmask bench": {"--methods": "lens,interchange", "--forms": "1"},
    "unmask quality": {"--texts": "2", "--steps": "2,4", "--length": "32"},
    "unmask mending": {"--texts": "2", "--calls": "2,4", "--length": "32"},
    "unmask sweep": {"--on": "local:2"},
    "unmask edit": {
        "--facts": "1", "--layer": "1", "--search-steps": "3", "--tune-updates": "2",
        "--moment-tokens": "2000", "--shrink": "0.1", "--steps": "2", "--text-rows": "2",
        "--prefixes": "1",
    },
    "unmask infilling": {"--texts": "2", "--length": "24", "--gaps": "1,4", "--candidates": "2"},
    "unmask parallel": {"--limit": "1", "--steps": "1,4", "--thresholds": "0.5"},
    "unmask transparency": {"--limit": "1", "--steps": "4", "--languages": "1"},
    "unmask perplexity": {"--limit": "300", "--context": "32", "--stride": "16"},
    "python paper/keep_language": {"--prompts": "2", "--characters": "300", "--processes": "1"},
    "python paper/forced": {"--updates": "2", "--width": "16", "--seeds": "0", "--device": "cpu"},
    "python paper/choose_rate": {"--steps": "2"},
    "python paper/best_recall": {"--steps": "2"},
    "python paper/editing": {
        "--tiny": "", "--facts": "1", "--few": "1", "--clamps": "4", "--layers": "1",
        "--on": "local:2",
    },
    "python paper/(shipped|corpora)": {"--tiny": ""},
    "python paper/speculation": {"--texts": "1", "--prompt": "4", "--length": "12"},
    "python paper/embeddings": {"--permutations": "19"},
    "python paper/limited_text": {"--tokens": "4000 6000", "--facts": "2", "--vocab": "800"},
}  # fmt: skip
"""What every command that begins so is given, in place of its own value if it has one."""
PRESENT = {
    "--dtype bfloat16": "--dtype float32",
    "--seeds 0,1,2": "--seeds 0,1",
    "--consider [0-9]+": "--consider 2",
    "--memory 20": "--memory 1",
    " --recalled": "",  # networks that learned nothing recall nothing
    "--vocab 16384": "--vocab 400",
    "--texts 10000": "--texts 24",
    "--words 16": "--words 4",
    "--layer 2,8,14,20,26": "--layer 0,1,2",
    "--edit-layer 15": "--edit-layer 1",
    r"--layer \{each\}": "--layer 1",
    "text-1000000": "text-4000",
    "text-2000000": "text-6000",
    "text-50000": "text-4000",
    "text-100000": "text-6000",
}
"""What is cut where it is there."""
FILES = {
    "sweeps/*.yaml": {
        "network.preset: 19M": "network.preset: tiny-grouped",
        "preset: (19M|6M|tiny)": "preset: tiny", "rows: [0-9]+": "rows: 4",
        "micro: [0-9]+": "micro: 2", "tokens: [0-9_]+": "tokens: 512",
        "warmup: [0-9]+": "warmup: 1",
        "width: [0-9]+, layers: 4, heads: 4, mlp_width: [0-9]+": "width: 32, layers: 2, heads: 2",
        "limit: [0-9_]+": "limit: 200", "context: 256": "context: 128",
        "stride: 255": "stride: 127", "repeats: 4": "repeats: 2", "texts: 32": "texts: 2",
        "length: 128": "length: 32", r"\[8, 32, 128\]": "[2, 4]", r"\[0, 1, 2\]": "[0, 1]",
        r"\[(30, 122|12, 49).*\]": "[2, 4, 6]", "steps: (6100|1220)": "steps: 6",
    },
    "tries/language.yaml": {r"(?s)rate-1e-3:.*?(?=inserted:)": ""},
    "keep_language.py": {
        '"cadence.facts": 0': '"budget.steps": 2, "batch.rows": 6, "cadence.facts": 0',
        "steps=[(]16,[)]": "steps=(2,)", "context=128, stride=64": "context=32, stride=16",
    },
    "study_page.py": {"STEPS = 0.8, 32": "STEPS = 0.8, 2"},
    "best_recall.py": {
        "budget.steps=3600": "budget.steps=3",
        '"steps": 32': '"steps": 2',
        "sampling.steps=64": "sampling.steps=4",
    },
}  # fmt: skip
"""How sizes in sweep files and scripts are cut."""


SLOW = "asks the shipped pair, for minutes on a CPU; the same commands are run of a tiny pair"
ELSEWHERE = "is run row by row, and its page drawn, in test_factorial.py"
LEFT_OUT = {
    "(shared|vectors|mechanism|editing|relearn|alignment)-shipped": SLOW,
    "one-store": "is drawn from tables of the shipped pair, which are kept",
    "factorial(-.*)?": ELSEWHERE,
    "symmetry(-shipped)?": "needs vectors of ten facts of each group, and has tests of its own",
}
"""Stages that are not rehearsed, and why."""


def cut(command: str) -> str:
    """A command with small sizes; names in braces stay."""
    for pattern, replacement in PRESENT.items():
        command = re.sub(pattern, replacement, command)
    words = shlex.split(command)
    for start, changes in ALWAYS.items():
        for name, value in changes.items() if re.match(start, command) else ():
            if name.startswith("--"):
                given = [name, *value.split()]
                at = words.index(name) if name in words else len(words)
                words[at : at + len(given)] = given
            else:
                words = [word for word in words if not word.startswith(f"{name}=")]
                words.insert(3, f"{name}={value}")
    return shlex.join(words)


def write_data(folder: Path) -> Path:
    """Made-up data sets in the places where those of the stages lie."""
    write_berglund_files(make_folder(folder / "reversal_curse"))
    people = [person for group in PEOPLE.values() for person in group]
    knowns = [
        {"subject": person.name, "attribute": person.did, "prompt": f"{person.name} once"}
        for person in people
    ]
    (folder / "knowns.json").write_text(json.dumps(knowns))
    for number, name in enumerate([*map(str, range(6)), "valid"]):
        path = make_folder(folder / "text") / f"wikipedia-{name}.jsonl.xz"
        with lzma.open(path, "wt") as file:
            for person in people:
                life = f"{person.name} (born 19{number}1) was {person.plain}. "
                place = f"Town {number} of {person.name} is where one {person.did}. "
                for text in (life + 6 * place, life + 3 * place, 8 * place, 5 * place):
                    file.write(json.dumps({"title": person.name, "text": text}) + "\n")
    return folder


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def make_plan(folder: Path, data: Path) -> Path:
    """A folder like the repository's, with cut stages, sweeps and scripts, and a tiny start."""
    shutil.copytree(ROOT / "paper", folder / "paper", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tools").mkdir()
    copying = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2])"
    (folder / "tools" / "unpack_smollm2.py").write_text(copying)
    for pattern, changes in FILES.items():
        for path in (folder / "paper").glob(pattern):
            text = path.read_text()
            for old, new in changes.items():
                text = re.sub(old, new, text)
            path.write_text(text)
    plan = yaml.safe_load((folder / "paper" / "stages.yaml").read_text())
    plan["data"]["smollm2"]["path"] = "start"
    make_start(data / "start", data)
    for each in plan["data"].values():
        place = data / each["path"]
        files = [place] if place.is_file() else place.iterdir()
        each["files"] = {f.name if f != place else ".": digest_file(f) for f in files}
    for stage in plan["stages"]:
        stage["run"] = [cut(command) for command in stage["run"]]
    path = folder / "stages.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


def make_start(folder: Path, data: Path) -> None:
    """A network of SmolLM2's layout and very narrow, that has learned nothing."""
    texts = [*read_documents([data / "text" / "wikipedia-0.jsonl.xz"])]
    texts += [path.read_text() for path in (data / "reversal_curse").glob("*_train.jsonl")]
    tokenizer = Tokenizer.train(texts, 1500)
    bare = Tokenizer(tokenizer.backend, None, tokenizer.pad_id, tokenizer.end_id)
    config = preset(
        "tiny", causal=True, layers=LAYERS, vocab_size=bare.vocab_size, context=512, tied=True,
        width=16, heads=2, mlp_width=32,
    )  # fmt: skip
    model = Model("tiny", Transformer(config), Blueprint(config, "causal"), bare)
    save(model, folder, "llama")


def rehearse(plan: Path, data: Path) -> dict[str, str]:
    """Run the stages in this process, from the plan's folder: what failed, and why."""
    known, stages = paper.read_stages(plan)
    runner = paper.Runner(known, stages, data)
    failed: dict[str, str] = {}
    for stage in stages.values():
        if reasons := [why for name, why in LEFT_OUT.items() if re.fullmatch(name, stage.name)]:
            print(f"{stage.name}: left out, since it {reasons[0]}", flush=True)
            continue
        start, missing = time.monotonic(), sorted(set(stage.needs) & set(failed))
        try:
            assert not missing, f"needs {', '.join(missing)}"
            assert runner.run(stage), "did not end"
            assert stage.page is None or Path(stage.page).is_file(), f"{stage.page} is missing"
        except Exception as error:  # the others go on: one run shows all that fails
            failed[stage.name] = f"{type(error).__name__}: {error}"
        state = "failed" if stage.name in failed else "rehearsed"
        print(f"{stage.name}: {state} in {time.monotonic() - start:.1f} s", flush=True)
    return failed


@pytest.mark.prove
@pytest.mark.usefixtures("unchecked_shapes")
def test_every_stage_runs_and_every_page_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    data = write_data(tmp_path / "data")
    plan = make_plan(tmp_path, data)
    monkeypatch.chdir(tmp_path)
    failed = rehearse(plan, data)
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())
