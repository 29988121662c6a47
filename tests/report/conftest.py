"""A result of every measure, of small models that learn in seconds; tests must not change them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import make_model
from tests.measures.test_knowns import KNOWNS
from tests.measures.test_symmetry import compare, make_rows, make_run
from tests.study.pair import finished, make_fact, place
from unmask.experiments.bench.measure import MEASURE as BENCH
from unmask.experiments.circuit.measure import MEASURE as CIRCUIT
from unmask.experiments.correctors.measure import MEASURE as CORRECTORS
from unmask.experiments.gradients.measure import MEASURE as GRADIENTS
from unmask.experiments.guidance.corpus import make_biographies
from unmask.experiments.guidance.measure import MEASURE as GUIDANCE
from unmask.experiments.infilling.measure import MEASURE as INFILLING
from unmask.experiments.mending.measure import MEASURE as MENDING
from unmask.experiments.parallel.measure import MEASURE as PARALLEL
from unmask.experiments.planted.corpus import make_sealed_corpus
from unmask.experiments.planted.measure import MEASURE as PLANTED
from unmask.experiments.relearn.measure import MEASURE as RELEARN
from unmask.experiments.subspaces.measure import MEASURE as SUBSPACES
from unmask.experiments.transparency import languages
from unmask.experiments.transparency.measure import MEASURE as TRANSPARENCY
from unmask.measures.alignment import MEASURE as ALIGNMENT
from unmask.measures.edit import MEASURE as EDIT
from unmask.measures.erasure import MEASURE as ERASURE
from unmask.measures.features import MEASURE as FEATURES
from unmask.measures.interchange import MEASURE as INTERCHANGE
from unmask.measures.knowns import MEASURE as KNOWN
from unmask.measures.lens import MEASURE as LENS
from unmask.measures.nll import MEASURE as NLL
from unmask.measures.paths import MEASURE as PATHS
from unmask.measures.perplexity import MEASURE as PERPLEXITY
from unmask.measures.quality import MEASURE as QUALITY
from unmask.measures.result import Result
from unmask.measures.slots import MEASURE as SLOTS
from unmask.measures.steer import MEASURE as STEER
from unmask.net.loading import save
from unmask.report.page import draw_report
from unmask.representation.prompts import put_before

__all__ = ["finished", "place"]


@pytest.fixture(scope="session")
def results(finished, place, tmp_path_factory) -> dict[str, Result]:
    """Results by name: the study's stages, and what takes no part in a study."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "knowns.json").write_text(json.dumps(KNOWNS))
    (folder / "texts.txt").write_text("The caves of Orsel are deep.\n\nThe baker sings.\n")
    results = finished.results()
    results["nll"] = NLL(place.model, place.twin, data=place.data, out=folder / "nll")
    model = make_model()
    results["knowns"] = KNOWN(model, data=folder / "knowns.json", out=folder / "knowns")
    results["perplexity"] = PERPLEXITY(
        model, data=folder / "texts.txt", out=folder / "perplexity", context=16
    )
    quick = {"facts": 2, "layer": "0", "objects": "swap", "moments": "identity", "prefixes": 1}
    quick |= {"search_steps": 3, "groups": ("p2d", "d2p"), "length": 24, "device": "cpu"}
    results["edit"] = EDIT(
        place.model, place.twin, data=place.data, out=folder / "edit", steps=2, **quick
    )
    results["interchange"] = INTERCHANGE(
        place.model, data=place.data, out=folder / "interchange", device="cpu", length=24
    )
    people = [make_fact(i, way, "same") for i in range(6) for way in ("p2d", "d2p")]
    phrased = [*people, *(replace(put_before("So", fact), phrasing=1) for fact in people)]
    few = {"phrasings": 1, "states": 6, "starts": (-1, 0), "draws": 1, "device": "cpu"}
    results["erasure"] = ERASURE(place.model, data=phrased, out=folder / "erasure", **few)
    save(make_model(causal=True, seed=5), folder / "judge")
    documents = folder / "documents.txt"
    documents.write_text("\n\n".join(["The caves of Orsel are deep. " * 4] * 3))
    few = {"data": documents, "texts": 3, "length": 10, "device": "cpu"}
    more = {"judge": str(folder / "judge"), "steps": (2, 4), "out": folder / "quality"}
    results["quality"] = QUALITY(model, **few, **more)
    results["infilling"] = INFILLING(model, **few, gaps=(2,), steps=2, out=folder / "infilling")
    results["mending"] = MENDING(model, **few, calls=(2, 4), out=folder / "mending")
    few = {"limit": 1, "steps": (1,), "thresholds": (), "blocks": (), "languages": 1}
    few |= {"splits": ("p2d_same",), "length": 24, "device": "cpu"}
    results["parallel"] = PARALLEL(place.model, data=place.data, out=folder / "parallel", **few)
    few = {"limit": 1, "steps": 2, "languages": 1, "texts": 6, "states": 2, "length": 24}
    given = {"data": place.data, "splits": ("p2d_same",), "device": "cpu"}
    out = folder / "transparency"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(languages, "DOSES", (1.0,))
        results["transparency"] = TRANSPARENCY(place.model, out=out, **given, **few)
    few = {"facts": 2, "rehearsed": 0, "updates": 1, "rows": 2, "steps": 2}
    few |= {"groups": ("both",), "length": 24, "device": "cpu"}
    results["relearn"] = RELEARN(place.model, data=people, out=folder / "relearn", **few)
    results["alignment"] = ALIGNMENT(
        place.model, data=people, out=folder / "alignment", length=24, device="cpu"
    )
    few = {"size": 24, "k": 4, "train_steps": 2, "texts": 2, "steps": 1, "facts": 4, "draws": 1}
    results["features"] = FEATURES(
        place.model, data=place.data, out=folder / "features", length=24, device="cpu", **few
    )
    few = {"number": 1, "texts": 2, "lines": 2, "steps": 2, "facts": 1, "strengths": (0.4,)}
    few |= {"schedules": ("all", "late"), "judge": str(folder / "judge"), "device": "cpu"}
    results["steer"] = STEER(place.model, data=people, out=folder / "steer", length=24, **few)
    few = {"steps": 2, "bands": 2, "length": 24, "device": "cpu"}
    results["lens"] = LENS(place.model, data=people, out=folder / "lens", **few)
    few = {"permutations": 99, "length": 24, "device": "cpu"}
    results["slots"] = SLOTS(place.model, data=people, out=folder / "slots", **few)
    few = {"steps": 2, "bands": 2, "length": 24, "any_answer": True, "device": "cpu"}
    results["paths"] = PATHS(place.model, data=people[:4], out=folder / "paths", **few)
    few = {"facts": 2, "known": 0, "edges": 0.05, "points": 1, "neurons": 1} | few
    few = {name: value for name, value in few.items() if name != "bands"}
    results["circuit"] = CIRCUIT(place.model, data=people[:4], out=folder / "circuit", **few)
    few = {"facts": 6, "phrasings": 1, "ranks": (2,), "updates": 1, "rows": 2, "known": 0}
    results["subspaces"] = SUBSPACES(
        place.model, data=phrased, out=folder / "subspaces", device="cpu", **few
    )
    results |= measure_steering(folder)
    run = make_run(folder / "represent", make_rows(0.5), make_rows(0.5, group="d2p"))
    results["symmetry"] = compare(folder, run, permutations=19)
    return results


def measure_steering(folder: Path) -> dict[str, Result]:
    """Correctors, planted tokens, guidance and methods, as small as they go."""
    few = {"correctors": ("uniform=1",), "remaskings": ("conf",), "rows": 4, "most_calls": 8}
    planted = {"counts": (1,), "at_steps": (1,), "steps": 2, "orders": ("left",), "people": 2}
    planted |= {"lengths": (60, 62), "remasks": ("none",), "guidances": (0.0,), "device": "cpu"}
    lives = [
        f"Ada ({'born' if i // 2 % 2 else 'in'} {1900 + i}) was {'here ' * 12}" for i in range(24)
    ]
    drawn = {"texts": 2, "passes": (6,), "strengths": (4.0,), "guidances": (1.0,), "draws": (2,)}
    drawn |= {"length": 24, "device": "cpu"}
    out, model = (
        {
            name: folder / name
            for name in ("correctors", "planted", "guidance", "bench", "gradients")
        },
        make_model(),
    )
    scored = {"methods": ("lens", "interchange", "attention"), "forms": 1}
    scored |= {"mechanisms": ("one store", "two stores", "decoy")}
    tiny = {"number": 2, "tokens": 2, "length": 2, "scales": (1.0,), "each": (1,), "draws": 2}
    return {
        "gradients": GRADIENTS(policies=("table", "network"), out=out["gradients"], **tiny),
        "bench": BENCH(out=out["bench"], **scored),
        "correctors": CORRECTORS(languages=1, draws=1, out=out["correctors"], **few),
        "planted": PLANTED(model, data=make_sealed_corpus(2), out=out["planted"], **planted),
        "guidance": GUIDANCE(model, data=make_biographies(lives, 24), out=out["guidance"], **drawn),
    }


@pytest.fixture(scope="session")
def page(finished) -> str:
    """The page of the study."""
    return draw_report([finished.folder]).read_text("utf-8")
