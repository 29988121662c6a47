"""Networks that are trained to have a known mechanism, and what held-out exchanges say of each.

    python paper/forced.py OUT --mechanisms "one store,two stores,copy" --seeds 0,1,2

`unmask bench OUT/*` scores methods on them. A folder that is there is not trained again.
"""

import argparse
from itertools import product
from pathlib import Path

from unmask.base.reading import read_text
from unmask.compiled.forced import MECHANISM, Forced, save_forced, train_forced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--mechanisms", default="one store,two stores,copy")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--updates", type=int, default=Forced.updates)
    parser.add_argument("--width", type=int, default=Forced.width)
    given = parser.parse_args()
    for seed, name in product(map(int, given.seeds.split(",")), given.mechanisms.split(",")):
        folder = given.out / f"{name.replace(' ', '-')}-{seed}"
        if not (folder / MECHANISM).is_file():
            settings = Forced(name, seed, given.width, updates=given.updates)
            save_forced(*train_forced(settings), settings, folder)
        print(f"{folder}: {read_text(folder / MECHANISM)}", flush=True)


if __name__ == "__main__":
    main()
