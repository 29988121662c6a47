"""Unmask: train, sample, evaluate and open up diffusion language models.

The public names below are loaded on first use, so that `import unmask` and
`unmask --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unmask import corruptions
    from unmask.base.errors import UserError
    from unmask.data.facts import Fact, read_facts
    from unmask.data.reversal_corpus import make_corpus
    from unmask.data.tokenizer import Tokenizer
    from unmask.editing.edit import Edit
    from unmask.editing.editor import edit
    from unmask.editing.moments import moments
    from unmask.experiments.correctors.measure import MEASURE as correctors
    from unmask.experiments.guidance.measure import MEASURE as guidance
    from unmask.experiments.mending.measure import MEASURE as mending
    from unmask.experiments.planted.measure import MEASURE as planted
    from unmask.measures.erasure import MEASURE as erasure
    from unmask.measures.factorization import MEASURE as factorization
    from unmask.measures.interchange import MEASURE as interchange
    from unmask.measures.knockout import MEASURE as knockout
    from unmask.measures.knowns import MEASURE as knowns
    from unmask.measures.measure import register
    from unmask.measures.nll import MEASURE as nll
    from unmask.measures.order import MEASURE as order
    from unmask.measures.paths import MEASURE as paths
    from unmask.measures.perplexity import MEASURE as perplexity
    from unmask.measures.quality import MEASURE as quality
    from unmask.measures.recall import MEASURE as recall
    from unmask.measures.represent import MEASURE as represent
    from unmask.measures.slots import MEASURE as slots
    from unmask.measures.symmetry import MEASURE as symmetry
    from unmask.measures.trace import MEASURE as trace
    from unmask.net.config import NetConfig
    from unmask.net.loading import load, save
    from unmask.net.model import Model
    from unmask.net.presets import preset
    from unmask.net.transformer import Transformer
    from unmask.noise.gaussian import Gaussian
    from unmask.noise.hybrid import Hybrid
    from unmask.noise.masked import Masked
    from unmask.noise.process import Process
    from unmask.noise.uniform import Uniform
    from unmask.objectives.likelihood import likelihood
    from unmask.report.notebook import show
    from unmask.report.page import draw_report
    from unmask.representation.keys import extract_key
    from unmask.representation.lens import logit_lens
    from unmask.representation.settings import Extraction
    from unmask.representation.values import extract_value
    from unmask.sampling.imported import read_trajectories
    from unmask.sampling.settings import Sampling
    from unmask.sampling.state import StepState
    from unmask.sampling.texts import infill, sample
    from unmask.sampling.trajectory import Trajectory
    from unmask.study.pipeline import resume_study, run_study
    from unmask.study.settings import StudySettings
    from unmask.sweep.run import run_sweep
    from unmask.toy.run import run_toy
    from unmask.toy.settings import ToySettings
    from unmask.tracing.attribution import estimate_effects
    from unmask.tracing.clean_run import find_clean_run
    from unmask.tracing.grid import TraceGrid
    from unmask.tracing.knockout import cut_edges
    from unmask.tracing.paths import patch_paths
    from unmask.tracing.settings import Tracing
    from unmask.tracing.steps import trace_steps
    from unmask.tracing.tokens import trace_tokens
    from unmask.training.recipe import Recipe
    from unmask.training.run import train, train_seeds

__version__ = "0.2.0.dev0"

# The module of each public name; `module:name` where the module has it under another name.
_HOME_OF = (
    {
        "Edit": "unmask.editing.edit",
        "Extraction": "unmask.representation.settings",
        "Fact": "unmask.data.facts",
        "cut_edges": "unmask.tracing.knockout",
        "draw_report": "unmask.report.page",
        "edit": "unmask.editing.editor",
        "make_corpus": "unmask.data.reversal_corpus",
        "register": "unmask.measures.measure",
        "resume_study": "unmask.study.pipeline",
        "run_study": "unmask.study.pipeline",
        "run_sweep": "unmask.sweep.run",
        "run_toy": "unmask.toy.run",
        "Gaussian": "unmask.noise.gaussian",
        "Hybrid": "unmask.noise.hybrid",
        "Masked": "unmask.noise.masked",
        "Model": "unmask.net.model",
        "NetConfig": "unmask.net.config",
        "Process": "unmask.noise.process",
        "Recipe": "unmask.training.recipe",
        "Sampling": "unmask.sampling.settings",
        "StepState": "unmask.sampling.state",
        "StudySettings": "unmask.study.settings",
        "Tokenizer": "unmask.data.tokenizer",
        "ToySettings": "unmask.toy.settings",
        "Trajectory": "unmask.sampling.trajectory",
        "TraceGrid": "unmask.tracing.grid",
        "Tracing": "unmask.tracing.settings",
        "Transformer": "unmask.net.transformer",
        "Uniform": "unmask.noise.uniform",
        "UserError": "unmask.base.errors",
        "find_clean_run": "unmask.tracing.clean_run",
        "infill": "unmask.sampling.texts",
        "extract_key": "unmask.representation.keys",
        "extract_value": "unmask.representation.values",
        "estimate_effects": "unmask.tracing.attribution",
        "likelihood": "unmask.objectives.likelihood",
        "logit_lens": "unmask.representation.lens",
        "load": "unmask.net.loading",
        "moments": "unmask.editing.moments",
        "patch_paths": "unmask.tracing.paths",
        "preset": "unmask.net.presets",
        "read_facts": "unmask.data.facts",
        "read_trajectories": "unmask.sampling.imported",
        "sample": "unmask.sampling.texts",
        "show": "unmask.report.notebook",
        "save": "unmask.net.loading",
        "trace_steps": "unmask.tracing.steps",
        "trace_tokens": "unmask.tracing.tokens",
        "train": "unmask.training.run",
        "train_seeds": "unmask.training.run",
    }
    | {
        name: f"unmask.measures.{name}:MEASURE"
        for name in (
            "erasure",
            "factorization",
            "interchange",
            "knockout",
            "knowns",
            "nll",
            "order",
            "paths",
            "perplexity",
            "quality",
            "recall",
            "represent",
            "slots",
            "symmetry",
            "trace",
        )
    }
    | {
        name: f"unmask.experiments.{name}.measure:MEASURE"
        for name in ("correctors", "guidance", "mending", "planted")
    }
)

__all__ = [
    "Edit",
    "Extraction",
    "Fact",
    "Gaussian",
    "Hybrid",
    "Masked",
    "Model",
    "NetConfig",
    "Process",
    "Recipe",
    "Sampling",
    "StepState",
    "StudySettings",
    "Tokenizer",
    "ToySettings",
    "TraceGrid",
    "Tracing",
    "Trajectory",
    "Transformer",
    "Uniform",
    "UserError",
    "__version__",
    "correctors",
    "corruptions",
    "cut_edges",
    "draw_report",
    "edit",
    "erasure",
    "estimate_effects",
    "extract_key",
    "extract_value",
    "factorization",
    "find_clean_run",
    "guidance",
    "infill",
    "interchange",
    "knockout",
    "knowns",
    "likelihood",
    "load",
    "logit_lens",
    "make_corpus",
    "mending",
    "moments",
    "nll",
    "order",
    "patch_paths",
    "paths",
    "perplexity",
    "planted",
    "preset",
    "quality",
    "read_facts",
    "read_trajectories",
    "recall",
    "register",
    "represent",
    "resume_study",
    "run_study",
    "run_sweep",
    "run_toy",
    "sample",
    "save",
    "show",
    "slots",
    "symmetry",
    "trace",
    "trace_steps",
    "trace_tokens",
    "train",
    "train_seeds",
]


def __getattr__(name: str) -> object:
    if name == "corruptions":
        return import_module("unmask.corruptions")
    if name in _HOME_OF:
        home, _, own_name = _HOME_OF[name].partition(":")
        return getattr(import_module(home), own_name or name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
