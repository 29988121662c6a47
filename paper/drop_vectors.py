"""A run of `unmask represent` without its vectors, small enough to be kept.

    python paper/drop_vectors.py RUN OUT

What the run says of probes, searches and values stays; keys and values themselves, of which
`unmask symmetry` is made, do not: their table is empty.
"""

import argparse
import shutil
from pathlib import Path

import pyarrow.parquet as pq

VECTORS = "vectors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("out", type=Path, help="the folder to make")
    options = parser.parse_args()
    left_out = shutil.ignore_patterns("parts", f"{VECTORS}.*")
    shutil.copytree(options.run, options.out, ignore=left_out)
    name = f"{VECTORS}.parquet"
    pq.write_table(pq.read_schema(options.run / name).empty_table(), options.out / name)


if __name__ == "__main__":
    main()
