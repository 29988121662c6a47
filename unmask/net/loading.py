"""Loading and saving models: tensor by tensor, everything checked."""

import sys
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from unmask.base.config import LARGEST, SettingsError, check_arguments
from unmask.base.devices import free_bytes, multiplies_bfloat16, resolve_device, resolve_dtype
from unmask.base.errors import UserError
from unmask.base.files import replace_folder, write_json
from unmask.data.tokenizer import Tokenizer
from unmask.net.config import NetConfig
from unmask.net.counts import count_weight_bytes, make_shapes
from unmask.net.dialects import DIALECTS, recognise
from unmask.net.dialects.dialect import (
    Dialect,
    Given,
    Source,
    TensorMap,
    find_token_ids,
    override,
    warn_of_mask,
    write_exactly,
)
from unmask.net.folding import fold_time, unfold_time
from unmask.net.hub import find_model
from unmask.net.model import Blueprint, Model
from unmask.net.placing import allocate, choose_places
from unmask.net.readings import split_reading
from unmask.net.sources import Checkpoint, open_checkpoint
from unmask.net.transformer import Transformer
from unmask.net.weights import SHARD_BYTES, write_weights

_BLOCK_BYTES = 8_000_000
_OWN_FILES = (
    "config.json",
    "lit_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_STORED = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@check_arguments()
def load(
    name: str | Path,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    tokenizer: str | Path | None = "auto",
    kind: str | None = None,
    mask: int | None = None,
    shift: bool | None = None,
    block: int | None = None,
    revision: str | None = None,
    beginning: str | None = None,
) -> Model:
    """The model of a name, ready to run; nothing that comes with a checkpoint is executed.

    A few tokens are run before it is returned, so that a damaged file is noticed here. How much
    memory it needs is logged.

    Args:
        name: A shipped or known name (`unmask models` lists them), a folder, a file or a hub id;
            NAME:causal and NAME:diffusion are its readings (`Model.reading`).
        device: "auto" (a GPU where there is one; layers that it has no room for go to other GPUs
            and to the processor), "cpu", "cuda", "cuda:1", "mps"; several, "cuda:0,cuda:1", share
            the layers.
        dtype: A dtype, "stored" for the file's own, or "auto": the file's own unless it is a
            short one that a CPU has no instructions for.
        tokenizer: A path, "auto" for the one in the model's folder (if any), or None.
        kind: What it was trained as ("masked", "causal", …), where its settings say something else,
            such as a diffusion model in the settings of the causal one that it came from.
        mask: Its mask id, where neither its settings nor its tokenizer say it.
        shift: Whether row i of a diffusion network predicts position i + 1, as Dream's does.
        block: Positions of a block, for block-causal attention that its settings do not mention; 0
            where every position sees every other.
        revision: A branch or commit of its repository on the hub.
        beginning: The token that stands before every text, such as "<s>", or "none" for nothing
            added at all, where what the tokenizer adds is not what the model learned from.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> model.kind, model.net.config.layers
    ('masked', 6)
    """
    location = find_model(str(name), revision=revision)
    given = Given(kind, mask, shift, block).complete(location.known)
    blueprint, dialect, checkpoint = _look_into(location.path, given)
    label = checkpoint.source.label
    if given.kind is None and not blueprint.paradigm.has_steps and not dialect.says_kind:
        warn_of_mask(checkpoint.source)
    stored = _find_stored(blueprint.config, dialect, checkpoint)
    maps = _find_tensors(stored, dialect, checkpoint)
    chosen_dtype = _choose_dtype(dtype, blueprint.config, checkpoint, maps, resolve_device(device))
    known = None
    if tokenizer is not None:
        elsewhere = location.find_tokenizer() if tokenizer == "auto" else Path(tokenizer)
        folder = elsewhere or checkpoint.folder
        known = read_tokenizer(folder, dialect, blueprint, tokenizer != "auto", beginning)
    net = make_shapes(stored)
    _check_shapes(net, maps, checkpoint)
    allocate(net, choose_places(label, net, device, chosen_dtype), chosen_dtype)
    _fill(net, maps, checkpoint, dialect.tied_head)
    if stored != blueprint.config:
        net = fold_time(net, 0.0)
    model = Model(split_reading(str(name))[0], net, blueprint, known)
    _try_out(model, label)
    return model if location.reading is None else model.reading(location.reading)


def inspect(
    name: str | Path,
    also_known: Iterable[str] = (),
    given: Given | None = None,
    revision: str | None = None,
) -> tuple[Blueprint, Dialect, Checkpoint]:
    """What a model on this machine is, from its settings and headers alone.

    `also_known` are further names to suggest where this one is not found.
    """
    location = find_model(str(name), fetch=False, also_known=also_known, revision=revision)
    blueprint, dialect, checkpoint = _look_into(
        location.path, (given or Given()).complete(location.known)
    )
    reading = location.reading
    return (blueprint.read_as(reading) if reading else blueprint), dialect, checkpoint


def inspect_tokenizer(name: str | Path) -> Tokenizer | None:
    """The tokenizer of a model on this machine, if it has one; its weights are not read."""
    location = find_model(str(name), fetch=False)
    blueprint, dialect, checkpoint = _look_into(location.path, Given().complete(location.known))
    folder = location.find_tokenizer(fetch=False) or checkpoint.folder
    return read_tokenizer(folder, dialect, blueprint)


def _look_into(path: Path, given: Given) -> tuple[Blueprint, Dialect, Checkpoint]:
    checkpoint = open_checkpoint(path, given.mask)
    if not checkpoint.weights.shapes:
        raise UserError(f"{path} holds no tensors: it is an empty checkpoint; fetch it again.")
    dialect = recognise(checkpoint.source)
    try:
        blueprint = dialect.read(checkpoint.source)
        _check_sizes(blueprint.config, checkpoint)
        blueprint = override(blueprint, checkpoint.source, given)
    except SettingsError as error:
        raise SettingsError(checkpoint.source.label, error.problems) from None
    return blueprint, dialect, checkpoint


def _check_sizes(config: NetConfig, checkpoint: Checkpoint) -> None:
    """Raise for sizes that no tensor has, so that nothing is made of them, be it a list of names.

    Settings of 10^9 layers would keep even a network without memory busy for hours.
    """
    shapes = checkpoint.weights.shapes
    largest = max((size for shape in shapes.values() for size in shape), default=0)
    sizes = {name: getattr(config, name) for name in ("vocab_size", "width", "mlp_width", "heads")}
    sizes |= {"head_width": config.head_dim, "latent_width": config.latent_width or 0}
    if config.positions == "learned":
        sizes["context"] = config.context
    problems = [
        f"{name!r} is {size}, but no dimension of a stored tensor exceeds {largest}"
        for name, size in sizes.items()
        if size > largest
    ]
    if config.layers > len(shapes):
        problems += [f"'layers' is {config.layers}, but only {len(shapes)} tensors are stored"]
    if problems:
        raise SettingsError(checkpoint.source.label, problems)


@check_arguments(shard_bytes=(1, LARGEST))
def save(
    model: Model, folder: str | Path, dialect: str = "unmask", shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a model as a folder of safetensors, settings and its tokenizer.

    Args:
        model: Of any kind.
        folder: Where to; a model that is already there is replaced atomically.
        dialect: Whose layout: "unmask", "llama", "gpt2", … A layout that cannot represent the model
            exactly raises.
        shard_bytes: The most bytes of a file of weights.

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> unmask.save(model, "copy")
    >>> unmask.load("copy", device="cpu").blueprint == model.blueprint
    True
    """
    spoken = DIALECTS.find(dialect)
    _check_replaceable(Path(folder))
    shapes = {name: tensor.to("meta") for name, tensor in model.net.state_dict().items()}
    known = dict(DIALECTS.load_each()).values()
    settings = write_exactly(spoken, model.blueprint, shapes, str(folder), known)
    settings |= find_token_ids(spoken, model.tokenizer)
    net = model.net
    if spoken.find_stored is not None:
        stored = spoken.find_stored(net.config, Source(str(folder), settings, {}))
        net = net if stored == net.config else unfold_time(net, stored)
    with replace_folder(folder) as draft:
        write_weights(collect_weights(net, spoken), draft, shard_bytes)
        write_json(draft / spoken.config_file, settings)
        if model.tokenizer is not None:
            model.tokenizer.save(draft)


def _check_replaceable(folder: Path) -> None:
    """Raise where saving would remove anything but a model that was saved before."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose a folder to save the model in.")
    strange = [
        path.name
        for path in (folder.iterdir() if folder.is_dir() else ())
        if not any(fnmatchcase(path.name, pattern) for pattern in _OWN_FILES)
    ]
    if strange:
        raise UserError(
            f"{folder} holds {_some(sorted(strange))}, which saving a model there would remove: "
            "choose another folder."
        )


def collect_weights(net: Transformer, dialect: Dialect) -> dict[str, Tensor]:
    """The network's tensors under the dialect's names, on the CPU."""
    own = net.state_dict()
    return {
        tensor_map.theirs: tensor_map.to_theirs(tensor_map.select(own)).contiguous().cpu()
        for tensor_map in dialect.map_tensors(net.config)
    }


def _check_shapes(net: Transformer, maps: dict[str, TensorMap], checkpoint: Checkpoint) -> None:
    """Raise unless every stored tensor has the shape that the network needs; takes no memory."""
    own = net.state_dict()
    for name, tensor_map in maps.items():
        stored = checkpoint.weights.shapes[name]
        wanted = tuple(tensor_map.to_theirs(tensor_map.select(own)).shape)
        if stored != wanted:
            raise UserError(
                f"{checkpoint.source.label}: {name} has shape {list(stored)}, expected "
                f"{list(wanted)} by its settings."
            )


@torch.no_grad()
def _fill(
    net: Transformer,
    maps: dict[str, TensorMap],
    checkpoint: Checkpoint,
    tied_head: str | None = None,
) -> None:
    """Copy every tensor of the checkpoint into the network, one at a time."""
    files, label = checkpoint.weights, checkpoint.source.label
    own = net.state_dict()
    for name, tensor_map in maps.items():
        target = tensor_map.select(own)
        # What is turned on the way must be whole; the rest goes in blocks, to need little memory.
        most = _BLOCK_BYTES if tensor_map.is_plain else sys.maxsize
        for rows, block in files.read_blocks(name, most):
            if not block.isfinite().all():
                raise UserError(f"{label}: {name} holds numbers that are not finite: damaged.")
            target[rows].copy_(tensor_map.to_ours(block))
    head = tied_head if net.config.tied and tied_head in files.shapes else None
    if head and not files.equals(head, own["embedding.weight"]):
        raise UserError(
            f"{label}: its settings say that the head is the embedding, but {head} holds "
            "another one: set 'tie_word_embeddings' to false in config.json to use it, or remove "
            "the tensor."
        )


def _find_stored(config: NetConfig, dialect: Dialect, checkpoint: Checkpoint) -> NetConfig:
    """The network as its file has it, of which loading makes that of `config`."""
    return dialect.find_stored(config, checkpoint.source) if dialect.find_stored else config


def _find_tensors(
    config: NetConfig, dialect: Dialect, checkpoint: Checkpoint
) -> dict[str, TensorMap]:
    """The maps by the names of their tensors in this checkpoint; none missing, none left over."""
    shapes, prefix = checkpoint.weights.shapes, dialect.optional_prefix
    cut = prefix and not any(name.startswith(prefix) for name in shapes)
    maps = {
        tensor_map.theirs.removeprefix(prefix) if cut and prefix else tensor_map.theirs: tensor_map
        for tensor_map in dialect.map_tensors(config)
    }
    for ending, old in dialect.old_endings.items():
        if not any(name.endswith(ending) for name in shapes):
            maps = {
                name.removesuffix(ending) + old if name.endswith(ending) else name: tensor_map
                for name, tensor_map in maps.items()
            }
    missing = [name for name in maps if name not in shapes]
    left_over = [
        name
        for name in shapes
        if name not in maps
        and not name.endswith(dialect.ignored)
        and not (config.tied and name == dialect.tied_head)
    ]
    if missing or left_over:
        problems = [f"{len(missing)} missing ({_some(missing)})"] if missing else []
        problems += [f"{len(left_over)} too many ({_some(left_over)})"] if left_over else []
        raise UserError(
            f"{checkpoint.source.label} does not hold the tensors of a {dialect.name} checkpoint: "
            f"{' and '.join(problems)}. Fetch it again, or check its settings."
        )
    return maps


def find_dtype(
    name: str | Path, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto"
) -> torch.dtype:
    """The dtype that `load` gives a model on this machine, from its settings and headers alone."""
    blueprint, dialect, checkpoint = inspect(name)
    stored = _find_stored(blueprint.config, dialect, checkpoint)
    maps = _find_tensors(stored, dialect, checkpoint)
    return _choose_dtype(dtype, blueprint.config, checkpoint, maps, resolve_device(device))


def _choose_dtype(
    dtype: str | torch.dtype,
    config: NetConfig,
    checkpoint: Checkpoint,
    maps: Iterable[str],
    device: torch.device,
) -> torch.dtype:
    if dtype not in ("auto", "stored"):
        return resolve_dtype(dtype)
    stored = _stored_dtype(checkpoint, maps)
    return _suit_device(stored, config, device) if dtype == "auto" else stored


def _stored_dtype(checkpoint: Checkpoint, maps: Iterable[str]) -> torch.dtype:
    """The dtype of most of the stored weights."""
    files = checkpoint.weights
    sizes: Counter[str] = Counter()
    for name in maps:
        sizes[files.dtypes[name]] += torch.Size(files.shapes[name]).numel()
    most = sizes.most_common(1)[0][0]
    if most not in _STORED:
        raise UserError(
            f"{checkpoint.source.label} stores {most} numbers: give dtype, such as bfloat16."
        )
    return _STORED[most]


def _suit_device(stored: torch.dtype, config: NetConfig, device: torch.device) -> torch.dtype:
    """The stored format, or float32 where short formats would crawl and float32 fits."""
    if stored.itemsize > 2 or multiplies_bfloat16(device):
        return stored
    free, needed = free_bytes(device), count_weight_bytes(config, torch.float32.itemsize)
    return torch.float32 if free is None or needed < free else stored


def read_tokenizer(
    folder: Path,
    dialect: Dialect,
    blueprint: Blueprint,
    required: bool = False,
    beginning: str | None = None,
) -> Tokenizer | None:
    """A model's tokenizer, if its folder has one; another `beginning` than it says may be given."""
    known = None
    if required or (folder / "tokenizer.json").is_file():
        mask = "if any" if blueprint.mask_id is None else blueprint.mask_id
        known = Tokenizer.load(folder, mask=mask)
    elif dialect.read_tokenizer is not None:
        known = dialect.read_tokenizer(folder, blueprint.mask_id)
    if known is not None and known.vocab_size > blueprint.config.vocab_size:
        raise UserError(
            f"the tokenizer in {folder} has {known.vocab_size} tokens, but its "
            f"embedding has {blueprint.config.vocab_size} rows: they do not belong together; name "
            "another tokenizer, or None."
        )
    return known if known is None or beginning is None else known.change_beginning(beginning)


@torch.inference_mode()
def _try_out(model: Model, label: str) -> None:
    """Run a few tokens, the mask among them: sites must fire and logits be finite."""
    config = model.net.config
    tried = [0, config.vocab_size - 1] + ([] if model.mask_id is None else [model.mask_id])
    tokens = torch.tensor([tried[: config.context]])
    with model.net.capture("embed", f"layers.{config.layers - 1}.mlp_key", "logits"):
        logits = model.logits(tokens, t=torch.full((1,), 0.5) if config.time else None)
    if not logits.isfinite().all():
        raise UserError(f"{label} computes numbers that are not finite: use a wider dtype.")


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
