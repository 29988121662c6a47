"""Loading and saving models: shard by shard into place, and nothing believed unchecked."""

import sys
from pathlib import Path

import torch
from torch import Tensor

from unmask.base.devices import free_bytes, resolve_device, resolve_dtype
from unmask.base.errors import UserError
from unmask.base.files import replace_folder, write_json
from unmask.base.units import format_bytes
from unmask.data.tokenizer import Tokenizer
from unmask.net.counts import count_weight_bytes
from unmask.net.dialects import get_dialect, recognise
from unmask.net.dialects.dialect import Dialect, write_exactly
from unmask.net.hub import find_model
from unmask.net.model import Blueprint, Model
from unmask.net.sources import Checkpoint, open_checkpoint
from unmask.net.transformer import Transformer
from unmask.net.weights import SHARD_BYTES, WeightFiles, write_weights

_STORED = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def load(
    name: str | Path,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    tokenizer: str | Path | None = "auto",
    quiet: bool = False,
) -> Model:
    """The model of a name: a shipped or known one, a folder, a file, or a hub id.

    `dtype` "auto" keeps the number format of the file; `tokenizer` is a path, "auto" for the one
    that lies with the model (if any), or None. What is loaded is tried out before it is returned.
    """
    place = find_model(str(name))
    checkpoint = open_checkpoint(place.path)
    dialect = recognise(checkpoint.source)
    blueprint = dialect.read(checkpoint.source)
    label = checkpoint.source.label
    target = resolve_device(device)
    number_format = _stored_dtype(checkpoint) if dtype == "auto" else resolve_dtype(dtype)
    _check_room(label, blueprint, target, number_format, quiet)
    known = None
    if tokenizer is not None:
        folder = place.tokenizer or checkpoint.folder if tokenizer == "auto" else Path(tokenizer)
        known = _read_tokenizer(folder, dialect, blueprint, required=tokenizer != "auto")
    with torch.device("meta"):
        net = Transformer(blueprint.config, seed=None)
    net = net.to(number_format).to_empty(device=target).eval().requires_grad_(False)
    net.tie_head()
    _fill(net, dialect, checkpoint)
    model = Model(str(name), net, blueprint, known)
    _try_out(model, label)
    return model


def inspect(name: str | Path) -> tuple[Blueprint, Dialect, Checkpoint]:
    """What a model is, from its settings and headers alone."""
    checkpoint = open_checkpoint(find_model(str(name)).path)
    dialect = recognise(checkpoint.source)
    return dialect.read(checkpoint.source), dialect, checkpoint


def save(
    model: Model, folder: str | Path, dialect: str = "unmask", shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a model in a dialect; a folder that is already there is replaced at one stroke.

    A dialect that cannot say exactly what the model is refuses.
    """
    spoken = get_dialect(dialect)
    settings = write_exactly(spoken, model.blueprint, model.net.state_dict(), str(folder))
    with replace_folder(folder) as draft:
        write_weights(collect_weights(model.net, spoken), draft, shard_bytes)
        write_json(draft / spoken.config_file, settings)
        if model.tokenizer is not None:
            model.tokenizer.save(draft)


def collect_weights(net: Transformer, dialect: Dialect) -> dict[str, Tensor]:
    """The network's tensors under the dialect's names, on the CPU."""
    own = net.state_dict()
    return {
        wire.theirs: wire.to_theirs(wire.place(own)).contiguous().cpu()
        for wire in dialect.wire(net.config)
    }


@torch.no_grad()
def _fill(net: Transformer, dialect: Dialect, checkpoint: Checkpoint) -> None:
    """Copy every tensor of the checkpoint into its place, one at a time."""
    wires = list(dialect.wire(net.config))
    files, label = checkpoint.weights, checkpoint.source.label
    cut = _find_cut(dialect, files)
    theirs = {wire.theirs: _cut_name(wire.theirs, cut) for wire in wires}
    missing = [name for name in theirs.values() if name not in files]
    left_over = [
        name
        for name in files.shapes
        if name not in set(theirs.values())
        and not name.endswith(dialect.ignored)
        and not (net.config.tied and name == "lm_head.weight")
    ]
    if missing or left_over:
        told = [f"{len(missing)} missing ({_some(missing)})"] if missing else []
        told += [f"{len(left_over)} too many ({_some(left_over)})"] if left_over else []
        raise UserError(
            f"{label} does not hold the tensors of a {dialect.name} checkpoint: "
            f"{' and '.join(told)}. Fetch it again, or check its settings."
        )
    own = net.state_dict()
    for wire in wires:
        place = wire.place(own)
        tensor = wire.to_ours(files.read(theirs[wire.theirs]))
        if tensor.shape != place.shape:
            given = list(files.shapes[theirs[wire.theirs]])
            raise UserError(
                f"{label}: {theirs[wire.theirs]} has shape {given}, expected "
                f"{list(wire.to_theirs(place).shape)} by its settings."
            )
        place.copy_(tensor)


def _find_cut(dialect: Dialect, files: WeightFiles) -> str:
    """The prefix that this checkpoint leaves off its tensor names, if any."""
    full, *shorter = dialect.prefixes
    return "" if not shorter or any(name.startswith(full) for name in files.shapes) else full


def _cut_name(name: str, cut: str) -> str:
    return name.removeprefix(cut)


def _stored_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """The number format of most of the stored numbers."""
    sizes: dict[str, int] = {}
    for name, shape in checkpoint.weights.shapes.items():
        kind = checkpoint.weights.dtypes[name]
        sizes[kind] = sizes.get(kind, 0) + torch.Size(shape).numel()
    most = max(sizes, key=lambda kind: sizes[kind])
    if most not in _STORED:
        raise UserError(
            f"{checkpoint.source.label} stores {most} numbers: give dtype, such as bfloat16."
        )
    return _STORED[most]


def _check_room(
    label: str, blueprint: Blueprint, device: torch.device, dtype: torch.dtype, quiet: bool
) -> None:
    """Say how much memory the weights need, and refuse where they cannot fit."""
    needed, free = count_weight_bytes(blueprint.config, dtype.itemsize), free_bytes(device)
    told = f"{format_bytes(needed)} in {str(dtype).removeprefix('torch.')} on {device}"
    if free is not None:
        told += f", {format_bytes(free)} are free"
    if not quiet:
        print(f"loading {label}: {told}", file=sys.stderr)
    if free is not None and needed > free:
        raise UserError(
            f"{label} does not fit: it needs {told}; choose a smaller number format (dtype) or "
            "another device."
        )


def _read_tokenizer(
    folder: Path, dialect: Dialect, blueprint: Blueprint, required: bool
) -> Tokenizer | None:
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
    return known


@torch.inference_mode()
def _try_out(model: Model, label: str) -> None:
    """Run a few tokens: logits must be finite, sites must fire, the mask must have a row."""
    config = model.net.config
    if model.mask_id is not None and not 0 <= model.mask_id < config.vocab_size:
        raise UserError(
            f"{label}: its mask id {model.mask_id} is not in 0..{config.vocab_size - 1}, the rows "
            "of its embedding: correct the settings."
        )
    # Two tokens, first and last row: enough to touch every weight, quick on any processor.
    tokens = torch.tensor([[0, config.vocab_size - 1][: config.context]], device=model.device)
    with model.net.capture("embed", f"layers.{config.layers - 1}.mlp_key", "logits"):
        logits = model.logits(tokens)
    if not logits.isfinite().all():
        raise UserError(f"{label} computes numbers that are not finite: its weights are damaged.")


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
