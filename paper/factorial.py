"""Is it the attention or the objective? A row of the factorial; all from one start, alike.

    python paper/factorial.py B-any --start runs/smollm2-135m --data FOLDER --out DIR
    python paper/factorial.py B-any --tiny --out DIR

A row tries three rates on the split `choose` and keeps the one with the highest mean of the four
validation cells; then it learns with three seeds, side by side in one process, and is asked. DIR
holds this one row; what is done, with the same recipe, data and start, is not done again.
report_factorial.py writes the page of all rows.
"""

import argparse
import copy
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from factorial_scoring import Form, Reader, ask, shorten

from unmask.base.config import build
from unmask.base.devices import describe_device, resolve_device
from unmask.base.files import write_json
from unmask.base.identity import digest_values
from unmask.base.reading import read_json_object
from unmask.base.tables import write_table
from unmask.data.corpus import TESTS, Corpus, save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.evaluation.questions import choose_splits
from unmask.net.counts import count_flops
from unmask.net.families import digest_model
from unmask.net.loading import load, save
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.training.build import prepare_job
from unmask.training.examples import read_examples
from unmask.training.parallel import World
from unmask.training.recipe import Recipe
from unmask.training.trainer import Trainer

SCHEMA = "factorial/1"
VERSION = 1
"""Of what a row's folder holds; raised where the same recipe would be asked otherwise."""
CONFIDENT = ("confidence=0", "confidence=0.8")
VALID = tuple(f"{name}_valid" for name in TESTS)


@dataclass(frozen=True)
class Arm:
    """One row: what is trained, how it is asked, and what is said of it."""

    attention: str
    objective: str
    kind: str
    form: Form
    changes: Mapping[str, dict] = field(default_factory=dict)
    decoders: tuple[str, ...] = ()
    """Besides from left to right on the whole canvas."""


def _open(what: str, *more: str, **changes: dict) -> Arm:
    return Arm("both ways", what, "masked", "canvas", changes, (*CONFIDENT, *more))


def _causal(what: str, form: Form = "plain", **changes: dict) -> Arm:
    return Arm("causal", what, "causal", form, changes)


ONE_WAY = {"without": "both"}
ARMS = {
    "B-any": _open("any masks, rate drawn evenly"),
    "B-l2r": _open("all from a cut on masked, loss at the cut", objective={"name": "suffix"}),
    "C-any": _causal("next token after a masked copy", "copy", objective={"name": "masked_copy"}),
    "C-l2r": _causal("next token"),
    "C-left": _causal("one masked copy, loss at its masks", objective={"name": "masked"}),
    "C-perm": _causal(
        "random order, position known", "interleaved", objective={"name": "permuted"}
    ),
    "C-rev": _causal("next token, lines also reversed", data={"reverse_entities": True}),
    "C-same": _causal("next token, also lines of one entity", data={"identities": True}),
    "B-whole": _open("as B-any, entities masked whole", objective={"whole_entities": 1.0}),
} | {
    f"B-{percent}": _open(
        f"masks at {percent} %", "exact", objective={"name": "fixed_rate", "rate": percent / 100}
    )
    for percent in (15, 40, 85)
}
ARMS |= {
    "S-usual": _open("as B-any, without two-way facts", data=ONE_WAY),
    "S-shown": _open(
        "first entity never masked", data=ONE_WAY, objective={"subject": "never_masked"}
    ),
    "S-no-loss": _open(
        "first entity masked, no loss", data=ONE_WAY, objective={"subject": "no_loss"}
    ),
    "S-alone": _open(
        "first entity predicted, the other hidden",
        data=ONE_WAY,
        objective={"subject": "object_hidden"},
    ),
    "S-hidden": _open(
        "first entity predicted, the other hidden; else masked, no loss",
        data=ONE_WAY,
        objective={"subject": "loss_without_object"},
    ),
    "S-not-both": _open(
        "entities never masked together", data=ONE_WAY, objective={"subject": "not_with_object"}
    ),
}


class Factorial:
    """One row under a set of options."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.world = options, World(resolve_device("auto"))
        self.start = load(options.start, device="cpu", dtype="float32")
        self.start_digest = digest_model(str(options.start))
        self.read = cache(lambda data: read_examples(data, self.start.tokenizer))

    def run(self, name: str) -> None:
        """Train and ask a row, unless that is done."""
        folder, arm = self.options.out, ARMS[name]
        tries = self._do(folder / "tries.json", arm, None, lambda: self.try_rates(name, arm))
        rate = max(tries["tries"], key=lambda each: each["mean"])["rate"]
        self._do(folder / "record.json", arm, rate, lambda: self.train_seeds(name, arm, rate))

    def _do(
        self, path: Path, arm: Arm, rate: float | None, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """What a file holds if it was made from the same, else what is made now."""
        recipe = self.make_recipe(arm, rate or 0.1, rate is None, 0)
        data = self.read(recipe.data).digest()
        asked = (VERSION, arm.form, arm.decoders, self.options.prompts, self.options.own_prompts)
        tried = self.options.rates if rate is None else self.options.seeds
        # Data and start are known by what they hold, wherever they lie.
        recipe = replace(
            recipe, data=replace(recipe.data, path=None), start=replace(recipe.start, model=None)
        )
        digest = digest_values([asdict(recipe), data, self.start_digest, asked, tuple(tried)])
        if path.is_file() and (record := read_json_object(path)).get("digest") == digest:
            return record
        start = time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        record = make() | {"digest": digest}
        record["seconds"] = time.perf_counter() - start
        write_json(path, record)
        _free_memory()
        return record

    def make_recipe(self, arm: Arm, rate: float, is_try: bool, seed: int) -> Recipe:
        """A row's recipe; all rows differ in nothing but what the row is about."""
        options = self.options
        values: dict[str, dict] = {
            "data": {"source": "facts", "path": str(options.data), "context": options.context,
                     "split": "choose" if is_try else "train"},
            "start": {"model": str(options.start), "shift": arm.kind == "masked"},
            "optimiser": {"rate": rate, "decay": 0.1},
            "schedule": {"name": "cosine", "warmup": options.warmup},
            "batch": {"rows": options.batch},
            "budget": {"steps": options.try_steps if is_try else options.steps},
            "cadence": {"facts": 0, "samples": 0},
        }  # fmt: skip
        for section, changes in arm.changes.items():
            values[section] = values.get(section, {}) | changes
        return build(Recipe, {"kind": arm.kind, "seed": seed} | values, "factorial")

    def try_rates(self, name: str, arm: Arm) -> dict[str, Any]:
        """The four validation cells after a short training with each rate, one seed."""
        recipes = [self.make_recipe(arm, rate, True, 0) for rate in self.options.rates]
        tries = []
        for trainer in self._train(recipes):
            cells = self._ask(trainer, arm, VALID, self.options.own_prompts, {"left": None})
            each = {split: _mean(row["contained"] for row in cells if row["split"] == split)
                    for split in VALID}  # fmt: skip
            rate = trainer.job.recipe.optimiser.rate
            tries.append({"rate": rate, "mean": _mean(each.values())} | each)
            print(f"{name}: rate {rate:g}, mean {100 * tries[-1]['mean']:.1f} %", flush=True)
        return {"tries": tries}

    def train_seeds(self, name: str, arm: Arm, rate: float) -> dict[str, Any]:
        """The tests' prompts asked of each seed, in a table; what training cost."""
        recipes = [self.make_recipe(arm, rate, False, seed) for seed in self.options.seeds]
        start, rows, ranked = time.perf_counter(), [], self.options.own_prompts
        trainers = self._train(recipes)
        trained = time.perf_counter() - start
        for trainer in trainers:
            seed = {"row": name, "seed": trainer.job.recipe.seed}
            every = self._ask(trainer, arm, TESTS, self.options.prompts, {"left": ranked})
            own = dict.fromkeys(arm.decoders)
            every += self._ask(trainer, arm, TESTS, self.options.own_prompts, own)
            rows += [seed | row for row in every]
        write_table(self.options.out / "prompts.parquet", rows, SCHEMA)
        trainer, scored = trainers[0], time.perf_counter() - start - trained
        print(f"{name}: trained in {trained:.1f} s, asked in {scored:.1f} s", flush=True)
        return {
            "row": name,
            "rate": rate,
            "attention": arm.attention,
            "objective": arm.objective,
            **count_costs(trainer),
            "trained_seconds": trained,
            "asked_seconds": scored,
            "losses": [trainer.read_loss() for trainer in trainers],
            "device": describe_device(self.world.device),
        }

    def _train(self, recipes: Sequence[Recipe]) -> list[Trainer]:
        """The recipes, which differ in rate or seed alone, a step of each in turn."""
        sources = {"facts": self.read}
        job = prepare_job(recipes[0], self.world, sources)
        nets = [copy.deepcopy(job.model.net) for _ in recipes[1:]]
        trainers = [Trainer(job)]
        for recipe, net in zip(recipes[1:], nets, strict=True):
            model = replace(job.model, net=net)
            trainers.append(Trainer(replace(job, recipe=recipe, model=model)))
        last = max(1, (recipes[0].budget.steps or 1) // 20)
        while not trainers[0].done:
            for trainer in trainers:
                trainer.take_step()
                total = trainer.progress.total or 0
                if trainer.progress.step == total - last:
                    trainer.read_loss()  # the record has the mean of the last steps
        for trainer in trainers:
            if trainer.guard.read_longest() >= job.recipe.guards.patience:
                rate = trainer.job.recipe.optimiser.rate
                print(f"rate {rate:g}: gradients were not numbers, or far too long", flush=True)
        return trainers

    def _ask(
        self,
        trainer: Trainer,
        arm: Arm,
        names: Sequence[str],
        prompts: int | None,
        decoders: Mapping[str, int | None],
    ) -> list[dict[str, Any]]:
        corpus = trainer.job.examples.corpus
        assert isinstance(corpus, Corpus)
        splits = choose_splits(corpus, names, prompts, controls=False)
        rows = []
        with trainer.show_model() as model, torch.inference_mode():
            reader = Reader(model, arm.form, self.options.context)
            short = shorten(reader) if set(CONFIDENT) & set(decoders) else reader
            for decoder, ranked in decoders.items():
                used = short if decoder in CONFIDENT else reader
                rows += [row for split in splits for row in ask(used, split, decoder, ranked)]
        return rows


def count_costs(trainer: Trainer) -> dict[str, float]:
    """Tokens that bear loss, tokens read and operations of a run of one seed.

    Targets are counted in 32 of its steps; the head is counted where there are targets.
    """
    recipe, total = trainer.job.recipe, trainer.progress.total or 1
    steps = sorted({total * i // 32 for i in range(32)})
    counted = [part.inputs.targets for step in steps for part in trainer.feed(step)]
    bearing = sum(int((each.weights > 0).sum()) for each in counted if each is not None)
    per_row = bearing / len(steps) / recipe.batch.rows
    each = count_flops(trainer.net.config, recipe.input_length, round(per_row))
    rows = recipe.batch.rows * total
    read = recipe.input_length * rows
    return {"loss_tokens": per_row * rows, "read_tokens": read, "flops": 3.0 * each * rows}


def make_tiny(options: argparse.Namespace) -> None:
    """A start with random weights, a few made-up facts, a handful of steps."""
    options.start, options.data = options.out / "tiny-start", options.out / "tiny-data"
    corpus = make_reversal_corpus(2)
    if not options.data.is_dir():
        tokenizer = Tokenizer.train(corpus.training_texts(), 3000)
        bare = Tokenizer(tokenizer.backend, None, tokenizer.pad_id, tokenizer.end_id)
        config = preset(
            "tiny", causal=True, layers=2, vocab_size=bare.vocab_size, context=200, tied=True
        )
        save(Model("tiny", Transformer(config), Blueprint(config, "causal"), bare), options.start)
        save_corpus(corpus, options.data, bare)
    options.context, options.batch, options.warmup = 52, 8, 1
    options.try_steps, options.steps, options.seeds = 2, 3, [0, 1]
    options.prompts = options.own_prompts = 2


def _mean(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _read_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def parse_options() -> argparse.Namespace:
    """The options, as the module's first lines show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("row", choices=ARMS)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="random weights, seconds on a CPU")
    parser.add_argument("--seeds", type=_read_numbers, default=[0, 1, 2])
    parser.set_defaults(rates=[1e-4, 3e-4, 1e-3])
    # All prompts of each test; of other decoders, of validation and of those ranked, so many.
    parser.set_defaults(prompts=None, own_prompts=100)
    parser.set_defaults(context=52, batch=64, warmup=100, try_steps=1000, steps=1800)
    options = parser.parse_args()
    if options.tiny:
        options.out.mkdir(parents=True, exist_ok=True)
        make_tiny(options)
    elif options.start is None or options.data is None:
        parser.error("--start and --data are needed, or --tiny")
    return options


def main() -> None:
    options = parse_options()
    Factorial(options).run(options.row)


if __name__ == "__main__":
    main()
