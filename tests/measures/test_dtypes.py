"""What models compute in: bfloat16 for recall and traces on a GPU, written down everywhere."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from unmask.base import devices
from unmask.base.devices import name_dtype
from unmask.base.locks import RunRefusedError
from unmask.base.runs import read_record
from unmask.blocks.blocks import Text
from unmask.measures.nll import MEASURE as NLL
from unmask.measures.recall import MEASURE as RECALL
from unmask.measures.represent import MEASURE as REPRESENT
from unmask.measures.runner import settle
from unmask.measures.trace import MEASURE as TRACE
from unmask.net.loading import find_dtype, load, save
from unmask.report.page import draw_report
from unmask.study.pipeline import StudyRun, choose_settings, list_stages
from unmask.study.settings import StudySettings

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(params=[CUDA, CPU], ids=str)
def device(request, monkeypatch) -> torch.device:
    """The device that every name stands for."""
    monkeypatch.setattr(devices, "resolve_device", lambda name="auto": request.param)
    return request.param


def test_recall_and_traces_are_fast_on_a_gpu(device):
    on_gpu = device is CUDA
    assert settle(RECALL.settings()).dtype == ("bfloat16" if on_gpu else "auto")
    assert settle(TRACE.settings()).dtype == ("bfloat16" if on_gpu else "float32")
    # What is searched or summed over stays as it was.
    assert settle(REPRESENT.settings()).dtype == "float32"
    assert settle(NLL.settings()).dtype == "auto"
    for measure in (RECALL, TRACE):
        assert settle(measure.settings(dtype="float32")).dtype == "float32"


@pytest.mark.parametrize("name", [n for n, (m, _) in list_stages().items() if n != "symmetry"])
def test_stages_of_a_study(device, name, tmp_path):
    measure, stage = list_stages()[name]
    plain, study = replace(stage, adjust=None), StudyRun(tmp_path)
    dtype = choose_settings(study, StudySettings(), measure, plain).dtype
    is_fast = device is CUDA and measure.name in ("recall", "trace", "knockout")
    assert dtype == ("bfloat16" if is_fast else "float32")
    assert choose_settings(study, StudySettings(dtype="float64"), measure, plain).dtype == "float64"


def read_dtypes(run: Path) -> set[bytes]:
    """What the metadata of all tables in a run's folder say."""
    tables = [path for path in run.rglob("*.parquet") if "parts" not in path.parts]
    return {pyarrow.parquet.read_schema(path).metadata.get(b"unmask.dtype") for path in tables}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_tables_and_pages_say_it(dtype, place, tmp_path):
    run = tmp_path / "run"
    asked = {"data": place.data, "splits": ("p2d_same",), "limit": 1, "steps": (1,)}
    RECALL(place.model, place.twin, out=run, dtype=dtype, device="cpu", controls=False, **asked)
    names = [Path(place.model).name, Path(place.twin).name]
    assert read_record(run).inputs["dtype"] == dict.fromkeys(names, dtype)
    assert read_dtypes(run) == {dtype.encode()}
    for page in ("page.html", "page.md"):
        text = draw_report([run], tmp_path / page).read_text("utf-8")
        assert f"Computed in {dtype}." in text


def test_models_of_several_dtypes(place, tmp_path):
    """A model that is loaded already keeps its own; a file is asked for its."""
    short = replace(load(place.model, "cpu", "bfloat16"), name="short")
    save(short, tmp_path / "short")
    assert find_dtype(tmp_path / "short", "cpu", "stored") is torch.bfloat16
    assert find_dtype(tmp_path / "short", "cpu", "float64") is torch.float64
    assert find_dtype(place.model, "cpu") is load(place.model, "cpu").net.embedding.weight.dtype
    settings = {"data": place.data, "splits": ("p2d_same",), "limit": 1, "device": "cpu"}
    result = NLL(short, place.twin, dtype="float32", **settings)
    last = result.section.blocks[-1]
    assert isinstance(last, Text) and last.text == "Computed in bfloat16 (short), float32 (twin)."


def test_a_run_is_not_resumed_in_another_dtype(place, tmp_path, monkeypatch):
    """As on another machine, where "auto" means something else."""
    asked = {"data": place.data, "splits": ("p2d_same",), "limit": 1, "device": "cpu"}
    NLL(place.model, out=tmp_path / "run", **asked)
    monkeypatch.setattr("unmask.net.loading.find_dtype", lambda *given: torch.float16)
    before = name_dtype(load(place.model, "cpu").net.embedding.weight.dtype)
    message = f"the dtype of diffusion was '{before}' and is now 'float16'"
    with pytest.raises(RunRefusedError, match=message):
        NLL(place.model, out=tmp_path / "run", **asked)
