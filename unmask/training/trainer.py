"""One run in memory: its learner, optimiser, average and guard, and how a step is taken."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from unmask.base.devices import free_bytes
from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.base.streams import RowStreams
from unmask.data.batches import RowOrder
from unmask.net.counts import fill_network
from unmask.net.model import Model
from unmask.net.transformer import Transformer
from unmask.objectives.batch import Batch, draw_length, draw_times
from unmask.training.adapt import open_attention
from unmask.training.adapters import merge_adapters
from unmask.training.anchored import AnchoredObjective
from unmask.training.build import TrainingJob
from unmask.training.changing import leave_learned_noise
from unmask.training.checkpoints import Progress
from unmask.training.graphs import MOST_FLOPS, StepGraphs, StepPart, can_replay_step, pad_inputs
from unmask.training.guards import Guard
from unmask.training.learner import Learner, prepare_blocks, run_plainly
from unmask.training.losses import min_length
from unmask.training.optimiser import Average, Optimiser, rate_at
from unmask.training.parallel import full_tensor, hold_gradients, is_sharded, spread_learner
from unmask.training.preference import PreferenceObjective
from unmask.training.speed import advise_on_memory, count_training_flops, estimate_bytes


class Trainer:
    """Everything that changes while training, and nothing that is written to disk by itself.

    What a step computes is a function of the tensors, `progress` and the recipe: all noise, times
    and rows are drawn from (seed, step, row), so there is no generator to save.
    """

    def __init__(self, job: TrainingJob):
        self.job, recipe = job, job.recipe
        self.net: Transformer = job.model.net
        dropout = recipe.network.dropout
        self.compiled = prepare_blocks(self.net, recipe.machine, job.world.device, dropout)
        if isinstance(job.objective, AnchoredObjective | PreferenceObjective):
            prepare_blocks(job.objective.start, recipe.machine, job.world.device)
        learner = Learner(self.net, job.objective, job.dtype)
        self.learner: nn.Module = spread_learner(learner, job.world, recipe.machine.parallel)
        self.optimiser = Optimiser(self.net.named_parameters(), recipe.optimiser)
        self.average = None
        if recipe.optimiser.ema is not None:
            self.average = Average(self.net.named_parameters(), recipe.optimiser.ema)
        self.guard = Guard(recipe.guards, job.world.device, recipe.optimiser.clip)
        self.rows = recipe.rows
        self.orders = {
            name: RowOrder(part.num_rows, self.rows[name], recipe.seed)
            for name, part in job.examples.parts.items()
        }
        self.lengths = [recipe.row_length(name) for name in self.rows]
        self.progress = Progress(total=recipe.steps)
        self.norm = torch.zeros((), device=job.world.device)
        # Sums over the steps since the last record, by source: share times loss, and share.
        self._losses = torch.zeros(2, len(self.rows), device=job.world.device)
        self._counted = torch.zeros((), dtype=torch.long, device=job.world.device)
        self._step = torch.zeros((), dtype=torch.long, device=job.world.device)
        alone = job.world.device.type == "cuda" and not job.world.joined
        self.graphs = None
        if alone and self.optimiser.asks_device and self._wants_graphs():
            self.graphs = StepGraphs(job.world.device, self._learn)

    def _wants_graphs(self) -> bool:
        """Whether steps are replayed: those of small networks, where there is memory for it."""
        if self.job.recipe.machine.graphs != "auto":
            return self.job.recipe.machine.graphs == "on"
        job, context = self.job, self.job.recipe.input_length
        flops = count_training_flops(self.net.config, context) * job.micro * context
        if flops > MOST_FLOPS:
            return False
        # What is recorded keeps its memory; other shapes have their activations beside it.
        short = job.dtype == torch.bfloat16
        needed = estimate_bytes(self.net.config, job.recipe, job.micro, short)
        room = free_bytes(job.world.device)
        return room is None or sum(needed.values()) + needed["activations"] <= room

    @property
    def done(self) -> bool:
        return self.progress.total is not None and self.progress.step >= self.progress.total

    def take_step(self) -> None:
        """Learn from the next batch; nothing waits for the device."""
        progress, recipe, world = self.progress, self.job.recipe, self.job.world
        parts = self.feed(progress.step)
        lengths = [part.inputs.batch.tokens.shape[1] for part in parts]
        rare = any(
            length < self.lengths[part.source] or part.inputs.sees is not None
            for part, length in zip(parts, lengths, strict=True)
        )
        with nullcontext() if self.graphs is None else self.graphs.in_stream():
            self.optimiser.set_rate(rate_at(progress.step, progress.total, recipe.schedule))
            self._step.fill_(progress.step)
            if recipe.network.dropout:
                # What is dropped is a function of the seed and the step, as all noise is.
                torch.manual_seed(derive_seed(recipe.seed, "dropout", progress.step, world.rank))
            try:
                if self.graphs is None or rare or not self._can_replay(parts):
                    self._learn(parts, rare)
                else:
                    self.graphs.run(parts)
            except torch.OutOfMemoryError:
                advice = advise_on_memory(recipe, self.job.micro, recipe.batch.rows // world.size)
                raise UserError(
                    f"{world.device} ran out of memory with {self.job.micro} rows of "
                    f"{max(lengths)} tokens at once: {advice}."
                ) from None
        drawn = dict(zip((part.source for part in parts), lengths, strict=True))
        tokens = sum(rows * drawn.get(i, 0) for i, rows in enumerate(self.rows.values()))
        self.progress = replace(progress, step=progress.step + 1, tokens=progress.tokens + tokens)

    def _can_replay(self, parts: list[StepPart]) -> bool:
        # What is attached to sites must fire in every step, and a replay calls nobody.
        return not self.net.taps.attached and can_replay_step(parts)

    def _learn(self, parts: Sequence[StepPart], rare: bool = False) -> None:
        """One step on the device. Rare shapes are not compiled: that would take longer."""
        world, step_losses = self.job.world, torch.zeros_like(self._losses)
        with run_plainly(self.compiled and rare):
            for i, part in enumerate(parts):
                with hold_gradients(self.learner, hold=i + 1 < len(parts)):
                    loss = part.share * self.learner(part.inputs.to(world.device))
                    # Gradients are averaged over the processes, losses are shares of a sum.
                    (loss * world.size).backward()
                step_losses[0, part.source] += loss.detach()
                step_losses[1, part.source] += part.share
        self.norm.copy_(self.optimiser.measure())
        bad = self.guard.judge(self.norm, self._step)
        self.optimiser.step(self.norm, bad)
        if self.average is not None:
            self.average.update(bad)
        self._losses += torch.where(bad, 0.0, step_losses)
        self._counted += ~bad

    def settle(self) -> None:
        """Let what others ask of the device come after the steps; call it before reading."""
        if self.graphs is not None:
            self.graphs.settle()

    def feed(self, step: int) -> list[StepPart]:
        """This process's inputs of a step, in micro-batches, each with its share of the loss."""
        drawn = [self._draw(name, step) for name in self.rows]
        if not any(map(self._can_learn, drawn)):
            raise UserError(
                f"the rows of step {step} have nothing to learn: every position is prompt or "
                "filling; give rows with a response, or set objective.response_only=false."
            )
        total, parts = sum(map(self.job.objective.count, drawn)), list[StepPart]()
        for source, whole in enumerate(drawn):
            if self._can_learn(whole):
                before = sum(len(each.tokens) for each in drawn[:source])
                parts += self._split(whole, step, source, before, total)
        return parts

    def _draw(self, name: str, step: int) -> Batch:
        """A step's rows of one source, cut where the recipe says so."""
        recipe = self.job.recipe
        whole = self.job.examples.parts[name].take(self.orders[name].rows_at(step))
        length = RowStreams.make(derive_seed(recipe.seed, "length", step), 1)
        return draw_length(whole, recipe.objective.short, length, min_length(whole, recipe))

    def _split(
        self, whole: Batch, step: int, source: int, before: int, total: float
    ) -> Iterator[StepPart]:
        """This process's micro-batches of a source's rows, noised; `before` are a step's rows of
        other sources, `total` the terms of its whole loss."""
        recipe, world = self.job.recipe, self.job.world
        planned = self.progress.total
        objective = self.job.objective.at(step / planned if planned else 0.0)
        seed, rows, spread = recipe.seed, len(whole.tokens), recipe.objective.antithetic
        sees = open_attention(step, whole.tokens.shape[1], recipe)
        own = rows // world.size
        micro = min(self.job.micro, own)
        for first in range(world.rank * own, (world.rank + 1) * own, micro):
            part = whole.select(slice(first, first + micro))
            share = objective.count(part) / total
            if not self._can_learn(part):
                part, share = self._choose_stand_in(whole, micro), 0.0
            times = RowStreams.make(derive_seed(seed, "times", step), 1)
            # Antithetic times are spread evenly over the rows of each source.
            places = (first, rows) if spread else (before + first, recipe.batch.rows)
            t = draw_times(times, micro, spread, *places)
            numbers = range(before + first, before + first + micro)
            noise = RowStreams.make(derive_seed(seed, "noise", step), numbers)
            inputs = replace(objective.prepare(part, t, noise), sees=sees)
            inputs = pad_inputs(inputs) if world.device.type == "cuda" else inputs
            yield StepPart(inputs, share, source)

    def _can_learn(self, batch: Batch) -> bool:
        objective = self.job.objective
        return objective.count(batch) > 0 and bool(objective.find_learnable(batch).any())

    def _choose_stand_in(self, whole: Batch, micro: int) -> Batch:
        """What is run, at no share of the loss, in place of rows that have nothing to learn.

        Processes wait for each other in every pass, so that none may be left out.
        """
        rows = range(len(whole.tokens))
        row = next(row for row in rows if self._can_learn(whole.select([row])))
        return whole.select([row] * micro)

    def read_loss(self) -> float | None:
        """The mean loss since it was last read, as `read_losses` has it."""
        return self.read_losses()[0]

    def read_losses(self) -> tuple[float | None, dict[str, float]]:
        """The mean loss since it was last read, over all processes, and that of each source of a
        mixture; waits for the device.

        Skipped steps are left out; None where all were.
        """
        progress = self.snapshot()
        self._losses.zero_()
        self._counted.zero_()
        sums = zip(self.rows, progress.by_source, strict=True)
        sources = {name: loss / share for name, (loss, share) in sums if name and share}
        return progress.losses / progress.counted if progress.counted else None, sources

    def snapshot(self) -> Progress:
        """How far the run is, with the losses not read yet; waits for the device."""
        self.settle()
        sums = self.job.world.sum(self._losses)
        losses, by_source = float(sums[0].sum()), sums.T.tolist()
        counted = int(self._counted)
        return replace(self.progress, losses=losses, by_source=by_source, counted=counted)

    def restore(self, progress: Progress) -> None:
        """Resume from a snapshot, whose tensors have been loaded."""
        self.progress = progress
        # A sum over all processes: one of them takes it up.
        by_source = progress.by_source or [[progress.losses, float(progress.counted)]]
        self._losses.copy_(torch.tensor(by_source).T if self.job.world.leads else torch.zeros(()))
        self._counted.fill_(progress.counted)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next step depends on, by name; a tied head is the embedding."""
        tensors = {f"net.{name}": x.detach() for name, x in self.net.named_parameters()}
        tensors |= {f"optimiser.{name}": x for name, x in self.optimiser.tensors().items()}
        tensors |= {f"guard.{name}": x for name, x in self.guard.tensors().items()}
        if self.average is not None:
            tensors |= {f"average.{name}": x for name, x in self.average.tensors().items()}
        return tensors

    @contextmanager
    def show_model(self) -> Generator[Model]:
        """The model as it would be saved now, to evaluate and to sample from."""
        self.settle()
        averaged = nullcontext() if self.average is None else self.average.in_place()
        with averaged, run_plainly(self.compiled), torch.no_grad():
            sharded = any(is_sharded(weight) for weight in self.net.parameters())
            model = self.export().to(self.job.world.device) if sharded else self.net
            model.eval()
            try:
                yield replace(self.job.model, net=model)
            finally:
                self.net.train()

    def make_model(self) -> Model:
        """The model that training is for, on the CPU; averaged where the recipe says so."""
        with nullcontext() if self.average is None else self.average.in_place():
            return replace(self.job.model, net=self.export())

    def export(self) -> Transformer:
        """A plain network on the CPU with the weights as they are: whole, adapters merged."""
        self.settle()
        weights = {name: full_tensor(x) for name, x in self.net.state_dict().items()}
        weights = leave_learned_noise(weights)
        if self.job.recipe.start.lora_rank is not None:
            weights = merge_adapters(weights, self.job.recipe.start.lora_alpha)
        held = {name: weight.detach().to("cpu", copy=True) for name, weight in weights.items()}
        return fill_network(self.net.config, held).eval()
