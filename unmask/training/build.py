"""From a recipe to everything that a run works with: examples, model, objective."""

from dataclasses import asdict, dataclass, replace

import torch

from unmask.base.config import build
from unmask.base.devices import free_bytes
from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.base.units import format_bytes
from unmask.data.tokenizer import Tokenizer
from unmask.net.config import NetConfig
from unmask.net.loading import load
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.training.adapt import adapt_model, add_mask, untie_head
from unmask.training.adapters import add_adapters
from unmask.training.anchored import AnchoredObjective
from unmask.training.changing import add_learned_noise
from unmask.training.examples import keep_beginnings
from unmask.training.joint import JointObjective
from unmask.training.learner import freeze_named, freeze_unreached
from unmask.training.losses import Objective, make_objective, make_registered
from unmask.training.mixture import Mixture, read_mixture
from unmask.training.objective_settings import PREFERENCE
from unmask.training.parallel import World
from unmask.training.preference import PreferenceObjective
from unmask.training.recipe import Recipe
from unmask.training.speed import estimate_bytes, suggest_micro
from unmask.training.tables import OBJECTIVES

LATENT_WIDTH = 32
"""The width of token vectors under gaussian noise, unless the recipe says otherwise."""
MOST_LAYERS = 10_000


@dataclass(frozen=True)
class TrainingJob:
    """What a run works with, on its device."""

    recipe: Recipe
    examples: Mixture
    model: Model
    objective: Objective
    world: World
    dtype: torch.dtype
    """The dtype of matrix products."""

    @property
    def micro(self) -> int:
        """Rows of one forward pass."""
        return self.recipe.batch.micro or self.recipe.batch.rows // self.world.size


def prepare_job(recipe: Recipe, world: World) -> TrainingJob:
    """Examples, model and objective of a recipe, checked against each other and the machine."""
    _check_rows(recipe, world)
    start = None
    if recipe.start.model is not None:
        start = load(recipe.start.model, device="cpu", dtype="float32")
    tokenizer = start.tokenizer if start is not None else None
    is_contaminated = recipe.objective.contaminated > 0
    examples = read_mixture(recipe.data, tokenizer, is_contaminated)
    for name, part in examples.parts.items():
        if part.num_rows < recipe.rows[name]:
            raise UserError(
                f"a batch of {recipe.rows[name]} rows was asked for, but {part.label} has only "
                f"{part.num_rows}: use a smaller batch.rows or more data."
            )
    dtype = choose_training_dtype(recipe, world.device)
    short = dtype == torch.bfloat16
    if start is None:
        tokenizer = fit_tokenizer(recipe, examples.tokenizer)
        blueprint = plan_model(recipe, tokenizer)
        check_room(blueprint.config, recipe, world, short)
        net = Transformer(blueprint.config, derive_seed(recipe.seed, "network"))
        rescale(net, recipe.network.scale)
        model = Model("trained", net, blueprint, tokenizer)
    else:
        model = adapt_model(start, recipe, examples.tokenizer)
        model = untie_head(model) if recipe.start.untie else model
        check_room(model.net.config, recipe, world, short)
    if recipe.start.lora_rank is not None:
        seed = derive_seed(recipe.seed, "adapters")
        add_adapters(model.net, recipe.start.lora_rank, recipe.start.lora_alpha, seed)
    else:
        model.net.requires_grad_(True)
    add_learned_noise(model.net, recipe.objective)
    freeze_unreached(model.net, recipe.paradigm)
    freeze_named(model.net, recipe.optimiser.frozen)
    model.net.to(world.device).train()
    model.net.tie_head()
    if recipe.objective_name != "next_token":
        examples = examples.change(lambda part: keep_beginnings(part, model))
    end_id = examples.tokenizer.end_id
    if recipe.objective_name == "joint":
        objective = JointObjective.make(recipe, model)
    elif recipe.objective_name == PREFERENCE:
        objective = PreferenceObjective.make(recipe, model)
    elif recipe.objective_name in OBJECTIVES.own:
        objective = make_objective(recipe, model.blueprint, end_id, model.tokenizer)
    else:
        objective = make_registered(recipe, model)
    if recipe.objective.anchored:
        objective = AnchoredObjective.wrap(objective, model.net)
    return TrainingJob(recipe, examples, model, objective, world, dtype)


def choose_training_dtype(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The dtype of matrix products."""
    if recipe.machine.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if recipe.machine.dtype == "bfloat16" else torch.float32


def fit_tokenizer(recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer that a fresh model gets: with a mask where its rows have some."""
    return add_mask(tokenizer) if recipe.needs_mask else tokenizer


def plan_model(recipe: Recipe, tokenizer: Tokenizer) -> Blueprint:
    """A fresh model that fits the tokenizer; where the mask stands last, the head leaves it out.

    The causal twin has the same shapes, and under its own objective never meets the mask.
    """
    rows, mask_id = tokenizer.vocab_size, tokenizer.mask_id
    causal = not recipe.paradigm.sees_later
    values = asdict(preset(recipe.network.preset, causal=causal))
    values |= {"vocab_size": rows, "num_logits": None, "context": recipe.input_length}
    if mask_id == rows - 1 and not recipe.network.changes.get("tied", values["tied"]):
        values["num_logits"] = rows - 1
    if recipe.paradigm.noises_vectors:
        values |= {"time": True, "latent_width": LATENT_WIDTH}
    wanted = recipe.network.changes.get("vocab_size", rows)
    if isinstance(wanted, int) and wanted < rows:
        raise UserError(
            f"the network's vocabulary has {wanted} rows, but the tokenizer has {rows} tokens: "
            "they do not belong together; leave network.changes.vocab_size out."
        )
    config = build(NetConfig, values | recipe.network.changes, "network.changes")
    if config.layers > MOST_LAYERS:
        raise UserError(
            f"network.changes: 'layers' is {config.layers}, expected at most {MOST_LAYERS:,}."
        )
    if config.context < recipe.input_length:
        raise UserError(
            f"rows of data.context={recipe.data.context} tokens do not fit the network's context "
            f"of {config.context}: lengthen network.changes.context."
        )
    own_mask = mask_id if recipe.needs_mask or not causal else None
    noise = recipe.noise
    if recipe.objective_name == "score_entropy" and not recipe.paradigm.fills_masks:
        noise = replace(noise, scores=True)
    return Blueprint(config, recipe.kind, own_mask, noise=noise)


@torch.no_grad()
def rescale(net: Transformer, scale: float) -> None:
    """Multiply the initial matrices, all but those of the time embedding."""
    for name, weight in net.named_parameters():
        if weight.ndim > 1 and not name.startswith("time.") and scale != 1:
            weight *= scale


def check_room(config: NetConfig, recipe: Recipe, world: World, short: bool) -> None:
    """Raise where the device has too little memory for the recipe."""
    if want := describe_want(config, recipe, world, short):
        raise UserError(want)


def describe_want(config: NetConfig, recipe: Recipe, world: World, short: bool) -> str:
    """What a device lacks for the recipe and what would fit, as a sentence; else an empty one."""
    room = free_bytes(world.device)
    if room is None:
        return ""
    rows = recipe.batch.micro or recipe.batch.rows // world.size
    needed = sum(estimate_bytes(config, recipe, rows, short).values())
    if world.joined and recipe.machine.parallel == "fsdp":
        return ""  # cut up over devices of which only one is seen here
    if needed <= room:
        return ""
    one = replace(recipe, batch=replace(recipe.batch, rows=recipe.batch.rows // world.size))
    micro = suggest_micro(config, one, short, room)
    advice = f"try batch.micro={micro}" if micro else "use a smaller network or a shorter context"
    if not recipe.machine.recompute:
        advice += ", or machine.recompute=true"
    return (
        f"training needs about {format_bytes(needed)} on {world.device}, {format_bytes(room)} are "
        f"free: {advice}."
    )


def _check_rows(recipe: Recipe, world: World) -> None:
    micro = recipe.batch.micro
    for name, rows in recipe.rows.items():
        where = f"the {rows} rows of {name}" if name else f"batch.rows={rows}"
        if rows % world.size:
            raise UserError(f"{where} cannot be shared by {world.size} processes: use a multiple.")
        own = rows // world.size
        if micro is not None and own % min(micro, own):
            raise UserError(
                f"batch.micro={micro} does not divide the {own} rows of a process"
                f"{f' that come from {name}' if name else ''}: use a divisor."
            )
