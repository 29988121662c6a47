"""Networks that are trained to have a known mechanism, and what held-out exchanges say of each.

    python paper/forced.py OUT --mechanisms "one store,two stores,copy" --seeds 0,1,2

`unmask bench OUT` scores methods on them. A network that is there, trained with the same settings,
is not trained again; each takes a processor core two to five minutes. `--width 256 --idle 1` gives
one store and two stores the layers of the shipped pair, six of 256 × 1,024.

    python paper/forced.py RUN --truth

writes what is true of the networks of a finished `unmask bench` anew, from their programs alone.
"""

import argparse
import time
from itertools import product
from pathlib import Path

from unmask.base.reading import read_json, read_text
from unmask.base.tables import list_rows, read_table, write_table
from unmask.compiled.forced import MECHANISM, Forced, save_forced, train_forced
from unmask.compiled.mechanisms import build_compiled
from unmask.experiments.bench.networks import list_networks, list_truth

SCHEMA = "truth/1"
COLUMNS = ("network", "mechanism", "reads", "stores", "weights", "held_out")
"""Of a truth's row, those that say which network it is about."""
UPDATES = {"copy": 4000}
"""After 1,000 updates 82 % of its held-out exchanges go as they must, of others at least 97 %."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--mechanisms", default="one store,two stores,copy")
    parser.add_argument("--seeds", default="0,1,2")
    usual = f"by default {Forced.updates}, of copy {UPDATES['copy']}"
    parser.add_argument("--updates", type=int, help=usual)
    parser.add_argument("--width", type=int, default=Forced.width)
    parser.add_argument("--idle", type=int, default=Forced.idle)
    parser.add_argument("--rate", type=float, default=Forced.rate)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--truth", action="store_true")
    given = parser.parse_args()
    if given.truth:
        return renew_truth(given.out)
    for seed, name in product(map(int, given.seeds.split(",")), given.mechanisms.split(",")):
        folder = given.out / f"{name.replace(' ', '-')}-{seed}"
        updates = given.updates or UPDATES.get(name, Forced.updates)
        settings = Forced(
            name, seed, given.width, updates=updates, rate=given.rate, idle=given.idle
        )
        if not is_trained(folder, settings):
            begin = time.process_time()
            compiled, held_out = train_forced(settings, given.device)
            seconds = time.process_time() - begin
            save_forced(compiled, held_out, settings, folder, seconds)
        print(f"{folder}: {read_text(folder / MECHANISM)}", flush=True)


def is_trained(folder: Path, settings: Forced) -> bool:
    """Whether a folder holds a network that was trained with these settings."""
    if not (file := folder / MECHANISM).is_file():
        return False
    known = read_json(file)
    return all(known.get(name) == value for name, value in vars(settings).items())


def renew_truth(run: Path) -> None:
    """The truth of a finished run, by the rules of now; its scores stay as they are."""
    known = {
        tuple(row[name] for name in COLUMNS): row
        for row in list_rows(read_table(run / "truth.parquet", SCHEMA))
    }
    rows = []
    for (name, mechanism, _, _, weights, _), row in known.items():
        is_trained = weights == "trained"
        form = {"seed": int(name.split()[-1])} if is_trained else None
        hand = {network.name: network.form for network in list_networks((mechanism,))}
        compiled = build_compiled(mechanism, **(form or hand[name]))
        columns = {column: row[column] for column in COLUMNS}
        rows += [columns | each for each in list_truth(compiled, is_trained)]
    write_table(run / "truth.parquet", rows, SCHEMA)


if __name__ == "__main__":
    main()
