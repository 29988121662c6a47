"""The public names, listed once: for type checkers and editors, and for `unmask/__init__.py`."""

from unmask import corruptions as corruptions
from unmask.base.errors import UserError as UserError
from unmask.base.plugins import register as register
from unmask.data.facts import Fact as Fact
from unmask.data.facts import read_facts as read_facts
from unmask.data.reversal_corpus import make_corpus as make_corpus
from unmask.data.tokenizer import Tokenizer as Tokenizer
from unmask.dictionaries.activations import activations as activations
from unmask.dictionaries.dictionary import Dictionary as Dictionary
from unmask.dictionaries.dictionary_training import train_dictionary as train_dictionary
from unmask.dictionaries.steering import steer as steer
from unmask.editing.edit import Edit as Edit
from unmask.editing.editor import edit as edit
from unmask.editing.moments import moments as moments
from unmask.net.config import NetConfig as NetConfig
from unmask.net.loading import load as load
from unmask.net.loading import save as save
from unmask.net.model import Model as Model
from unmask.net.presets import preset as preset
from unmask.net.transformer import Transformer as Transformer
from unmask.noise.gaussian import Gaussian as Gaussian
from unmask.noise.hybrid import Hybrid as Hybrid
from unmask.noise.masked import Masked as Masked
from unmask.noise.process import Process as Process
from unmask.noise.uniform import Uniform as Uniform
from unmask.objectives.likelihood import likelihood as likelihood
from unmask.report.notebook import show as show
from unmask.report.page import draw_report as draw_report
from unmask.representation.keys import extract_key as extract_key
from unmask.representation.lens import logit_lens as logit_lens
from unmask.representation.settings import Extraction as Extraction
from unmask.representation.values import extract_value as extract_value
from unmask.sampling.imported import read_trajectories as read_trajectories
from unmask.sampling.settings import Sampling as Sampling
from unmask.sampling.state import StepState as StepState
from unmask.sampling.texts import infill as infill
from unmask.sampling.texts import sample as sample
from unmask.sampling.trajectory import Trajectory as Trajectory
from unmask.study.pipeline import resume_study as resume_study
from unmask.study.pipeline import run_study as run_study
from unmask.study.settings import StudySettings as StudySettings
from unmask.sweep.run import run_sweep as run_sweep
from unmask.toy.run import run_toy as run_toy
from unmask.toy.settings import ToySettings as ToySettings
from unmask.tracing.attribution import estimate_effects as estimate_effects
from unmask.tracing.clean_run import find_clean_run as find_clean_run
from unmask.tracing.grid import TraceGrid as TraceGrid
from unmask.tracing.knockout import cut_edges as cut_edges
from unmask.tracing.paths import patch_paths as patch_paths
from unmask.tracing.settings import Tracing as Tracing
from unmask.tracing.steps import trace_steps as trace_steps
from unmask.tracing.tokens import trace_tokens as trace_tokens
from unmask.training.recipe import Recipe as Recipe
from unmask.training.run import train as train
from unmask.training.run import train_seeds as train_seeds

# isort: off
from unmask.measures import (
    alignment as _alignment,
    erasure as _erasure,
    factorization as _factorization,
    features as _features,
    interchange as _interchange,
    knockout as _knockout,
    knowns as _knowns,
    lens as _lens,
    nll as _nll,
    order as _order,
    paths as _paths,
    perplexity as _perplexity,
    quality as _quality,
    recall as _recall,
    represent as _represent,
    slots as _slots,
    symmetry as _symmetry,
    trace as _trace,
)
from unmask.experiments.bench import measure as _bench
from unmask.experiments.circuit import measure as _circuit
from unmask.experiments.correctors import measure as _correctors
from unmask.experiments.gradients import measure as _gradients
from unmask.experiments.guidance import measure as _guidance
from unmask.experiments.infilling import measure as _infilling
from unmask.experiments.mending import measure as _mending
from unmask.experiments.parallel import measure as _parallel
from unmask.experiments.planted import measure as _planted
from unmask.experiments.relearn import measure as _relearn
from unmask.experiments.subspaces import measure as _subspaces
from unmask.experiments.transparency import measure as _transparency
# isort: on

__version__: str

alignment = _alignment.MEASURE
bench = _bench.MEASURE
circuit = _circuit.MEASURE
correctors = _correctors.MEASURE
erasure = _erasure.MEASURE
factorization = _factorization.MEASURE
features = _features.MEASURE
gradients = _gradients.MEASURE
guidance = _guidance.MEASURE
interchange = _interchange.MEASURE
knockout = _knockout.MEASURE
knowns = _knowns.MEASURE
lens = _lens.MEASURE
infilling = _infilling.MEASURE
mending = _mending.MEASURE
nll = _nll.MEASURE
order = _order.MEASURE
parallel = _parallel.MEASURE
paths = _paths.MEASURE
perplexity = _perplexity.MEASURE
planted = _planted.MEASURE
quality = _quality.MEASURE
recall = _recall.MEASURE
relearn = _relearn.MEASURE
represent = _represent.MEASURE
slots = _slots.MEASURE
subspaces = _subspaces.MEASURE
symmetry = _symmetry.MEASURE
trace = _trace.MEASURE
transparency = _transparency.MEASURE
