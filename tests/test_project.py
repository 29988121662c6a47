"""What a stranger meets first fits together: workflow, Makefile, versions, the API page."""

import doctest
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import unmask

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_workflow_runs_targets_that_are_there():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    matrix = workflow["jobs"]["make"]["strategy"]["matrix"]
    jobs = [(target, python) for target in matrix["target"] for python in matrix["python"]]
    jobs += [(job["target"], job["python"]) for job in matrix["include"]]
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert {target for target, _ in jobs} <= set(phony.split())
    assert {"check", "test", "test-oldest-torch", "test-newest", "wheel", "docs"} == {
        target for target, _ in jobs
    }
    versions = {line.split(" :: ")[-1] for line in PROJECT["classifiers"] if "Python :: " in line}
    assert {python for target, python in jobs if target == "test"} == versions


def test_the_oldest_torch_is_the_projects_bound():
    (bound,) = [line for line in PROJECT["dependencies"] if line.startswith("torch")]
    assert f"'{bound.replace('>=', '==')}.*'" in MAKEFILE


def test_hooks_run_files_that_are_there():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = [word for hook in hooks for word in hook["entry"].split() if "/" in word]
    assert "tools/check_layers.py" in entries
    assert all((ROOT / word).exists() for word in entries if not word.startswith(".venv"))


def test_every_public_name_is_in_the_api_reference():
    page = (ROOT / "docs/api.rst").read_text()
    documented = set(re.findall(r"^\.\. [\w:]+:: unmask\.(\w+)$", page, re.MULTILINE))
    assert documented == set(unmask.__all__) - {"__version__"}


def test_every_page_is_in_the_sites_index():
    index = (ROOT / "docs/index.md").read_text()
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert [page for page in pages if not re.search(rf"^{page}$", index, re.MULTILINE)] == []


def test_the_example_of_coming_from_runs():
    page = (ROOT / "docs/coming-from.md").read_text()
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    layers = names["model"].net.config.layers
    assert list(names["cache"]) == [f"layers.{i}.resid_out" for i in range(layers)]
    assert names["logits"].shape == names["ablated"].shape
    assert not torch.allclose(names["logits"], names["ablated"])
    model, drawn = names["model"], names["drawn"]
    plain = unmask.sample(model, names["texts"], steps=4, length=24)
    same = [torch.equal(a, b) for a, b in zip(drawn.confidence, plain.confidence, strict=True)]
    assert same == [True, False], "the second text alone is patched"


def list_documented() -> dict[str, Any]:
    """Public functions and classes, those of `unmask.corruptions`, and their methods, by name."""
    homes = (unmask, unmask.corruptions)
    public = {name: getattr(home, name) for home in homes for name in home.__all__}
    public = {name: x for name, x in public.items() if inspect.isfunction(x) or inspect.isclass(x)}
    return public | {
        f"{name}.{method}": function
        for name, thing in public.items()
        if inspect.isclass(thing)
        for method, function in vars(thing).items()
        if inspect.isfunction(function) and not method.startswith("_")
    }


DOCUMENTED = list_documented()
EXAMPLES = {name: x for name, x in DOCUMENTED.items() if ">>>" in (x.__doc__ or "")}
NO_EXAMPLE = {
    # Too long; the tutorial runs them.
    *("train", "train_seeds", "run_study", "resume_study", "run_sweep", "run_toy", "draw_report"),
    "estimate_effects",  # like `trace_tokens`
}


def test_public_functions_and_settings_have_examples():
    functions = {
        name for name, x in DOCUMENTED.items() if inspect.isfunction(x) and "." not in name
    }
    assert functions - set(EXAMPLES) == NO_EXAMPLE
    assert {"Sampling", "Tracing", "Extraction", "Recipe"} <= set(EXAMPLES)
    assert {"Masked", "Uniform", "Hybrid", "Gaussian"} <= set(EXAMPLES)
    assert {"Noise", "Mask", "Mean", "Replace", "Corrupted"} <= set(EXAMPLES)
    assert {"Model.logits", "Transformer.capture", "Transformer.patch"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_docstrings_run(name, tmp_path, monkeypatch):
    function = EXAMPLES[name]
    monkeypatch.chdir(tmp_path)
    facts = "subject,object,prompt\nRenzo Calverinth,the kindly well digger,{} is\n"
    Path("facts.csv").write_text(facts)
    names = {"unmask": unmask, "torch": torch}
    (example,) = doctest.DocTestFinder(recurse=False).find(function, "example", globs=names)
    assert example.examples
    report: list[str] = []
    failed, _ = doctest.DocTestRunner().run(example, out=report.append)
    assert not failed, "".join(report)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, x in DOCUMENTED.items()
        if name in EXAMPLES or (inspect.isfunction(x) and "." not in name)
    ],
)
def test_every_parameter_is_explained(name):
    explained = DOCUMENTED[name].__doc__
    for other in re.findall(r"arguments are\s+those of `unmask\.(\w+)`", explained):
        explained += getattr(unmask, other).__doc__
    for parameter in inspect.signature(DOCUMENTED[name]).parameters:
        line = rf"^ +[\w, ]*\b{parameter}\b[\w, ]*:"
        assert parameter == "self" or re.search(line, explained, re.M), parameter
