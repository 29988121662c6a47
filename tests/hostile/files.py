"""Files and folders that others wrote, each spoiled in one place, and what reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import unmask
from tests.hostile.calls import TINY, Pieces
from tests.hostile.fuzzing import Attempt, run_verb, spoil_bytes, spoil_header, spoil_json
from tests.training.runs import SMALL
from unmask.measures.runner import read_result
from unmask.training.recipes_io import read_recipe

Draw = Callable[[Any], Any]


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


def copy_model(pieces: Pieces, out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (pieces.folder / "diffusion").iterdir()}


def fuzz_model(draw: Draw, pieces: Pieces, out: Path) -> Attempt:
    """A model folder with a spoiled config, tokenizer, index or weight file."""
    files = copy_model(pieces, out)
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
