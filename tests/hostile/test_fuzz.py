"""Hostile settings, files and folders at every entry: a sentence or a result, in seconds.

`make test` runs a slice, `make prove` all of it. What the tables call bad must be refused; nothing
may end in a traceback, hang, write outside its folder, unpickle, or open a connection.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unmask
from tests.hostile.calls import CALLS, NOT_CALLED, RUNNING_TEXT, TINY, Pieces
from tests.hostile.fuzzing import (
    Attempt,
    draw_good,
    list_bad,
    run_attempt,
    run_verb,
    spoil_bytes,
    spoil_header,
    spoil_json,
)
from tests.hostile.kills import KILLED, KILLS
from tests.hostile.test_explorer_requests import REQUESTS
from tests.hostile.test_signals import VERBS
from tests.training.runs import SMALL
from unmask.cli.main import load_verb
from unmask.measures.runner import read_result
from unmask.measures.table import list_measures
from unmask.training.recipes_io import read_recipe

Draw = Callable[[Any], Any]


def list_bad_values(name: str) -> dict[str, list[Any]]:
    """What the arguments and settings of a public call must not be."""
    call = CALLS[name]
    bad = {key: list(values) for key, values in call.bad.items()}
    if call.settings is not None:
        hints = get_type_hints(call.settings)
        for field in fields(call.settings):
            if field.name not in call.leave_out:
                bad.setdefault(field.name, []).extend(list_bad(hints[field.name], field.metadata))
    return bad


def attempt_call(name: str, key: str, value: Any, pieces: Pieces, out: Path) -> Attempt:
    call = partial(CALLS[name].call, pieces, out, {key: value})
    return Attempt(call, f"unmask.{name}({key}={value!r:.60})", is_bad=True)


def fuzz_call(draw: Draw, pieces: Pieces, out: Path) -> Attempt:
    """One argument or setting of a public call is bad."""
    name = draw(st.sampled_from(sorted(CALLS)))
    bad = list_bad_values(name)
    key = draw(st.sampled_from(sorted(key for key, values in bad.items() if values)))
    number = draw(st.integers(0, len(bad[key]) - 1))
    return attempt_call(name, key, bad[key][number], pieces, out)


def fuzz_settings(draw: Draw, pieces: Pieces, out: Path) -> Attempt:
    """Several settings of a call are others than usual, each of them possible."""
    takes = {name: call for name, call in CALLS.items() if call.settings is not None}
    name = draw(st.sampled_from(sorted(set(takes) - {"run_study", "run_toy", "NetConfig"})))
    call, hints = takes[name], get_type_hints(takes[name].settings)
    held = {"device", "dtype", "memory", "prefix_text", "trace", "splits", *call.leave_out}
    options = [f for f in fields(call.settings) if "help" in f.metadata and f.name not in held]
    chosen = draw(st.lists(st.sampled_from(options), min_size=1, max_size=3, unique=True))
    short = TINY.get(name, {})  # what keeps a call short is not emptied: nothing may mean all
    changes = {f.name: draw_good(draw, hints[f.name], f, bool(short.get(f.name))) for f in chosen}
    changes = {key: value for key, value in changes.items() if value is not None or key == "clamp"}
    if draw(st.booleans()) and name not in ("symmetry", "recall"):
        pieces = replace(pieces, model=pieces.twin)
    return Attempt(lambda: call.call(pieces, out, changes), f"unmask.{name}({changes!r:.200})")


def give_words(verb: tuple[str, ...], pieces: Pieces, out: Path) -> list[str]:
    """A command line of the verb that works."""
    model, data = pieces.places["diffusion"], pieces.places["corpus"]
    name = " ".join(verb)
    if name in list_measures():
        tiny = {key: value for key, value in TINY.get(name, {}).items() if key != "probes"}
        words = [f"--{key}={','.join(map(str, v)) if isinstance(v, tuple) else v}"
                 for key, v in tiny.items()]  # fmt: skip
        if name == "symmetry":
            return [name, str(pieces.pairs), "--out", str(out), *words]
        if name in ("correctors", "gradients"):
            return [name, "--out", str(out), *words]
        own = {"knowns": pieces.folder / "knowns.json"}
        own |= dict.fromkeys(RUNNING_TEXT, pieces.folder / "perplexity.txt")
        given = ["--data", str(own.get(name, data)), "--device", "cpu"]
        return [name, model, *given, "--out", str(out), *words]
    small = [f"{key}={json.dumps(value)}" for key, value in SMALL.items()]
    return {
        "sample": ["sample", model, "They say", "--steps", "2", "--length", "9", "--device", "cpu"],
        "train": ["train", "reversal-mdm", *small, "budget.steps=1", "--out", str(out),
                  "--device", "cpu"],
        "study": ["study", "--model", model, "--data", data, "--stages", "nll", "--quick",
                  "--out", str(out), "--device", "cpu"],
        "toy": ["toy", "--variants", "masked", "--steps", "1", "--samples", "1", "--out", str(out)],
        "explore": ["explore", model, "--no-open", "--device", "cpu"],
        "harness": ["harness", model, "--tasks", "none.yaml", "--out", str(out),
                    "--device", "cpu"],
        "sweep": ["sweep", "none.yaml", "--out", str(out), "--device", "cpu"],
        "report": ["report", str(pieces.represent), "--out", f"{out}.html"],
        "models": ["models"], "info": ["info", model],
        "convert": ["convert", model, str(out)],
        "data show": ["data", "show", data],
        "data check": ["data", "check", data],
        "data make reversal": ["data", "make", "reversal", str(out), "--facts", "1"],
        "data make retrieval": ["data", "make", "retrieval", str(out), "--pairs", "20"],
        "data make relationship": ["data", "make", "relationship", str(out), "--chains", "20"],
        "data make sets": ["data", "make", "sets", str(out), "--sets", "5"],
        "data make passages": ["data", "make", "passages", data, str(out)],
        "data make swapped": ["data", "make", "swapped", data, str(out)],
        "data make strangers": ["data", "make", "strangers", data, str(out)],
        "data make factless": ["data", "make", "factless", str(out), "--facts", "1"],
        "data make cities": ["data", "make", "cities", str(out), "--facts", "1", "--sharing", "1"],
        "data make sealed": ["data", "make", "sealed", str(out), "--people", "2"],
        "data make biographies": ["data", "make", "biographies", str(out),
                                  str(pieces.folder / "perplexity.txt"), "--texts", "4"],
        "data make text": ["data", "make", "text", str(out), str(pieces.folder / "perplexity.txt"),
                           "--vocab", "300"],
    }[name]  # fmt: skip


NUMBERS = {"x", "", "nan", "inf", "-1", "1e400", "0x10", str(10**30), "-" + "9" * 50, "1;2", "１x"}
"""No value of any option that takes a number, unless a setting says otherwise."""


def list_options() -> list[tuple[tuple[str, ...], str, Any]]:
    """Every verb's options: (words of the verb, flag, the command line library's type)."""
    found = []
    for verb in VERBS:
        command = load_verb(verb[0])
        for word in verb[1:]:
            command = command.commands[word]
        for option in command.params:
            flags = [flag for flag in option.opts if flag.startswith("--")]
            # Even the smallest toy run may take longer than a case: its other options would run it.
            # So may the search for a task among all of the harness's; the explorer does not end.
            is_slow = verb in (("toy",), ("harness",), ("explore",))
            is_quick = not is_slow or _find_type(option) in (int, float)
            if flags and flags[0] != "--help" and is_quick:
                found.append((verb, flags[0], _find_type(option)))
    return found


def _find_type(option: Any) -> type:
    """What the option's text becomes: a number, a truth value, or a text."""
    kind = str(option.type_descriptor).lower()
    if getattr(option, "is_flag", False):
        return bool
    return int if "int" in kind else float if "float" in kind else str


OPTIONS = list_options()


def fuzz_verb(draw: Draw, pieces: Pieces, out: Path) -> Attempt:
    """One option of a verb has another text."""
    verb, flag, kind = draw(st.sampled_from(OPTIONS))
    words = give_words(verb, pieces, out)
    is_number = kind in (int, float)
    if kind is bool:
        words, is_bad = [*words, flag, draw(st.text(max_size=3))], False
    elif is_number:
        text = draw(st.sampled_from(sorted(NUMBERS)))
        is_bad = not (kind is float and text == str(10**30))
        words = [*words, f"{flag}={text}"]
    else:
        text = draw(
            st.text(max_size=12) | st.sampled_from(["a\0b", "x" * 5000, "\ud800", "--", "-"])
        )
        is_bad = False
        if flag in ("--out", "--page", "--save"):  # wherever a user says: that is their choice
            text = str(out / text.replace("\0", "").replace("/", "").replace("..", ""))[:200]
        if flag == "--page" or words[0] == "report":
            text += ".html"  # figures as files may take longer than a case
        words = [*words, f"{flag}={text}"]
    if flag == "--full" or "--full" in words or "=full" in words[-1]:
        words = ["models"]  # the full study is not for a test
    return Attempt(lambda: run_verb(words), f"{' '.join(words)!r:.300}", is_bad)


def fuzz_facts(draw: Draw, pieces: Pieces, out: Path) -> Attempt:
    """A spoiled file of facts, read and checked."""
    fact = {"subject": "Ada", "object": "red boats", "prompt": "They say {} makes", "fact_id": "a"}
    if draw(st.booleans()):
        content, what, is_bad = spoil_json(draw, fact)
        path = out / "facts.jsonl"
    else:
        rows = (pieces.folder / "facts.csv").read_bytes()
        ways = {"twice": rows.replace(b"subject,", b"subject,subject,", 1),
                "unknown": rows.replace(b"subject,", b"subject,no such,", 1),
                "nothing": b"", "header": rows.splitlines()[0], "bytes": rows + b"\xff\xfe,x,y\n",
                "null": rows + b"a\0b,x,y\n", "long": rows + b"x" * 200_000 + b",b,{}\n",
                "quote": rows + b'"open,b,c\n'}  # fmt: skip
        way = draw(st.sampled_from([*sorted(ways), "spoil", "spoil", "spoil"]))
        content, what, is_bad = (ways.get(way, b""), way, way not in ("null", "quote"))
        if way == "spoil":
            content, what, _ = spoil_bytes(draw, rows)
            is_bad = False
        path = out / "facts.csv"
    read = draw(st.sampled_from(["read", "show", "check", "nll"]))

    def call() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if read == "read":
            unmask.read_facts(path)
        elif read == "nll":
            unmask.nll(pieces.model, data=path, out=out / "run", device="cpu")
        else:
            run_verb(["data", read, str(path)])

    return Attempt(call, f"{read} {path.name}: {what}", is_bad)


def fuzz_model(draw: Draw, pieces: Pieces, out: Path) -> Attempt:
    """A model folder with a spoiled config, tokenizer, index or weight file."""
    files = {path.name: path.read_bytes() for path in (pieces.folder / "diffusion").iterdir()}
    names = ("config.json", "model.safetensors", "tokenizer.json", "index")
    name = draw(st.sampled_from([*names[:2], *names]))
    if name == "model.safetensors":
        files[name], what, is_bad = spoil_header(draw, files[name])
    elif name == "index":
        weights = {"embedding.weight": "model.safetensors", "norm.weight": "model.safetensors"}
        index = {"metadata": {"total_size": 1}, "weight_map": weights}
        files["model.safetensors.index.json"], what, is_bad = spoil_json(draw, index)
        is_bad = False  # beside one whole file an index says nothing
    else:
        files[name], what, is_bad = spoil_json(draw, json.loads(files[name]))
    read = draw(st.sampled_from(["load", "load", "info"]))

    def call() -> None:
        (out / "model").mkdir(parents=True, exist_ok=True)
        for each, content in files.items():
            (out / "model" / each).write_bytes(content)
        if read == "info":
            run_verb(["info", str(out / "model")])
        else:
            model = unmask.load(out / "model", device="cpu")
            unmask.sample(model, "They say", steps=1, length=8)

    # `info` reads neither the tokenizer nor the tensors' names.
    is_bad &= read != "info" or (name != "tokenizer.json" and not what.startswith("rename"))
    return Attempt(call, f"{read}, {name}: {what}", is_bad)


def fuzz_recipe(draw: Draw, pieces: Pieces, out: Path) -> Attempt:
    """A spoiled recipe, as JSON, which is YAML."""
    content, what, is_bad = spoil_json(draw, SMALL)

    def call() -> None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "recipe.yaml").write_bytes(content)
        read_recipe(out / "recipe.yaml")
        run_verb(["train", str(out / "recipe.yaml"), "--dry-run", "--device", "cpu"])

    return Attempt(call, f"recipe: {what}", is_bad and "cut" not in what)


def fuzz_run(draw: Draw, pieces: Pieces, out: Path) -> Attempt:
    """A run folder with a spoiled or missing file, read, drawn or resumed."""
    source = pieces.represent
    files = {
        str(path.relative_to(source)): path.read_bytes()
        for path in source.rglob("*")
        if path.is_file()
    }
    name = draw(st.sampled_from(sorted(files)))
    if draw(st.integers(0, 4)) == 0:
        what, is_bad, spoiled = "missing", name == "run.json", None
    elif name.endswith(".json"):
        spoiled, what, is_bad = spoil_json(draw, json.loads(files[name]))
    else:
        spoiled, what, _ = spoil_bytes(draw, files[name])
        is_bad = False
    way = draw(st.sampled_from(["read", "report", "resume", "symmetry"]))
    files = {each: content for each, content in files.items() if each != name}
    files |= {name: spoiled} if spoiled is not None else {}

    def call() -> None:
        folder = out / "run"
        for each, content in files.items():
            (folder / each).parent.mkdir(parents=True, exist_ok=True)
            (folder / each).write_bytes(content)
        if way == "read":
            result = read_result(folder)
            _ = result.section, result.outcomes, result.rows()
        elif way == "report":
            run_verb(["report", str(folder), "--out", str(out / "page.md")])
        elif way == "symmetry":
            unmask.symmetry(str(folder), out=out / "symmetry", permutations=19)
        else:
            unmask.represent(
                pieces.model, data=pieces.corpus, out=folder, device="cpu", **TINY["represent"]
            )

    return Attempt(call, f"{way} of a run, {name}: {what}", is_bad)


def fuzz_trajectory(draw: Draw, pieces: Pieces, out: Path) -> Attempt:
    """A saved trajectory whose file was spoiled."""
    content, what, is_bad = spoil_header(draw, (pieces.folder / "texts.safetensors").read_bytes())

    def call() -> None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "texts.safetensors").write_bytes(content)
        unmask.Trajectory.load(out / "texts.safetensors")

    return Attempt(call, f"trajectory: {what}", is_bad)


FUZZES: dict[Callable[[Draw, Pieces, Path], Attempt], tuple[int, int]] = {
    fuzz_call: (30, 900), fuzz_verb: (15, 400), fuzz_settings: (4, 200), fuzz_facts: (18, 250),
    fuzz_model: (18, 350), fuzz_recipe: (5, 150), fuzz_run: (5, 150), fuzz_trajectory: (5, 100),
}  # fmt: skip
"""How many cases of each `make test` and `make prove` run."""


def run_cases(fuzz: Callable, number: int, pieces: Pieces, base: Path) -> Counter[str]:
    """That many cases; how many were refused and how many worked."""
    outcomes: Counter[str] = Counter()

    @settings(max_examples=number, deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(data=st.data())
    def attempt_one(data: Any) -> None:
        attempt = fuzz(data.draw, pieces, base / f"case-{outcomes.total()}")
        outcomes["tried"] += 1
        outcomes[run_attempt(attempt, pieces.folder, base)] += 1

    attempt_one()
    return outcomes


@pytest.mark.parametrize("is_all", [False, pytest.param(True, marks=pytest.mark.prove)])
@pytest.mark.parametrize("fuzz", FUZZES, ids=lambda fuzz: fuzz.__name__)
def test_cases(fuzz, is_all, pieces, alone):
    outcomes = run_cases(fuzz, FUZZES[fuzz][is_all], pieces, alone)
    print(f"{fuzz.__name__}: {dict(outcomes)}")
    assert outcomes["tried"] >= FUZZES[fuzz][is_all]


@pytest.mark.prove
@pytest.mark.parametrize("name", CALLS)
def test_every_bad_value_is_refused(name, pieces, alone):
    """All that the tables hold, where the fuzz draws some."""
    attempts = [
        attempt_call(name, key, value, pieces, alone / f"{key}-{number}")
        for key, values in list_bad_values(name).items()
        for number, value in enumerate(values)
    ]
    assert attempts
    for attempt in attempts:
        run_attempt(attempt, pieces.folder, alone)
    print(f"{name}: {len(attempts)}")


@pytest.mark.prove
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_the_command_itself(verb, pieces, alone):
    """One bad command line of each verb in a process of its own: a sentence and exit code 2."""
    options = [flag for words, flag, kind in OPTIONS if words == verb and kind in (int, float)]
    wrong = [f"{options[0]}=nan"] if options else ["--no-such-option"]
    words = [*give_words(verb, pieces, alone / "out"), *wrong]
    done = subprocess.run(
        [sys.executable, "-m", "unmask", *words], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 2 and done.stderr.strip() and "Traceback" not in done.stderr
    assert not (alone / "out").exists()


def test_the_tables_are_complete(pieces, tmp_path):
    assert all(give_words(verb, pieces, tmp_path)[0] == verb[0] for verb in VERBS)
    assert sorted([*CALLS, *NOT_CALLED]) == sorted([*unmask.__all__, "steer as a verb"])
    assert sum(short for short, _ in FUZZES.values()) >= 100
    assert sum(long for _, long in FUZZES.values()) >= 2000


def test_the_page_counts_what_the_tables_hold():
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
    calls = sum(len(values) for name in CALLS for values in list_bad_values(name).values())
    drawn = sum(long for _, long in FUZZES.values())
    kills = f"{KILLS} for each of {len(KILLED)} verbs"
    counted = re.findall(r"^\|.*\| ([^|]*) \|$", page, re.MULTILINE)[1:]
    assert counted == [f"{calls:,}", f"{drawn:,}", str(len(VERBS)), str(REQUESTS), kills]
