"""The shipped pair on the reversal corpus: settings by validation, then three seeds each.

    python paper/shipped.py --out OUT                                       the tries, a row each
    python paper/shipped.py --out OUT --final "optimiser.rate=1e-3 endings=3" --seeds 0,1,2

A try is a line of changes to the recipe `reversal-mdm`; `endings` is the corpus's: in how many
phrasings a fact is stated per frame. Tries are trained on the split `choose` and asked all prompts
of the validation splits, near and far; each leaves a line in OUT/tries.jsonl, and is not run again.
`--final` trains the masked network and its causal twin on `train` with every seed, asks all tests
(OUT/final.jsonl), leaves the first seed's pair in bfloat16 as runs that `tools/ship_model.py` takes
and two recall runs: of the seeds together, and of the first in bfloat16. Models lie in OUT/runs.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import unmask
from unmask.data.corpus import FAR, TESTS, Corpus, save_corpus
from unmask.data.reversal_corpus import FAR_TESTS, NUM_ENDINGS, make_reversal_corpus
from unmask.evaluation.metrics import is_contained
from unmask.net.loading import load, save
from unmask.net.model import Model
from unmask.training.run import train_seeds

RECIPES = {"masked": "reversal-mdm", "causal": "reversal-ar"}
TRIES = (
    "optimiser.rate=5e-4",
    "optimiser.rate=1e-3",
    "optimiser.rate=1e-3 network.scale=2",
    "optimiser.rate=1e-3 endings=1",
    "optimiser.rate=1e-3 endings=8",
    "optimiser.rate=1e-3 optimiser.decay=1.0",
)
CONTEXT = 44
STEPS = 16
GUIDANCE = (0.8, 0.0)
SHARD_BYTES = 12 * 2**20
BASE = [f"data.context={CONTEXT}", "cadence.facts=0", "cadence.samples=0", "cadence.checkpoint=0"]
TINY = [
    "network.preset=tiny",
    "data.facts=2",
    "budget.steps=4",
    "batch.rows=8",
    "schedule.warmup=1",
    "cadence.log=1",
]


class Work:
    """Where runs and corpora lie while the script is at work."""

    def __init__(self, folder: Path, tiny: bool):
        self.folder, self.tiny = folder, tiny
        self.base = BASE + (TINY if tiny else [])

    def open_corpus(self, endings: int) -> tuple[Corpus, Path]:
        """The corpus with so many endings a frame, and its folder."""
        corpus, path = self.make_corpus(endings), self.folder / f"corpus-{endings}"
        if not path.is_dir():
            save_corpus(corpus, path, None)
        return corpus, path

    def make_corpus(self, endings: int) -> Corpus:
        return make_reversal_corpus(2 if self.tiny else 30, endings=endings)

    def train(self, kind: str, settings: str, seeds: list[int], split: str) -> Iterator[Path]:
        """The folders of the runs, one for each seed."""
        changes, endings = parse(settings)
        _, path = self.open_corpus(endings)
        out = self.folder / f"{kind}-{split}"
        changes = [*self.base, f"data.split={split}", *changes]
        if endings != NUM_ENDINGS:  # else it is the corpus that the recipe makes in place
            changes += ["data.source=facts", f"data.path={path}"]
        train_seeds(RECIPES[kind], out, seeds, *changes, fresh=True)
        for seed in seeds:
            shutil.rmtree(out / f"seed-{seed}" / "checkpoints", ignore_errors=True)
            yield out / f"seed-{seed}"


def parse(settings: str) -> tuple[list[str], int]:
    """Changes of the recipe, and the endings of each frame."""
    words = dict(word.split("=", 1) for word in settings.split())
    endings = int(words.pop("endings", NUM_ENDINGS))
    return [f"{name}={value}" for name, value in words.items()], endings


def ask(model: Model, corpus: Corpus, splits: list[str], guidance: float) -> dict[str, float]:
    """Percent of the prompts of each split that have their answer in the greedy text."""
    shares = {}
    for split in splits:
        facts = corpus[split]
        drawn = unmask.sample(
            model,
            [fact.prompt for fact in facts],
            steps=STEPS,
            guidance=guidance,
            length=CONTEXT,
            temperature=0.0,
            keep_states=False,
        )
        hits = [
            is_contained(text[len(fact.prompt) :], fact.completion)
            for fact, text in zip(facts, drawn.texts or [], strict=True)
        ]
        shares[split] = 100 * sum(hits) / len(hits)
    return shares


def try_settings(work: Work, settings: str) -> dict[str, Any]:
    """Training on `choose`, and the validation splits by guidance."""
    start = time.perf_counter()
    (run,) = work.train("masked", settings, [0], "choose")
    seconds = time.perf_counter() - start
    model, corpus = load(run / "model"), work.make_corpus(1)
    splits = [f"{test}_valid" for test in (*TESTS, *FAR_TESTS)]
    record = {"settings": settings, "seconds": round(seconds, 1)}
    return record | {f"guidance {g}": ask(model, corpus, splits, g) for g in GUIDANCE}


def finish(work: Work, settings: str, seeds: list[int], out: Path) -> Iterator[dict[str, Any]]:
    """The pair with every seed, all tests; the first seed's weights and recall runs in `out`."""
    corpus, tests = work.make_corpus(1), [*TESTS, *FAR_TESTS]
    runs = {}
    for kind, name in RECIPES.items():
        start = time.perf_counter()
        runs[name] = list(work.train(kind, settings, seeds, "train"))
        seconds = round(time.perf_counter() - start, 1)
        for seed, run in zip(seeds, runs[name], strict=True):
            model = load(run / "model")
            record = {"settings": settings, "model": name, "seed": seed, "seconds": seconds}
            for guidance in GUIDANCE if kind == "masked" else (0.0,):
                record[f"guidance {guidance}"] = ask(model, corpus, tests, guidance)
            yield record
        ship(runs[name][0], out / name)
    measure: dict[str, Any] = {"data": corpus, "splits": tuple(tests), "length": CONTEXT}
    measure["guidance"] = 0.8
    measure |= {"steps": (1, 2), "limit": 2} if work.tiny else {}
    firsts = [f"{name}={out / name / 'model'}" for name in runs]
    unmask.recall(*firsts, out=out / "recall-shipped", fresh=True, **measure)
    families = [
        f"{name}={','.join(str(run / 'model') for run in own)}" for name, own in runs.items()
    ]
    unmask.recall(*families, out=out / "recall-seeds", fresh=True, **measure)


def ship(run: Path, folder: Path) -> None:
    """A run without checkpoints, its weights in bfloat16."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for kept in ("recipe.yaml", "metrics.jsonl", "run.json"):
        shutil.copy(run / kept, folder / kept)
    model = load(run / "model", dtype="stored", device="cpu")
    model.net.bfloat16()
    save(model, folder / "model", shard_bytes=SHARD_BYTES)


def print_row(record: dict[str, Any]) -> None:
    """Means near and far for each guidance: as trained and reversed, names and descriptions."""
    who = [str(record[key]) for key in ("settings", "model", "seed", "seconds") if key in record]
    print(" | ".join(who), flush=True)
    for key in (key for key in record if key.startswith("guidance")):
        cells = record[key].items()
        near = ", ".join(f"{name} {value:.1f}" for name, value in cells if FAR not in name)
        far = ", ".join(f"{name} {value:.1f}" for name, value in cells if FAR in name)
        print(f"  {key}\n    near: {near}\n    far:  {far}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tries", nargs="*", default=TRIES, help="changes of a try in quotes")
    parser.add_argument("--final", metavar="CHANGES", help="train the pair with these")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to try the script")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / ("tries.jsonl" if options.final is None else "final.jsonl")
    done = {json.loads(line)["settings"] for line in file.open()} if file.is_file() else set()
    work = Work(options.out / "runs", options.tiny)
    if options.final is None:
        left = [each for each in options.tries if each not in done]
        records: Iterator[dict[str, Any]] = (try_settings(work, each) for each in left)
    else:
        seeds = [int(seed) for seed in options.seeds.split(",")]
        records = finish(work, options.final, seeds, options.out)
    for record in records:
        print_row(record)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
