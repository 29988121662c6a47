"""Models, data of every kind and runs in one folder: what fuzz and kills start from."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import unmask
from tests.hostile.calls import TINY, Pieces
from tests.measures.test_symmetry import make_rows, make_run
from tests.study.pair import make_corpus
from unmask.base.files import write_json
from unmask.base.runs import write_record
from unmask.base.tables import write_table
from unmask.dictionaries.dictionary import make_random_dictionary


def make_pieces(folder: Path) -> Pieces:
    """Beside the pair of models and its corpus, which lie in the folder, all the rest."""
    import_module("matplotlib.pyplot")  # it makes its own cache folder, once
    model, twin = (unmask.load(folder / name, device="cpu") for name in ("diffusion", "twin"))
    corpus = make_corpus()
    (folder / "facts.csv").write_text(
        "subject,object,prompt\nAda,red boats,They say {} makes\nBob,old clocks,They say {} makes\n"
    )
    known = {"subject": "Ada", "attribute": "red boats", "prompt": "They say Ada makes"}
    write_json(folder / "knowns.json", [known])
    (folder / "perplexity.txt").write_text("They say Ada makes red boats.\n\nThe one is Bob.\n")
    unmask.represent(
        model, data=corpus, out=folder / "represent", device="cpu", **TINY["represent"]
    )
    unmask.sample(model, "They say", steps=2, length=9).save(folder / "texts.safetensors")
    fact = corpus["p2d_same"][0]
    edit = unmask.edit(model, fact, "red kites", layers=0, search_steps=2, prefixes=1)
    edit.save(folder / "edit.safetensors")
    make_random_dictionary(8, 12, 2).save(folder / "dictionary")
    pairs = write_pairs(folder / "pairs")
    return Pieces(folder, model, twin, corpus, fact, folder / "represent", pairs)


def write_pairs(folder: Path) -> Path:
    """A run of `represent` with made-up vectors of enough facts for `symmetry`."""
    made = make_run(folder, make_rows(0.5), make_rows(0.5, model="other"))
    (record,) = made.records
    folder.mkdir()
    write_record(folder, replace(record, settings=made.settings.to_record()))
    for name, schema in made.measure.tables.items():
        write_table(folder / f"{name}.parquet", made.tables.get(name, []), schema)
    write_table(folder / "summary" / "values.parquet", [], "represent-values/2")
    return folder
