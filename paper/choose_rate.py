"""A recipe's rate by validation: the same tries for every kind of model.

    python paper/choose_rate.py berglund-smollm2-ar --start MODEL --data FOLDER --out OUT

Trains on the split `choose` with each rate, asks the validation splits, and leaves OUT/recipe.yaml:
the recipe with the rate that has the highest mean of the validation cells. OUT/tries.json has all.
"""

import argparse
import shutil
from pathlib import Path

import unmask
from unmask.base.files import replace_file, write_json
from unmask.base.reading import read_json
from unmask.training.journal import read_journal
from unmask.training.recipes_io import format_recipe, read_recipe

RATES = (1e-4, 3e-4, 1e-3)
CELLS = "recall/"


def try_rate(recipe: str, rate: float, options: argparse.Namespace) -> dict[str, float]:
    """The validation cells after a short training, in percent, and their mean.

    A training that its guards stop has no cells, and a mean of 0.
    """
    run = options.out / f"{rate:g}"
    changes = [f"optimiser.rate={rate}", f"start.model={options.start}", "data.split=choose"]
    changes += [f"data.path={options.data}", f"budget.steps={options.steps}"]
    changes += [f"cadence.evaluate={options.steps}", "cadence.samples=0", "cadence.checkpoint=0"]
    try:
        unmask.train(recipe, run, *changes, fresh=True)
    except unmask.UserError as error:
        print(f"rate {rate:g}: {error}", flush=True)
        return {"rate": rate, "mean": 0.0}
    (record,) = [each for each in read_journal(run) if any(name.startswith(CELLS) for name in each)]
    cells = {name.removeprefix(CELLS): 100 * value for name, value in record.items()
             if name.startswith(CELLS)}  # fmt: skip
    shutil.rmtree(run)  # the cells are all that is asked of it
    return {"rate": rate, "mean": sum(cells.values()) / len(cells), **cells}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe")
    parser.add_argument("--start", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    path = options.out / "tries.json"
    tries = read_json(path) if path.is_file() else []
    for rate in RATES[len(tries) :]:
        tries.append(try_rate(options.recipe, rate, options))
        print(", ".join(f"{name} {value:g}" for name, value in tries[-1].items()), flush=True)
        write_json(path, tries)
    best = max(tries, key=lambda each: each["mean"])
    chosen = read_recipe(options.recipe, [f"optimiser.rate={best['rate']}"])
    with replace_file(options.out / "recipe.yaml") as draft:
        draft.write_text(format_recipe(chosen), encoding="utf-8")


if __name__ == "__main__":
    main()
