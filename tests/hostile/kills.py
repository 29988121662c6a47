"""kill -9 at random moments, then the same command again: what an undisturbed run leaves.

`python -m tests.hostile kills --help` tries every verb that writes and prints a table. A verb that
comes later joins by a line in `KILLED`. That changed data, models, tokenizers and settings are
refused on resuming is shown beside each verb: tests/measures/test_resuming.py (every measure),
tests/training/test_inputs.py, tests/study/test_pipeline.py.
"""

import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.hostile.calls import CORPORA, RUNNING_TEXT, TINY, Pieces
from tests.hostile.pages import write_page
from unmask.base.files import write_json
from unmask.base.runs import is_passing
from unmask.net.hub import RECIPE

KILLS = 10
FORKS = multiprocessing.get_context("forkserver")
# Children begin with everything imported: a kill then falls into the run, not into its imports.
FORKS.set_forkserver_preload(
    ["tests.hostile.kills", "torch", "pyarrow.parquet", "scipy.stats", "sklearn.linear_model",
     "matplotlib.pyplot", "unmask.cli.main", "unmask.measures.runner", "unmask.study.pipeline",
     "unmask.training.run", "unmask.sweep.run", "unmask.report.render_terminal", "lm_eval",
     "unmask.explorer.server", "tests.explorer.serving"]
)  # fmt: skip
Write = Callable[[Pieces, Path], list[str]]
EXPLORE = "explore"


def measure(name: str, *words: str, **changes: Any) -> Write:
    """A command of a measure on both models, small but of several parts."""

    def write(pieces: Pieces, out: Path) -> list[str]:
        own = dict.fromkeys(RUNNING_TEXT, pieces.folder / "perplexity.txt")
        own |= {each: pieces.folder / each for each in CORPORA}
        options = list(words)
        if not words:
            given = {key: own for key, own in TINY.get(name, {}).items() if key not in _FLAGS}
            given |= changes
            texts = {key: _spell(value) for key, value in given.items()}
            options = [f"--{key.replace('_', '-')}={text}" for key, text in texts.items()]
            options += ["--no-heads"] if name == "paths" else []
        subjects = [pieces.places["diffusion"], pieces.places["twin"]]
        if name in _MASKED:
            subjects = subjects[:1]
        if name in ("symmetry", "correctors", "gradients"):
            pairs = [str(pieces.pairs)] if name == "symmetry" else []
            return [name, *pairs, *options, "--out", str(out)]
        data = str(own.get(name, pieces.places["corpus"]))
        return [name, *subjects, "--data", data, *options, "--device", "cpu", "--out", str(out)]

    return write


_FLAGS = ("probes", "heads")
_MASKED = ("mending", "guidance", "order", "parallel", "transparency", "steer", "lens")
"""Measures of diffusion models alone."""


def on_shipped(name: str, *words: str) -> Write:
    """A command of a measure on the diffusion model that comes with the package."""
    own = {"knowns": "knowns.json", "planted": "planted"}

    def write(pieces: Pieces, out: Path) -> list[str]:
        data = ["--data", str(pieces.folder / own[name])] if name in own else []
        return [name, "reversal-mdm", *data, *words, "--device", "cpu", "--out", str(out)]

    return write


def _spell(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def write_study(pieces: Pieces, out: Path) -> list[str]:
    pair = ["--model", pieces.places["diffusion"], "--twin", pieces.places["twin"]]
    words = ["study", *pair, "--data", pieces.places["corpus"], "--quick", "--guidance", "0"]
    return [*words, "--device", "cpu", "--out", str(out)]


SMALL = ["data={source: reversal, facts: 2, vocab: 600, context: 80}", "batch.rows=2",
         "network={preset: tiny, changes: {layers: 1, width: 16, mlp_width: 16}}"]  # fmt: skip


def write_train(pieces: Pieces, out: Path) -> list[str]:
    if (out / RECIPE).is_file():
        return ["train", "--resume", str(out), "--device", "cpu"]
    words = ["budget.steps=24", "cadence={log: 1, checkpoint: 4, facts: 0, samples: 0}"]
    return ["train", "reversal-mdm", *SMALL, *words, "--device", "cpu", "--out", str(out)]


def write_sweep(pieces: Pieces, out: Path) -> list[str]:
    return ["sweep", str(pieces.folder / "sweep.yaml"), "--device", "cpu", "--out", str(out)]


def write_harness(pieces: Pieces, out: Path) -> list[str]:
    tasks = pieces.folder / "tasks"
    named = ["--tasks", "made_choice,made_text", "--include", str(tasks)]
    words = ["harness", pieces.places["diffusion"], *named, "--likelihood", "chain"]
    return [*words, "--device", "cpu", "--out", str(out)]


def write_sample(pieces: Pieces, out: Path) -> list[str]:
    words = ["sample", pieces.places["diffusion"], "They say", "--steps", "4", "--number", "20"]
    return [*words, "--device", "cpu", "--save", str(out / "texts.safetensors")]


def report(name: str) -> Write:
    def write(pieces: Pieces, out: Path) -> list[str]:
        return ["report", str(pieces.represent), "--out", str(out / name)]

    return write


def data(name: str, *words: str, given: Sequence[str] = ()) -> Write:
    """A command that makes data; `given` are names of what is in the folder of the pieces."""

    def write(pieces: Pieces, out: Path) -> list[str]:
        sources = [str(pieces.folder / each) for each in given]
        is_second = name in ("biographies", "text")
        places = [str(out), *sources] if is_second else [*sources, str(out)]
        return ["data", "make", name, *places, *words]

    return write


KILLED: dict[str, Write] = {
    "train": write_train,
    "sweep": write_sweep,
    "study": write_study,
    "recall": measure("recall", "--steps", "1,2,4,8", "--guidance", "0"),
    "trace": measure("trace", "--facts", "3", "--samples", "2", "--steps", "4", "--corruption",
                     "mean", "--any-answer"),
    "represent": measure("represent", "--facts", "3", "--search-steps", "6", "--layer", "all"),
    "edit": measure("edit", "--facts", "3", "--groups", "p2d,d2p", "--layer", "0", "--objects",
                    "swap", "--moments", "identity", "--prefixes", "1", "--length", "24"),
    "symmetry": measure("symmetry", permutations=2000),
    "order": measure("order", limit=3, steps=8), "alignment": measure("alignment", facts=3),
    "nll": measure("nll", limit=6), "features": measure("features"),
    "factorization": measure("factorization", limit=6), "steer": measure("steer", steps=4),
    "knowns": on_shipped("knowns", "--limit", "4"), "subspaces": measure("subspaces", updates=9),
    "perplexity": measure("perplexity", repeats=8),
    "quality": measure("quality", steps=(2, 4)),
    "mending": measure("mending", calls=(2, 4)), "lens": measure("lens"),
    "infilling": measure("infilling", gaps=(1, 2)),
    "parallel": measure("parallel", steps=(1, 2)), "transparency": measure("transparency"),
    "knockout": measure("knockout", facts=3, windows=(1, 2)),
    "paths": measure("paths", facts=3), "interchange": measure("interchange", facts=3),
    "erasure": on_shipped("erasure", "--facts", "2", "--phrasings", "1", "--groups", "d2p",
                          "--states", "8", "--starts", "0", "--draws", "1"),
    "slots": on_shipped("slots", "--facts", "4", "--phrasings", "2", "--groups", "d2p",
                     "--permutations", "99"),
    "relearn": measure("relearn", facts=2, rehearsed=0, updates=2),
    "planted": on_shipped("planted", "--people", "2", "--counts", "1", "--shapes", "prefix",
                          "--lengths", "44", "--orders", "left", "--remasks", "none"),
    "guidance": measure("guidance"),
    "correctors": measure("correctors", draws=2, rows=400),
    "gradients": measure("gradients", number=60, length=4), "circuit": measure("circuit"),
    "bench": lambda pieces, out: ["bench", "--methods", "random,zero", "--mechanisms", "decoy",
                                  "--forms", "1", "--out", str(out)],
    "harness": write_harness,
    "toy": lambda pieces, out: ["toy", "--variants", "masked,causal", "--steps", "30", "--samples",
                                "40", "--out", str(out)],
    "sample --save": write_sample,
    "report (html)": report("page.html"), "report (md)": report("page.md"),
    "convert": lambda pieces, out: ["convert", pieces.places["twin"], str(out)],
    "data make reversal": data("reversal", "--facts", "12"),
    "data make retrieval": data("retrieval"), "data make relationship": data("relationship"),
    "data make sets": data("sets"), "data make sealed": data("sealed"),
    "data make factless": data("factless", "--facts", "6"),
    "data make cities": data("cities", "--facts", "6"),
    **{f"data make {name}": data(name, given=["berglund"]) for name in ("swapped", "strangers")},
    "data make passages": data("passages", "--vocab", "300", given=["passages.jsonl"]),
    "data make biographies": data("biographies", "--texts", "8", given=["lives.jsonl"]),
    "data make text": data("text", "--vocab", "400", given=["long.txt"]),
    EXPLORE: lambda pieces, out: [EXPLORE, str(pieces.folder), str(out)],
}  # fmt: skip
"""Every verb that writes, and the explorer, whose edits are in memory: a session of calls."""


def run_words(words: list[str], log: str) -> None:
    """In a child: the command line, its output in a file."""
    import torch

    from unmask.cli.main import run_command_line

    torch.set_num_threads(1)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if words[0] == EXPLORE:
        explore(*map(Path, words[1:]))
        return
    sys.argv = ["unmask", *words]
    run_command_line()


def explore(folder: Path, out: Path) -> None:
    """A session of the explorer: a text, an edit, the text again, a trace; its answers are kept."""
    import unmask
    from tests.explorer.serving import open_client, read_events
    from unmask.explorer.session import Explorer

    prompt, subject = "They say Ada makes", [9, 12]
    canvas = {"canvas": {"prompt": prompt}, "settings": {"steps": 4, "length": 16}}
    fact = {"prompt": prompt, "subject": subject, "steps": 4}
    wanted = {"old": "red boats", "new": "old clocks", "layer": 0, "search_steps": 20, "length": 16}
    calls = [("write", canvas), ("edit", fact | wanted), ("write", canvas)]
    calls += [("trace", fact | {"answer": "red boats", "samples": 20})]
    explorer, answers = Explorer({"model": unmask.load(folder / "diffusion", device="cpu")}), []
    with open_client(explorer) as client:
        for name, body in calls:
            sent = client.post(f"/api/{name}", json={"model": "model", **body})
            answers += read_events(sent.text)
    write_json(out / "answers.json", {"answers": answers})


def start(words: list[str], log: Path) -> multiprocessing.process.BaseProcess:
    process = FORKS.Process(target=run_words, args=(words, str(log)))
    process.start()
    return process


_VARYING = {"seconds", "processor_seconds", "time", "versions", "started", "date", "start_time",
            "end_time", "git_hash", "pretty_env_info", "task_hashes", "tokens_per_second",
            "peak_share", "total_evaluation_time_seconds"}  # fmt: skip
"""What two undisturbed runs differ in."""


def read_outcome(folder: Path) -> dict[str, object]:
    """All that a run leaves; its parts, checkpoints, locks and drafts are its own."""
    outcome: dict[str, object] = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = str(path.relative_to(folder))
        if {"parts", "checkpoints"} & set(path.parts) or is_passing(path):
            continue
        outcome[name] = _read(path, str(folder))
    return outcome


def _read(path: Path, place: str) -> object:
    """What a file says, wherever it lies; of a picture that it is there."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        kept = [column for column in table.column_names if column != "seconds"]
        return repr(table.select(kept).to_pylist())  # NaN is like NaN here
    if path.suffix == ".json":
        return repr(_drop(json.loads(path.read_text("utf-8")))).replace(place, "")
    if path.suffix == ".jsonl":
        return repr([_drop(json.loads(line)) for line in path.read_text("utf-8").splitlines()])
    if path.suffix in (".html", ".md"):
        text = path.read_text("utf-8").replace(place, "")
        return re.sub(r"\d[\d.]*( s\b| seconds)", "", text)
    return None if path.suffix in (".png", ".pdf") else path.read_bytes()


def _drop(value: Any) -> Any:
    """A value of JSON without what varies."""
    if isinstance(value, dict):
        return {key: _drop(own) for key, own in value.items() if key not in _VARYING}
    return [_drop(own) for own in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Killed:
    """What became of the kills of a verb."""

    verb: str
    seconds: float
    """How long an undisturbed run takes."""
    kills: int
    late: int
    """Kills that came after the end: they do not count."""
    with_files: int
    """Kills that found something written."""
    equal: int
    """Repeated commands that left what an undisturbed run does."""
    problem: str = ""


def kill_and_repeat(verb: str, pieces: Pieces, folder: Path, kills: int = KILLS) -> Killed:
    """Kill a command at random moments, each time in a folder of its own, and give it again."""
    log, write, moments = folder / "log", KILLED[verb], random.Random(verb)
    folder.mkdir(parents=True, exist_ok=True)
    idle = FORKS.Process(target=os.getpid)  # the imports of the first child are no part of a run
    idle.start()
    idle.join()
    begin = time.perf_counter()
    whole = start(write(pieces, folder / "whole" / "run"), log)
    whole.join(600)
    seconds = time.perf_counter() - begin
    if whole.exitcode != 0:
        return Killed(verb, seconds, 0, 0, 0, 0, f"undisturbed: {log.read_text()[-300:]}")
    expected = read_outcome(folder / "whole" / "run")
    done = late = with_files = equal = 0
    problem = ""
    while done < kills and late < 5 * kills:
        out = folder / f"killed-{done}-{late}" / "run"
        process = start(write(pieces, out), log)
        process.join(moments.uniform(0.05, 1.0) * seconds)
        if process.exitcode is not None:
            late += 1
            continue
        process.kill()
        process.join()
        done += 1
        with_files += any(each.is_file() for each in out.parent.rglob("*"))
        again = start(write(pieces, out), log)
        again.join(600)
        outcome = read_outcome(out)
        # The kill may have come after the last file: what is there is whole, and is not replaced.
        is_there = again.exitcode == 2 and "already exists" in log.read_text()
        if outcome == expected and (again.exitcode == 0 or is_there):
            equal += 1
        else:
            names = [n for n in outcome.keys() | expected if outcome.get(n) != expected.get(n)]
            problem = f"{sorted(names)[:3]} differ, code {again.exitcode}, {log.read_text()[-300:]}"
    return Killed(verb, seconds, done, late, with_files, equal, problem)


def make_places(folder: Path) -> Pieces:
    """The pieces, with what verbs besides need: corpora, texts, tasks, a file of a sweep."""
    from tests.berglund import write_berglund_files
    from tests.harness.tasks import write_tasks
    from tests.hostile.calls import LIVES
    from tests.hostile.pieces import make_pieces
    from tests.study.pair import make_place
    from unmask.data.corpus import save_corpus

    if not folder.is_dir():
        make_place(folder)
    pieces = make_pieces(folder)
    for name, corpus in CORPORA.items():
        save_corpus(corpus, folder / name, pieces.model.tokenizer)
    write_tasks(folder / "tasks")
    (berglund := folder / "berglund").mkdir()
    write_berglund_files(berglund)
    lives = "".join(json.dumps({"text": life}) + "\n" for life in LIVES)
    (folder / "lives.jsonl").write_text(lives)
    long = "\n\n".join(f"{life} {i}" for i, life in enumerate(LIVES * 60))
    (folder / "long.txt").write_text(long)
    people = [
        f"{name} {other}" for name in ("Ada", "Bo", "Cy") for other in ("Kern", "Dorn", "Vesk")
    ]
    lines = [{"relation": "home", "forward": "{} lives in", "backward": "In {} lives"}] + [
        {"passage": f"{name} lives in {name[::-1].title()}.",
         "triples": [{"head": name, "relation": "home", "tail": name[::-1].title()}]}
        for name in people
    ]  # fmt: skip
    (folder / "passages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cost = {"verb": "perplexity", "data": str(folder / "perplexity.txt"), "value": "nll"}
    cost |= {"settings": {"repeats": 2, "limit": 20}}
    small = {"data": {"source": "reversal", "facts": 2, "vocab": 600, "context": 80}}
    small |= {"network": {"preset": "tiny", "changes": {"layers": 1, "width": 16}}}
    small |= {"batch": {"rows": 2}, "budget": {"steps": 6}}
    small |= {"cadence": {"log": 1, "checkpoint": 2, "facts": 0, "samples": 0}}
    content = {"title": "Two cells", "recipe": "reversal-mdm", "grids": [{"seed": [0, 1]}],
               "changes": small, "measures": {"cost": cost}}  # fmt: skip
    (folder / "sweep.yaml").write_text(json.dumps(content))
    return pieces


def main(words: Sequence[str]) -> int:
    """Try the verbs, add them to those that `--out` has, and write the page."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m tests.hostile kills", description=__doc__)
    parser.add_argument("--verbs", default=",".join(KILLED), help="names in KILLED")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--out", type=Path, default=Path("build", "kills.json"))
    given = parser.parse_args(words)
    known = json.loads(given.out.read_text("utf-8")) if given.out.is_file() else []
    rows = {each["verb"]: each for each in known}
    with tempfile.TemporaryDirectory() as folder:
        pieces = make_places(Path(folder) / "pair")
        for number, verb in enumerate(given.verbs.split(",")):
            row = kill_and_repeat(verb, pieces, Path(folder) / str(number), given.kills)
            print(row, flush=True)
            rows[verb] = asdict(row)
            write_json(given.out, list(rows.values()))
    rows, keys = [rows[verb] for verb in KILLED if verb in rows], ("kills", "with_files", "equal")
    note = "Written by `python -m tests.hostile kills`; kills before the first file count as well."
    columns = ("command", "kills midway", "with files there", "equal to an undisturbed run")
    table = [(row["verb"], *(row[key] for key in keys)) for row in rows]
    write_page("kills.md", "kill -9 midway, and the same command again", note, columns, table, True)
    return int(any(row["kills"] != row["equal"] or row["problem"] for row in rows))
