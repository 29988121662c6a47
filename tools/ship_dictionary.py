"""A dictionary as the package ships it: `python tools/ship_dictionary.py FOLDER MODEL`.

FOLDER is one that `unmask features MODEL --dictionaries …` kept; the stage `dictionaries` of
`make paper` makes the one that ships. Its numbers are rounded to float16, which SAELens reads.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from unmask.base.files import replace_file
from unmask.base.units import format_bytes
from unmask.dictionaries.dictionary import WEIGHTS, Dictionary

FEATURES = Path(__file__).parents[1] / "unmask" / "assets" / "features"

CARD = """# Features of {model}

{size:,} features of the states at `{site}`, of which the {k} largest fire: TopK, in the files of
SAELens ({bytes}, float16). What they leave of the states' variance is {unexplained:.1f} %, by the
last line of training's log.

Trained by `unmask features {model} --train-steps {steps}`, the stage `dictionaries` of
`make paper`; `cfg.json` holds every setting. What such features keep, and when they fire, is on the
page [Features of the shipped diffusion model](../../../../docs/results/features.md), which measures
one that the same command trained. `unmask.Dictionary.load("{model}")` opens it, and
`unmask explore` shows it. Licence: Apache-2.0, as the project.
"""


def ship(folder: Path, model: str) -> Path:
    """The new folder among the package's assets."""
    dictionary = Dictionary.load(folder)
    names = ("w_enc", "b_enc", "w_dec", "b_dec")
    rounded = {name: getattr(dictionary, name).to(torch.float16) for name in names}
    replace(dictionary, **rounded).save(FEATURES / model)
    log = folder.with_name(f"{folder.name}-training") / "log.jsonl"
    last = json.loads(log.read_text("utf-8").splitlines()[-1])
    (FEATURES / model / WEIGHTS).chmod(0o644)
    card = CARD.format(
        model=model,
        size=dictionary.size,
        site=dictionary.site,
        k=dictionary.k,
        bytes=format_bytes((FEATURES / model / WEIGHTS).stat().st_size),
        unexplained=100 * last["unexplained"],
        steps=dictionary.notes["training"]["steps"],
    )
    with replace_file(FEATURES / model / "README.md") as draft:
        draft.write_text(card, encoding="utf-8")
    return FEATURES / model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    given = parser.parse_args()
    print(ship(given.folder, given.model))


if __name__ == "__main__":
    main()
