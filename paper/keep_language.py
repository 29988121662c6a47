"""Facts learned without losing the language: what was tried, on one opening with one seed.

    python paper/keep_language.py RECIPE --opened MODEL --plain MODEL --read MODEL \
        --facts FOLDER --shards FOLDER --text FILE --tries FILE --out OUT

Every try is the recipe with some settings changed, trained on the split `choose`, asked the
validation splits in near and far phrasings, and judged by its bound on held-out text.
OUT/tries.json is what came of all; a try with a file in OUT/log is not made again. `--processes`
tries run side by side. The best try costs at most 0.5 nats per token more than the try `opened` and
has the highest mean of four shares: names and descriptions in reverse, near and far. Where no try
costs so little, it is chosen among the three that cost least.
"""

import argparse
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import unmask
from unmask.base.engines import LocalEngine
from unmask.base.files import write_json
from unmask.base.reading import parse_yaml, read_json, read_text
from unmask.base.seeds import derive_seed
from unmask.base.work import CallWork, run_jobs
from unmask.data.corpus import TESTS
from unmask.data.facts import tokenize_facts
from unmask.data.shards import Shards, Windows
from unmask.data.sources import read_corpus_folder
from unmask.data.tokenizer import Tokenizer
from unmask.objectives.batch import Batch
from unmask.training.data_settings import DataSettings
from unmask.training.examples import Examples
from unmask.training.recipes_io import read_recipe

VALIDATION = tuple(f"{test}{ending}" for test in TESTS for ending in ("_valid", "_far_valid"))
PLACES = ("opened", "plain", "read", "facts", "shards")
"""Folders that a change names in capitals; `recipe=` names another recipe, `model=` a model to
judge as it is."""
METRICS = ("hit", "content", "surname")
REVERSED = (
    ("hit", "p2d_reverse_valid"), ("hit", "p2d_reverse_far_valid"),
    ("content", "d2p_reverse_valid"), ("content", "d2p_reverse_far_valid"),
)  # fmt: skip
"""The shares that tries are chosen by: names, then descriptions, each asked near and far."""
COSTS = 0.5
"""Nats per token that keeping the language may cost."""

WINDOWS = 50
"""Windows of text that a fact's line may stand in, in the source `inserted`."""


def make_inserted(data: DataSettings) -> Examples:
    """Lines of facts amid running text: data.path has the facts, data.tokenizer the text."""
    assert data.path is not None and data.tokenizer is not None
    tokenizer = Tokenizer.load(data.tokenizer, mask="if any")
    facts = read_corpus_folder(Path(data.path))[data.split]
    windows = Windows(Shards(data.tokenizer), data.context)
    lines = [(each.ids, *each.subject, *each.object) for each in tokenize_facts(facts, tokenizer)]

    def take(numbers: Sequence[int]) -> Batch:
        rows, entities = [], []
        for number in numbers:
            ids, *spans = lines[number % len(lines)]
            draw = derive_seed(data.seed, "inserted", number)
            text = windows[draw % len(windows)].tolist()
            first = (draw >> 20) % (data.context - len(ids))
            rows.append(text[:first] + list(ids) + text[first : data.context - len(ids)])
            entities.append([first + place for place in spans])
        some = torch.tensor(rows)
        return Batch(
            some, torch.zeros(len(rows), dtype=torch.long), entities=torch.tensor(entities)
        )

    return Examples("lines in text", len(lines) * WINDOWS, tokenizer, take)


def run_try(
    options: argparse.Namespace, tries: Mapping[str, Sequence[str]], name: str
) -> list[dict[str, Any]]:
    """Train, ask, and judge. Weights averaged with the start's are judged too."""
    run, changes = options.out / "runs" / name, tries[name]
    given = {
        "start.model": options.opened,
        "data.sources.facts.path": options.facts,
        "data.sources.text.path": options.shards,
        "data.sources.facts.split": "choose",
        "cadence.facts": 0, "cadence.samples": 0, "cadence.checkpoint": 0, "cadence.evaluate": 0,
    }  # fmt: skip
    settings = [f"{key}={value}" for key, value in given.items()]
    recipe, model = options.recipe, run / "model"
    for change in changes:
        for word in PLACES:
            change = change.replace(word.upper(), str(getattr(options, word)))
        if change.startswith("recipe="):
            recipe = change.removeprefix("recipe=")
        elif change.startswith("model="):
            model = Path(change.removeprefix("model="))
        else:
            settings.append(change)
    if model != run / "model":
        return [{"name": name, "changes": list(changes)} | judge(options, model, run)]
    unmask.register("source", make_inserted, name="inserted")
    start = read_recipe(recipe, settings).start.model
    begun = time.perf_counter()
    unmask.train(recipe, run, *settings, fresh=True)
    last = unmask.training.journal.read_journal(run)[-1]
    line: dict[str, Any] = {"name": name, "changes": list(changes)}
    line["losses"] = {key: value for key, value in last.items() if key.startswith("loss")}
    line["training_seconds"] = last["seconds"]
    lines = [line | judge(options, model, run)]
    for share in options.shares:
        merged = average(model, Path(str(start)), share, run / f"model-{share}")
        lines.append(
            line | {"name": f"{name}@{share}", "share": share} | judge(options, merged, run)
        )
    lines[0]["seconds"] = time.perf_counter() - begun
    return lines


def judge(options: argparse.Namespace, model: Path, run: Path) -> dict[str, Any]:
    """Shares of validation prompts answered, in %, and what a token of held-out text costs."""
    line: dict[str, Any] = {}
    result = unmask.recall(
        f"model={model}", data=options.facts, splits=VALIDATION, steps=(16,), controls=False,
        limit=options.prompts, out=run / "asked", fresh=True,
    )  # fmt: skip
    for row in result.summary["cells"]:
        if row["metric"] in METRICS:
            line.setdefault(row["metric"], {})[row["split"]] = round(100 * row["mean"], 1)
    cost = unmask.perplexity(
        f"model={model}", data=options.text, limit=options.characters, context=128, stride=64,
        repeats=4, out=run / "cost", fresh=True,
    )  # fmt: skip
    (line["nats"],) = (row["per_token"] for row in cost.summary["models"])
    return line


def average(model: Path, start: Path, share: float, folder: Path) -> Path:
    """A model between the one trained (share 1) and the one it started from (share 0)."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    for path in folder.glob("*.safetensors"):
        old, new = load_file(start / path.name), load_file(path)
        for name, weight in new.items():
            new[name] = torch.lerp(old[name].float(), weight.float(), share).to(weight.dtype)
        save_file(new, path)
    return folder


def choose(tries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The best try, by the rule that stands on top."""
    (opened,) = (each for each in tries if each["name"] == "opened")
    trained = sorted((each for each in tries if "losses" in each), key=lambda each: each["nats"])
    kept = [each for each in trained if each["nats"] <= opened["nats"] + COSTS]
    return max(
        kept or trained[:3],
        key=lambda each: sum(each[metric][split] for metric, split in REVERSED),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe")
    for name in (*PLACES, "text", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--tries", type=Path, help="a YAML file: a list of changes by name")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--prompts", type=int, default=None)
    parser.add_argument("--characters", type=int, default=120_000)
    parser.add_argument(
        "--shares", type=float, nargs="*", default=(), help="average with the start"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tries = parse_yaml(read_text(options.tries), str(options.tries))
    logs = options.out / "log"
    logs.mkdir(exist_ok=True)
    work = CallWork(logs, partial(run_try, options, tries), time.time() + 60 * options.minutes)
    engine = LocalEngine(options.processes)
    with closing(run_jobs(work, dict.fromkeys(tries, 1.0), engine, "tries")) as jobs:
        for name, error in jobs:
            print(name, read_text(work.place(name))[:3000] if error is None else error, flush=True)
    done = [line for path in sorted(logs.glob("*.json")) for line in read_json(path)]
    write_json(options.out / "tries.json", done)
    shutil.rmtree(options.out / "runs")  # models: what was measured stays


if __name__ == "__main__":
    from keep_language import main  # by its name, by which workers find what they are to call

    main()
