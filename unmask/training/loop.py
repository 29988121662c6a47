"""The loop: step, log, evaluate, save, until the budget is spent or somebody asks to stop."""

import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from unmask.base.errors import UserError
from unmask.base.files import replace_file
from unmask.base.progress import count_inside
from unmask.base.units import format_number
from unmask.net.hub import RUN_MODEL
from unmask.net.loading import save
from unmask.net.model import Model
from unmask.training.checkpoints import (
    clear_leftovers,
    find_newest,
    load_checkpoint,
    save_checkpoint,
)
from unmask.training.examples import find_prompt
from unmask.training.journal import Journal, find_last_loss
from unmask.training.optimiser import rate_at
from unmask.training.signals import Request, listen
from unmask.training.speed import count_training_flops, measure_peak, wait_for
from unmask.training.trainer import Trainer

Evaluate = Callable[[Model, int], dict[str, float]]
"""(model, step) to named numbers."""
Sample = Callable[[Model, int], list[str]]
"""(model, step) to texts to look at."""
OnStep = Callable[[Model, int], object]
"""(model, step), called after each step, in training mode; what it returns is left aside."""
Notify = Callable[[int, int | None, str], None]
"""(steps done, steps in all, a note), called after each record."""

Ended = Literal["done", "minutes", "SIGINT", "SIGTERM"]

CHECKPOINTS = "checkpoints"
PACE = (5, 25)
"""The steps by whose time a budget of minutes is turned into steps: the first ones are slower."""


@dataclass(frozen=True)
class Hooks:
    """What a run asks others to do; all of it optional."""

    evaluate: Evaluate | None = None
    sample: Sample | None = None
    notify: Notify = lambda done, total, note: None
    on_step: OnStep | None = None
    ready: Callable[[], None] = lambda: None
    """Called once the run has started or loaded its checkpoint, before anything is written."""


@dataclass(frozen=True)
class TrainingOutcome:
    """How a call of `train` ended."""

    ended: Ended
    step: int
    total: int | None
    loss: float | None
    """The loss of the last record that has one."""
    prompt: str = ""
    """A prompt to try the model with; empty where none is needed."""


def run_loop(
    trainer: Trainer,
    folder: Path,
    hooks: Hooks | None = None,
    minutes: float | None = None,
) -> TrainingOutcome:
    """Train until the budget is spent, resuming from the newest checkpoint in `folder`.

    `minutes` ends this call early. Whatever ends it, a checkpoint is there to resume from; at the
    end of the budget the model is saved as `model`.
    """
    return run_loops([(trainer, folder, hooks or Hooks())], minutes)[0]


def run_loops(
    runs: Sequence[tuple[Trainer, Path, Hooks]], minutes: float | None = None
) -> list[TrainingOutcome]:
    """Several runs in one process, a step of each in turn: on a GPU their steps overlap.

    Each is what it would be alone. Where one fails while it trains, whatever the reason, the others
    go on to their end; then all that failed is raised. What keeps one from starting is raised
    before any has taken a step.
    """
    outcomes: dict[int, TrainingOutcome] = {}
    problems: dict[int, Exception] = {}
    with listen() as request:
        going = [
            _TrainingLoop(*run, minutes, request, find_newest(run[1] / CHECKPOINTS)).run()
            for run in runs
        ]
        while len(outcomes) + len(problems) < len(runs):
            for number in range(len(runs)):
                if number in outcomes or number in problems:
                    continue
                try:
                    next(going[number])
                except StopIteration as end:
                    outcomes[number] = end.value
                except Exception as error:
                    problems[number] = error
    if problems:
        by_folder = {runs[number][1]: problem for number, problem in problems.items()}
        raise _join_problems(by_folder, len(runs))
    return [outcomes[number] for number in range(len(runs))]


def _join_problems(problems: dict[Path, Exception], num_runs: int) -> Exception:
    """What to raise where runs failed, given by their folders: a problem itself if it is one."""
    if num_runs > 1:
        for folder, problem in problems.items():
            problem.add_note(f"This ended the run in {folder}.")
    if len(problems) == 1:
        return next(iter(problems.values()))
    failed = f"{len(problems)} of {num_runs} runs failed"
    if all(isinstance(problem, UserError) for problem in problems.values()):
        return UserError("\n".join([f"{failed}:", *(f"  {k}: {v}" for k, v in problems.items())]))
    return ExceptionGroup(failed, list(problems.values()))


class _TrainingLoop:
    """The part of a run between a start or a checkpoint and the next stop."""

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        hooks: Hooks,
        minutes: float | None,
        request: Request,
        newest: Path | None,
    ):
        self.trainer, self.folder, self.hooks, self.request = trainer, folder, hooks, request
        self.world, self.recipe = trainer.job.world, trainer.job.recipe
        self.cadence = self.recipe.cadence
        if newest is not None:
            planned = trainer.progress.total
            reached = load_checkpoint(newest, trainer.tensors(), self.world)
            # A budget that was changed counts; one of minutes was turned into steps before.
            trainer.restore(reached if planned is None else replace(reached, total=planned))
        hooks.ready()
        if self.world.leads:
            clear_leftovers(folder / CHECKPOINTS, newest)
        self.saved = trainer.progress.step if newest is not None else None
        self.before = trainer.progress.seconds
        self.peak = measure_peak(self.world.device, trainer.job.dtype)
        self.start = time.perf_counter()
        self.deadline = None if minutes is None else self.start + 60 * minutes
        self.paced = (trainer.progress.step, self.before)
        self.logged = (self.start, trainer.progress.tokens)
        self.loss = find_last_loss(folder, trainer.progress.step) if trainer.done else None
        recipe, config = self.recipe, trainer.net.config
        self.flops = count_training_flops(config, recipe.input_length, recipe.passes)

    def run(self) -> Generator[None, None, TrainingOutcome]:
        """Yields after each step."""
        trainer, journal = self.trainer, None
        if self.world.leads:
            step, board = trainer.progress.step, self.recipe.machine.tensorboard
            journal = Journal(self.folder, step, board)
        ended: Ended = "done"
        counting = ExitStack()
        try:
            begin = counting.enter_context(count_inside(trainer.progress.total or 0))
            while not trainer.done:
                begin(trainer.progress.step, 1)
                trainer.take_step()
                if self.hooks.on_step is not None:
                    self.hooks.on_step(trainer.job.model, trainer.progress.step)
                self._set_pace()
                step = trainer.progress.step
                if self._is_due(self.cadence.log):
                    self._record(journal)
                if self._is_due(self.cadence.evaluate):
                    self._evaluate(journal)
                stop = self._ask_to_stop()
                if stop or trainer.done or self._is_due(self.cadence.checkpoint, at_end=False):
                    self._save()
                if stop and not trainer.done:
                    ended = stop
                    break
                yield
            if ended == "done":
                self._finish()
        finally:
            counting.close()
            if journal is not None:
                journal.close()
        progress, examples = trainer.progress, trainer.job.examples
        name, needed = examples.facts_from, self.recipe.paradigm.predicts_next
        prompt = find_prompt(examples.parts[name], examples.settings[name].split, needed)
        return TrainingOutcome(ended, progress.step, progress.total, self.loss, prompt)

    def _is_due(self, every: int, at_end: bool = True) -> bool:
        step = self.trainer.progress.step
        return (at_end and self.trainer.done) or (every > 0 and step % every == 0)

    def _set_pace(self) -> None:
        """Turn a budget of minutes into steps, once the first steps have shown the speed.

        Where the time is spent before that, these steps were all.
        """
        trainer, step = self.trainer, self.trainer.progress.step
        if trainer.progress.total is not None:
            return
        if step in PACE:
            wait_for(self.world.device)
        now = time.perf_counter() - self.start + self.before
        spent = now >= 60 * (self.recipe.budget.minutes or 0)
        if self.world.agree(int(spent)):
            trainer.progress = replace(trainer.progress, total=step)
            return
        if step == PACE[0]:
            self.paced = (step, now)
        if step == PACE[1]:
            first, then = self.paced
            each = (now - then) / max(1, step - first)
            left = 60 * (self.recipe.budget.minutes or 0) - now
            total = int(self.world.share(step + int(left / max(each, 1e-6))))
            trainer.progress = replace(trainer.progress, total=total)

    def _record(self, journal: Journal | None) -> None:
        """Read the loss and the guards, and write a record of them."""
        trainer, progress = self.trainer, self.trainer.progress
        loss, by_source = trainer.read_losses()
        self.loss = self.loss if loss is None else loss
        norm, skipped = float(trainer.norm), int(trainer.guard.skipped)
        self._note_time()
        now = time.perf_counter()
        then, tokens = self.logged
        self.logged = (now, progress.tokens)
        speed = (progress.tokens - tokens) / max(now - then, 1e-9)
        share = speed * self.flops / self.world.size / self.peak
        record: dict[str, Any] = {
            "step": progress.step,
            "loss": loss,
            "norm": norm,
            "rate": self.recipe.optimiser.rate
            * rate_at(progress.step - 1, progress.total, self.recipe.schedule),
            "tokens": progress.tokens,
            "skipped": skipped,
            "tokens_per_second": round(speed, 1),
            "peak_share": round(share, 4),
            "seconds": round(self.trainer.progress.seconds, 3),
        }
        for name, own in by_source.items():
            record |= {f"loss/{name}": own, f"rows/{name}": progress.step * trainer.rows[name]}
        if journal is not None:
            journal.write(record)
        note = "no loss" if loss is None else f"loss {loss:.4f}"
        note += f"  {format_number(speed)}tok/s  {share:.0%} of the device's peak"
        note += f"  {skipped} steps skipped (gradients too long)" if skipped else ""
        self.hooks.notify(progress.step, progress.total, note)
        self._check_patience()

    def _note_time(self) -> None:
        spent = self.before + time.perf_counter() - self.start
        self.trainer.progress = replace(self.trainer.progress, seconds=spent)

    def _evaluate(self, journal: Journal | None) -> None:
        """Let the hooks look at the model; the leader alone asks and writes."""
        step = self.trainer.progress.step
        if self.hooks.evaluate is None and self.hooks.sample is None:
            return
        with self.trainer.show_model() as model:
            if not self.world.leads or journal is None:
                return
            record: dict[str, Any] = {}
            if self.hooks.evaluate is not None:
                record |= self.hooks.evaluate(model, step)
            if self.hooks.sample is not None:
                record |= {"samples": self.hooks.sample(model, step)}
        if record:
            journal.write({"step": step} | record)

    def _ask_to_stop(self) -> Ended | None:
        """Why to stop now, if any process has a reason; asked between steps."""
        reasons: tuple[Ended | None, ...] = (None, "minutes", "SIGINT", "SIGTERM")
        late = self.deadline is not None and time.perf_counter() > self.deadline
        caught: dict[int | None, int] = {None: int(late), signal.SIGINT: 2, signal.SIGTERM: 3}
        return reasons[self.world.agree(caught[self.request.signal])]

    def _save(self) -> None:
        trainer, step = self.trainer, self.trainer.progress.step
        if self.saved == step:
            return
        self._check_patience()
        self._note_time()
        folder = self.folder / CHECKPOINTS
        save_checkpoint(
            folder, trainer.tensors(), trainer.snapshot(), self.cadence.keep, self.world
        )
        self.saved = step

    def _finish(self) -> None:
        """Save the model that training was for."""
        model = self.trainer.make_model()
        if self.world.leads:
            save(model, self.folder / RUN_MODEL)
        self.world.wait()

    def _check_patience(self) -> None:
        """Stop where too many steps in a row were bad; the last bad one's batch is saved."""
        self.trainer.settle()
        in_a_row = self.trainer.guard.read_longest()
        if in_a_row < self.recipe.guards.patience:
            return
        step = int(self.trainer.guard.last)
        path = self.folder / f"bad-step-{step:08d}.safetensors"
        if self.world.leads:
            with replace_file(path) as draft:
                save_file(_collect(self.trainer, step), draft)
        self.world.wait()
        raise UserError(
            f"{in_a_row} steps in a row had gradients that are not numbers or far too long; the "
            f"last bad one was step {step}, whose batch is in {path}: lower optimiser.rate or "
            "look at the data; --resume continues from the last checkpoint."
        )


def _collect(trainer: Trainer, step: int) -> dict[str, torch.Tensor]:
    """A step's rows and loss inputs, by name; both can be computed again at any time."""
    tensors = dict[str, torch.Tensor]()
    for name, part in trainer.job.examples.parts.items():
        rows = trainer.orders[name].rows_at(step)
        before = f"{name}." if name else ""
        tensors |= {f"{before}rows": torch.tensor(rows), f"{before}clean": part.take(rows).tokens}
    for i, inputs in enumerate(part.inputs for part in trainer.feed(step)):
        tensors |= {f"{i}.tokens": inputs.batch.tokens, f"{i}.t": inputs.t}
        if inputs.targets is not None:
            targets = inputs.targets
            tensors |= {f"{i}.at": targets.at, f"{i}.targets": targets.tokens}
            tensors |= {f"{i}.weights": targets.weights}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
