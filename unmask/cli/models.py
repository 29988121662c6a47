"""`unmask models`, `info` and `convert`: which models there are, what one is, other formats."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unmask.cli.options import list_models

if TYPE_CHECKING:
    from unmask.net.dialects.dialect import Dialect
    from unmask.net.model import Blueprint
    from unmask.net.sources import Checkpoint

WIDE = 120
"""Columns of a terminal that shows all of the list of models."""
FEW = 12
"""Models that are listed unless all are asked for."""


def models(
    fetch: str | None = typer.Option(
        None,
        metavar="NAME",
        help="Fetch this model and its tokenizer, and say where they are; list nothing.",
        autocompletion=list_models,
    ),
    show_all: bool = typer.Option(False, "--all", help="List all that are known by name."),
) -> None:
    """List the models that are shipped, cached on this machine, and known by name; or fetch one."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from unmask.base.units import format_bytes
    from unmask.net.hub import cached_models, find_model, shipped_models
    from unmask.net.known import KNOWN, group_unconfirmed

    if fetch is not None:
        location = find_model(fetch)
        print(f"{fetch}: {location.path}")
        if (tokenizer := location.find_tokenizer()) is not None:
            print(f"its tokenizer: {tokenizer}")
        return
    console, cached = Console(), cached_models()
    # A name that is cut off is of no use: where there is little room, columns go.
    is_wide = console.width >= WIDE
    table = Table(box=SIMPLE_HEAD)
    for title in ("name", "kind", "size", "memory", "where"):
        table.add_column(title, no_wrap=True)
    for title in ("works", "licence", "from") if is_wide else ("works",):
        table.add_column(title, overflow="fold")

    rows = list[tuple[str, ...]]()

    def add(name: str, described: tuple[str, ...], where: str, *more: str) -> None:
        *columns, uses = described
        rows.append((name, *columns, where, uses, *(more if is_wide else ())))

    for name in shipped_models():
        add(name, _describe(name), "shipped", "Apache-2.0", "this package")
    for name, known in KNOWN.items():
        origin = known.repo + (f" ({known.file})" if known.file else "")
        files = cached.get(known.repo, {})
        here = Path(known.file).name in files if known.file else bool(files)
        stated = (known.kind, *_show_size(known.size and 1e9 * known.size), known.uses)
        where = "cached" if here else "hub"
        add(name, _describe(name, stated) if here else stated, where, known.licence, origin)
    for repo, files in cached.items():
        if repo not in {known.repo for known in KNOWN.values()}:
            add(repo, _describe(repo), "cached", "", format_bytes(sum(files.values())))
    rows.sort(key=lambda row: row[4] == "hub")  # those that are here stand first
    for row in rows if show_all else rows[:FEW]:
        table.add_row(*row)
    console.print(table)
    if len(rows) > FEW and not show_all:
        console.print(f"and {len(rows) - FEW} more that are known by name: --all")
    console.print(
        "Size is in parameters, counted once a model is on this machine, where unmask info shows "
        "its shapes; memory is that of its weights in bfloat16. What works: all is sample, score, "
        "trace and edit. Any folder, .safetensors file or hub id (owner/name) of a known dialect "
        "works too, and so does one file of a repository (hub:owner/name/path)."
    )
    if not is_wide:
        console.print(f"In {WIDE} columns there are licences, and where each comes from.")
    if not show_all:
        return
    doubts = (f"{', '.join(names)} ({what})" for what, names in group_unconfirmed().items())
    console.print(f"Not confirmed from released files, papers or code: {'; '.join(doubts)}.")


def _show_size(parameters: float | None) -> tuple[str, str]:
    """Parameters, and the memory that they take."""
    from unmask.base.units import format_bytes, format_number

    if not parameters:
        return "", ""
    return format_number(parameters), format_bytes(int(2 * parameters))


def _describe(name: str, otherwise: tuple[str, ...] = ("",) * 4) -> tuple[str, ...]:
    """Kind, size and uses of a model on this machine; `otherwise` for one in an unknown format."""
    from unmask.base.errors import UserError
    from unmask.net.counts import count_parameters
    from unmask.net.known import list_uses
    from unmask.net.loading import inspect

    try:
        blueprint, _, _ = inspect(name)
    except UserError:
        return otherwise
    config = blueprint.config
    size = _show_size(count_parameters(config).total)
    dense = config.experts is None or config.dense_layers > 0
    return blueprint.kind, *size, list_uses(blueprint.kind, dense)


KIND = typer.Option(None, help="What it is: masked, causal, …; where its settings do not say.")
MASK = typer.Option(None, help="Its mask id, where neither settings nor tokenizer say it.")
SHIFT = typer.Option(None, "--shift/--no-shift", help="Whether row i predicts position i + 1.")
BLOCK = typer.Option(None, help="Positions of a block, for block-causal attention; 0: none.")
BEGINNING = typer.Option(
    None, help="A token that stands before every text, or none, instead of what its tokenizer adds."
)
REVISION = typer.Option(None, help="A branch or commit of its repository on the hub.")


def info(
    name: str = typer.Argument(
        ...,
        metavar="MODEL",
        help="A preset such as 1028M, or a model's name, folder or file.",
        autocompletion=list_models,
    ),
    causal: bool = typer.Option(False, help="Of a preset, the autoregressive twin."),
    kind: str | None = KIND,
    mask: int | None = MASK,
    shift: bool | None = SHIFT,
    block: int | None = BLOCK,
    revision: str | None = REVISION,
    beginning: str | None = BEGINNING,
) -> None:
    """Show shapes, parameters, operations, memory and sites; nothing is loaded or fetched."""
    from rich.console import Console

    from unmask.base.units import format_bytes
    from unmask.net.dialects.dialect import Given
    from unmask.net.loading import inspect
    from unmask.net.presets import preset, preset_names
    from unmask.report.terminal import show_network

    if name in preset_names():
        show_network(Console(), name, preset(name, causal=causal))
        return
    given = Given(kind, mask, shift, block)
    blueprint, dialect, checkpoint = inspect(name, preset_names(), given, revision)
    stored = "/".join(sorted(set(checkpoint.weights.dtypes.values())))
    size = sum(path.stat().st_size for path in checkpoint.weights.files)
    reads = "position i + 1" if blueprint.paradigm.predicts_next else "position i"
    more = {
        "kind": blueprint.kind + (", shifted as Dream's" if blueprint.shift else ""),
        "logits row i predicts": reads,
        "mask id": "none" if blueprint.mask_id is None else f"{blueprint.mask_id:,}",
        "texts stand": _describe_added(name, revision, beginning, blueprint, dialect, checkpoint),
        "dialect": dialect.name,
        "stored": f"{stored}, {format_bytes(size)} in {len(checkpoint.weights.files)} file(s)",
    }
    show_network(Console(), name, blueprint.config, more)


def _describe_added(
    name: str,
    revision: str | None,
    beginning: str | None,
    blueprint: "Blueprint",
    dialect: "Dialect",
    checkpoint: "Checkpoint",
) -> str:
    """What its tokenizer puts around a text, and what becomes of the beginning."""
    from contextlib import suppress

    from unmask.base.errors import UserError
    from unmask.net.hub import find_model
    from unmask.net.loading import read_tokenizer

    folder: Path | None = None
    with suppress(UserError):  # of another repository, which may not be here
        location = find_model(name, fetch=False, revision=revision)
        folder = location.find_tokenizer(fetch=False) or checkpoint.folder
    named = (dialect, blueprint, False, beginning)
    known = None if folder is None else read_tokenizer(folder, *named)
    if known is None:
        return "unknown, its tokenizer is not here"
    if not (known.beginning or known.ending):
        return "alone, nothing is added"
    after, before = (
        " ".join(f"{known.backend.id_to_token(i)} ({i:,})" for i in ids)
        for ids in (known.ending, known.beginning)
    )
    fate = "is noised and hidden by guidance" if blueprint.noises_beginning else "always stands"
    parts = [f"after {before}, which {fate}"] if before else []
    return "; ".join(parts + ([f"whole ones before {after}"] if after else []))


def convert(
    given: str = typer.Argument(
        ...,
        metavar="IN",
        help="A model's name, folder or file, or a checkpoint of a training run.",
        autocompletion=list_models,
    ),
    out: Path = typer.Argument(..., metavar="OUT", help="The folder to write."),
    to: str = typer.Option("unmask", help="The dialect to write."),
    dtype: str = typer.Option("stored", help="Number format; stored keeps the given one."),
    tokenizer: Path | None = typer.Option(
        None, help="A tokenizer.json or its folder; by default what the model comes with."
    ),
    kind: str | None = KIND,
    mask: int | None = MASK,
    shift: bool | None = SHIFT,
    block: int | None = BLOCK,
    revision: str | None = REVISION,
    beginning: str | None = BEGINNING,
) -> None:
    """Write a model anew in this project's format, or in another dialect."""
    from unmask.base.errors import UserError
    from unmask.net.dialects import DIALECTS
    from unmask.net.hub import CHECKPOINT
    from unmask.net.loading import load, save
    from unmask.training.run import read_checkpoint

    DIALECTS.find(to)
    if out.exists():
        raise UserError(f"{out} already exists: choose another folder or remove it.")
    named: dict[str, Any] = {"kind": kind, "mask": mask, "shift": shift, "block": block}
    named |= {"revision": revision, "beginning": beginning, "tokenizer": tokenizer, "dtype": dtype}
    if not (Path(given) / CHECKPOINT).is_file():
        named["tokenizer"] = tokenizer or "auto"
        model = load(given, device="cpu", **named)
    elif any(value not in (None, "stored") for value in named.values()):
        raise UserError(
            f"{given} is a checkpoint of a training run, and its recipe says what it is: leave out "
            f"{', '.join(f'--{name}' for name in named)}."
        )
    else:
        model = read_checkpoint(given)
    save(model, out, to)
    print(f"wrote {out} in the dialect {to}")
