"""`unmask represent`: keys and values of facts, forwards and backwards."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from unmask.net.model import Model
    from unmask.representation.extraction import Asked

_USUAL_GROUPS = "p2d,d2p"
_WAYS = {"both": ("p2d", "d2p"), "p2d": ("p2d",), "d2p": ("d2p",)}


def represent(
    name: str = typer.Argument(..., metavar="MODEL", help="A model's name, folder or file."),
    data: Path = typer.Option(..., help="A corpus, or a file of one's own facts."),
    layer: str = typer.Option("auto", help="auto, all, a layer, or several: 0,1,2."),
    trace: Path | None = typer.Option(None, help="A run of `unmask trace` that chooses the layer."),
    directions: str = typer.Option("both", help="both, p2d (name given) or d2p."),
    groups: str = typer.Option(
        _USUAL_GROUPS, help="Facts by how they were trained: p2d, d2p, both."
    ),
    facts: int = typer.Option(30, help="Facts of each group."),
    phrasing: int = typer.Option(0, help="Which phrasing of each fact is asked."),
    prefixes: int = typer.Option(4, help="Texts put before a prompt, the empty one among them."),
    prefix_text: Path | None = typer.Option(None, help="A text file to cut prefixes from."),
    objective: str = typer.Option("seed", help="seed (the study's) or rome (the reference's)."),
    kl: float | None = typer.Option(None, help="Weight of the KL term; the objective's own."),
    norm: float | None = typer.Option(None, help="Weight of the norm term; the objective's own."),
    steps: int = typer.Option(20, help="Evaluations of the loss; one update less."),
    lr: float = typer.Option(0.5, help="Adam's learning rate."),
    clamp: float = typer.Option(4.0, help="The longest delta, in lengths of v0; 0: no limit."),
    stop: str = typer.Option("steps", help="steps, p=0.9 (any probability), or rome."),
    revealed: str = typer.Option("0", help="Shares of the object shown, one a mask pattern."),
    guidance: float = typer.Option(0.0, help="Guidance of a masked model; 0 is off."),
    length: int | None = typer.Option(None, help="Canvas in tokens; 52 by default."),
    key_text: str = typer.Option("prompt", help="Where keys are read: prompt, or subject alone."),
    lens: bool = typer.Option(True, help="Also the logit lens on the object's places."),
    probes: bool = typer.Option(True, help="Also linear probes over phrasings."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    dtype: str = typer.Option("float32", help="Number format of the network."),
    seed: int = typer.Option(0, help="Seed of prefixes, mask patterns and intervals."),
    out: Path = typer.Option(Path("runs/represent"), help="Folder of the run; resumes."),
) -> None:
    """Extract k* and v* into represent.parquet and vectors.safetensors, resumable fact by fact."""
    from dataclasses import asdict

    from rich.console import Console

    from unmask.base.runs import open_run
    from unmask.cli.lists import parse_names
    from unmask.evaluation.families import digest_weights
    from unmask.net.loading import load
    from unmask.report.symmetry_table import show_extraction
    from unmask.representation.extraction import (
        TABLE,
        choose_facts,
        digest_facts,
        extract,
        gather_phrasings,
    )
    from unmask.representation.layers import choose_layers
    from unmask.representation.probes import check_probes
    from unmask.representation.settings import choose_extraction

    source = _read_facts(data)
    _check_choice(source, data, directions, groups)
    asked = choose_facts(source, parse_names(groups), _WAYS[directions], facts, phrasing)
    if probes:
        check_probes(gather_phrasings(source, asked))
    weights = {"kl": kl, "norm": norm}
    settings = choose_extraction(
        objective,
        **{name: value for name, value in weights.items() if value is not None},
        steps=steps,
        lr=lr,
        clamp=clamp or None,
        stop=stop,
        revealed=_parse_shares(revealed),
        guidance=guidance,
        length=length,
        key_text=key_text,
        seed=seed,
    )
    model = load(name, device=device, dtype=dtype)
    layers, why = choose_layers(model, layer, trace)
    told = asdict(settings) | {
        "model": name,
        "kind": model.kind,
        "weights": digest_weights(name),
        "data": str(data),
        "prompts": digest_facts(asked),
        "layers": list(layers),
        "prefixes": prefixes,
        "prefix_text": None if prefix_text is None else str(prefix_text),
        "objective": objective,
        "dtype": dtype,
    }
    told["revealed"] = list(settings.revealed)
    console = Console()
    console.print(f"{why}; {len(asked)} prompts", highlight=False)
    folder = open_run(out, "represent", told)
    texts = _settle_prefixes(model, folder, prefixes, prefix_text, seed)
    table = extract(model, asked, layers, texts, settings, folder)
    if lens:
        _look(model, asked, length, seed, folder)
    if probes:
        _probe(model, source, asked, length, seed, folder)
    show_extraction(console, table.to_pylist())
    console.print(
        f"every fact: {folder / TABLE}; next: unmask symmetry {folder}",
        markup=False,
        highlight=False,
    )


def _read_facts(data: Path) -> Any:
    from unmask.base.errors import UserError
    from unmask.data.shards import Shards
    from unmask.data.sources import read_source

    source = read_source(data)
    if isinstance(source, Shards):
        raise UserError(f"{data} holds token shards, expected facts: give a corpus or a file.")
    return source


def _check_choice(source: Any, data: Path, directions: str, groups: str) -> None:
    from unmask.base.errors import UserError

    if directions not in _WAYS:
        raise UserError(f"--directions is {directions!r}: expected {', '.join(_WAYS)}.")
    if isinstance(source, list) and groups != _USUAL_GROUPS:
        raise UserError(
            f"--groups is {groups!r}, but {data} holds one's own facts, which are one group: leave "
            "it out."
        )


def _parse_shares(text: str) -> tuple[float, ...]:
    from unmask.base.errors import UserError
    from unmask.cli.lists import parse_names

    try:
        return tuple(float(word) for word in parse_names(text))
    except ValueError:
        raise UserError(
            f"--revealed is {text!r}: expected shares from 0 to below 1, separated by commas."
        ) from None


def _settle_prefixes(
    model: "Model", folder: Path, count: int, text: Path | None, seed: int
) -> tuple[str, ...]:
    """The run's prefixes, made once and kept with it."""
    from unmask.base.files import read_json, write_json
    from unmask.data.lines import read_text
    from unmask.representation.prefixes import make_prefixes

    path = folder / "prefixes.json"
    if not path.is_file():
        lines = None if text is None else [ln for ln in read_text(text).splitlines() if ln.strip()]
        write_json(path, list(make_prefixes(model, count, seed, lines)))
    return tuple(read_json(path))


def _look(
    model: "Model", asked: "list[Asked]", length: int | None, seed: int, folder: Path
) -> None:
    from unmask.base.tables import write_table
    from unmask.representation.lens import SCHEMA, look_through

    if (folder / "lens.parquet").is_file():
        return
    rows = look_through(model, [each.fact for each in asked], length=length, seed=seed)
    write_table(folder / "lens.parquet", list(rows), SCHEMA)


def _probe(
    model: "Model", source: Any, asked: "list[Asked]", length: int | None, seed: int, folder: Path
) -> None:
    """Probes over every phrasing that the groups' splits have of the facts asked."""
    from unmask.base.tables import write_table
    from unmask.representation.extraction import gather_phrasings
    from unmask.representation.probes import SCHEMA, probe

    if (folder / "probes.parquet").is_file():
        return
    groups = gather_phrasings(source, asked)
    rows = [
        row for group, facts in groups.items() for row in probe(model, group, facts, length, seed)
    ]
    write_table(folder / "probes.parquet", rows, SCHEMA)
