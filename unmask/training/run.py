"""Training from a recipe to a model in a folder: what `unmask train` and `unmask.train` do."""

import logging
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmask.base.config import check_arguments, check_values
from unmask.base.errors import UserError
from unmask.base.locks import lock_run
from unmask.base.plugins import name_thing, register
from unmask.base.runs import RunRecord
from unmask.net.hub import RECIPE
from unmask.net.model import Model
from unmask.training.build import TrainingJob, prepare_job
from unmask.training.checkpoints import check_checkpoint, load_checkpoint
from unmask.training.folder import (
    begin_run,
    check_inputs,
    describe_run,
    record_changes,
    refuse_used,
    reopen_run,
)
from unmask.training.loop import (
    Evaluate,
    Hooks,
    Notify,
    OnStep,
    TrainingOutcome,
    run_loop,
    run_loops,
)
from unmask.training.parallel import World, join
from unmask.training.recipe import Recipe
from unmask.training.recipes_io import list_changes, read_recipe
from unmask.training.trainer import Trainer
from unmask.training.validation import make_recall, make_sampler

_log = logging.getLogger(__name__)

Watch = Callable[[str], AbstractContextManager[Notify]]
"""Opens something that is notified of a run's progress, such as a progress bar."""


@check_arguments()
def train(
    recipe: str | Path | Recipe | None = None,
    out: str | Path | None = None,
    *changes: str,
    resume: str | Path | None = None,
    fresh: bool = False,
    allow_changes: bool = False,
    minutes: float | None = None,
    device: str = "auto",
    watch: Watch | None = None,
    objective: str | Callable[..., Any] | None = None,
    optimiser: str | Callable[..., Any] | None = None,
    evaluate: Evaluate | None = None,
    on_step: OnStep | None = None,
) -> TrainingOutcome | None:
    """How the run ended; None on processes that do not lead. Its model lies in `model` of `out`.

    Args:
        recipe: A shipped one's name, a YAML file or a `unmask.Recipe`.
        out: The folder of the run; by default one named after the recipe.
        changes: Settings of the recipe such as "batch.rows=64".
        resume: The folder of a run to resume, instead of a recipe.
        fresh: Remove a run that `out` holds, and begin anew.
        allow_changes: Resume even with other settings, data or another model to start from.
        minutes: The longest time to train for now; the run can be resumed after it.
        device: "auto", "cpu", "cuda", "mps"; under torchrun each process takes its own.
        watch: Opens something that is notified of progress, such as a progress bar.
        objective: What is minimised: a name, or a function or class of one's own, which is then
            registered under its name (`unmask.register`); the recipe has the name.
        optimiser: What moves the weights, likewise.
        evaluate: (model, step) to numbers by name, for the run's log at each evaluation.
        on_step: (model, step), called after each step.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise UserError(f"{minutes} minutes were given: expected a finite number above 0.")
    for what, path in (("recipe", recipe), ("folder", out), ("run to resume", resume)):
        if path is not None and not isinstance(path, str | Path | Recipe):
            raise UserError(f"the {what} is a {type(path).__name__}: expected a name or a path.")
    if (resume is None) == (recipe is None):
        raise UserError("either a recipe or a run to resume is needed: give one of the two.")
    if resume is not None and out is not None:
        raise UserError("a run is resumed in its own folder: leave `out` out.")
    if resume is not None and fresh:
        raise UserError("--resume and --fresh were both given: leave one of them out.")
    for kind, given in (("objective", objective), ("optimiser", optimiser)):
        if given is not None:
            changes = (*changes, f"{kind}.name={_name_given(kind, given)}")
    if resume is not None:
        folder = Path(resume)
        settings = reopen_run(folder, changes, allow_changes)
    else:
        assert recipe is not None
        folder = choose_folder("recipe" if isinstance(recipe, Recipe) else recipe, out)
        settings = read_recipe(recipe, changes)
    with _deterministic(settings), join(device) as world, ExitStack() as held:
        chosen = (resume is not None, fresh, allow_changes)
        own = {"evaluate": evaluate, "on_step": on_step}
        run = _open_run(folder, settings, *chosen, world, watch, held, own)
        outcome = run_loop(*run, minutes)
    return outcome if world.leads else None


@check_arguments()
def train_seeds(
    recipe: str | Path | Recipe,
    out: str | Path,
    seeds: Sequence[int],
    *changes: str,
    fresh: bool = False,
    minutes: float | None = None,
    device: str = "auto",
    watch: Watch | None = None,
) -> list[TrainingOutcome]:
    """One recipe with several seeds in one process, a step of each in turn; how each ended.

    Each run is what `train` would make of it, in a folder `seed-N` of its own, which `train` can
    resume as well. Small networks leave a GPU idle between kernels, where the others' run. Runs
    that were stopped are resumed. The other arguments are those of `unmask.train`.

    Args:
        out: The folder that holds the runs' folders.
        seeds: One for each run.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"the seeds {list(seeds)} were given: expected one or more, each once.")
    settings = read_recipe(recipe, changes)
    with _deterministic(settings), join(device) as world, ExitStack() as held:
        if world.joined:
            raise UserError("several seeds train in one process: start it without torchrun.")
        runs = []
        for seed in seeds:
            folder, own = Path(out) / f"seed-{seed}", replace(settings, seed=seed)
            resumed = (folder / RECIPE).is_file() and not fresh
            if resumed and (differs := list_changes(reopen_run(folder, (), False), own)):
                raise UserError(
                    f"{folder} was started with other settings: {'; '.join(differs)}. Begin anew "
                    "with --fresh, or choose another folder with --out."
                )
            chosen = (resumed, fresh, False)
            runs.append(_open_run(folder, own, *chosen, world, watch, held))
        return run_loops(runs, minutes)


def read_checkpoint(path: str | Path) -> Model:
    """The model that a run would have been at one of its checkpoints, `RUN/checkpoints/step-N`.

    The run's data must be where they were: they say what the tokens are.
    """
    path = Path(path)
    recipe = reopen_run(path.resolve().parent.parent, (), False)
    check_checkpoint(path)
    with join("cpu") as world:
        trainer = Trainer(prepare_job(recipe, world))
        load_checkpoint(path, trainer.tensors(), world)
        return trainer.make_model()


def _open_run(
    folder: Path,
    recipe: Recipe,
    resumed: bool,
    fresh: bool,
    allow_changes: bool,
    world: World,
    watch: Watch | None,
    held: ExitStack,
    given: Mapping[str, Callable[..., Any] | None] | None = None,
) -> tuple[Trainer, Path, Hooks]:
    """The run, its folder locked and made or checked, its progress shown until `held` ends."""
    given, records = given or {}, list[RunRecord]()
    if not resumed:  # before the time that data and network take
        _let_leader(world, lambda: refuse_used(folder, fresh))
    job = prepare_job(recipe, world)
    if world.leads and job.examples.unknown:
        _log.warning("%s: %s.", job.examples.label, job.examples.unknown)

    def open_folder() -> None:
        held.enter_context(lock_run(folder))
        records.append(describe_run(job, given))
        if resumed:
            check_inputs(folder, records[0], allow_changes)
        else:
            begin_run(folder, recipe, records[0], fresh)

    _let_leader(world, open_folder)
    trainer = Trainer(job)

    def note_resume() -> None:
        """Only once the checkpoint has been found to fit may the folder change."""
        if not resumed:
            return
        _let_leader(world, lambda: record_changes(folder, recipe, records[0]))
        if world.leads and trainer.progress.step == 0:
            _log.warning("%s has no whole checkpoint: it starts from the beginning.", folder)

    watched = watch(folder.name) if watch and world.leads else nullcontext(Hooks().notify)
    notify = held.enter_context(watched)
    hooks = make_hooks(job, notify)
    if (own := given.get("evaluate")) is not None:
        hooks = replace(hooks, evaluate=_join_evaluations(hooks.evaluate, own))
    return trainer, folder, replace(hooks, on_step=given.get("on_step"), ready=note_resume)


def _name_given(kind: str, given: str | Callable[..., Any]) -> str:
    """The name of an objective or optimiser; one of the caller's own is known by it from now on."""
    if isinstance(given, str):
        return given
    register(kind, given)
    return name_thing(kind, given)


def _join_evaluations(first: Evaluate | None, own: Evaluate) -> Evaluate:
    """What the recipe evaluates, and what the caller does."""

    def measure(model: Model, step: int) -> dict[str, float]:
        numbers = own(model, step)
        if check_values({"evaluate": numbers}, {"evaluate": Mapping[str, float]}):
            raise UserError(f"evaluate returned {numbers!r:.80}: expected numbers by name.")
        return {**(first(model, step) if first is not None else {}), **numbers}

    return measure


def make_hooks(job: TrainingJob, notify: Notify) -> Hooks:
    """Recall where the data are questions, a few texts, and whoever is notified.

    A model that reads texts in another form is not asked plain prompts.
    """
    recipe, corpus = job.recipe, job.examples.corpus
    data = job.examples.settings[job.examples.facts_from]
    if recipe.is_rearranged:
        return Hooks(notify=notify)
    asks = corpus is not None and recipe.cadence.facts and recipe.paradigm.is_scored
    evaluate = make_recall(corpus, recipe, data.context) if corpus is not None and asks else None
    return Hooks(evaluate, make_sampler(recipe, corpus, data), notify)


def choose_folder(file: str | Path, out: str | Path | None) -> Path:
    """The folder that was named, else one in `runs` named after the recipe or sweep's file."""
    name = Path(file).name.removesuffix(".yaml").removesuffix(".yml")
    return Path(out) if out is not None else Path("runs", name)


def _let_leader(world: World, act: Callable[[], None]) -> None:
    """Have the leading process alone do something that a user's mistake may prevent."""
    problem = ""
    if world.leads:
        try:
            act()
        except UserError as error:
            problem = str(error)
    # All processes end with the leader's sentence; none is left waiting.
    if problem := str(world.share(problem)):
        raise UserError(problem)


@contextmanager
def _deterministic(recipe: Recipe) -> Generator[None]:
    """Deterministic algorithms inside the block, where the recipe wants them.

    To be entered before the device is used for the first time.
    """
    if not recipe.machine.deterministic:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warns)
