"""`unmask trace`: where a state must be restored for a fact to be recalled again."""

import os
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from unmask.data.facts import Fact
    from unmask.net.model import Model
    from unmask.tracing.survey import Survey


def trace(
    name: str | None = typer.Argument(
        None,
        metavar="MODEL",
        help="A model's name, folder or file; by default a shipped one.",
    ),
    data: Path | None = typer.Option(None, help="A corpus, or a file of one's own facts."),
    split: str = typer.Option("d2p_same", help="Splits of the corpus, separated by commas."),
    facts: int = typer.Option(30, help="Facts of each split."),
    phrasings: int = typer.Option(1, help="Phrasings of each fact."),
    prompt: str | None = typer.Option(None, help="One prompt instead of a corpus."),
    subject: str | None = typer.Option(None, help="Its subject, as it stands in the prompt."),
    answer: str | None = typer.Option(None, help="Its answer."),
    foil: str | None = typer.Option(None, help="A wrong answer, for logit_difference."),
    steps: int = typer.Option(16, help="Denoising steps of the clean generation."),
    at: str = typer.Option("first,last", help="Steps to trace: first, t1, last, all, or numbers."),
    corruption: str = typer.Option(
        "gaussian", help="gaussian, uniform, rome, mask, mean, or replace (another's subject)."
    ),
    samples: int = typer.Option(10, help="Noise samples; masks and means need one."),
    parts: str = typer.Option("resid,mlp,attn", help="Also attn_z (head by head) and embed."),
    window: int = typer.Option(10, help="Layers of mlp and attn that are restored together."),
    metric: str = typer.Option("p", help="p, logp, logit_difference or normalised."),
    guidance: float = typer.Option(0.0, help="Guidance of the diffusion model; 0 is off."),
    length: int | None = typer.Option(None, help="Tokens of the canvas; 52 by default."),
    joint: str = typer.Option("mean_field", help="Or chain_rule, token by token."),
    mode: str = typer.Option("restore", help="Or ablate: corrupted states into the clean run."),
    source: str = typer.Option("subject", help="What is corrupted: subject, committed or both."),
    severed: str | None = typer.Option(None, help="With resid alone: keep later mlp or attn."),
    free: bool = typer.Option(False, help="Let the corrupted prompt run its own course."),
    any_answer: bool = typer.Option(False, "--any", help="Trace what is not recalled, too."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:N or mps."),
    dtype: str = typer.Option("float32", help="Or bfloat16."),
    memory: float | None = typer.Option(None, help="Gigabytes a trace may use beside the weights."),
    seed: int = typer.Option(0, help="Seed of the noise, the placebos and the intervals."),
    out: Path = typer.Option(Path("runs/trace"), help="Folder for tables and figures."),
) -> None:
    """Trace facts into a table, resumable, or one prompt with a heatmap in the terminal.

    Under torchrun every process takes its share of the facts; the folder must be shared.
    """
    from rich.console import Console

    from unmask.base.config import build
    from unmask.base.errors import UserError
    from unmask.net.loading import load
    from unmask.tracing.survey import Survey, make_fact
    from unmask.tracing.tokens import name_joint

    settings = {
        "steps": steps,
        "at": [each.strip() for each in at.split(",")],
        "parts": [each.strip() for each in parts.split(",")],
        "window": window,
        "corruption": corruption,
        "samples": samples,
        "metric": metric,
        "guidance": guidance,
        "length": length,
        "joint": joint,
        "mode": mode,
        "run": "free_running" if free else "teacher_forced",
        "source": source,
        "severed": severed,
        "any_answer": any_answer,
        "seed": seed,
    }
    survey = build(Survey, settings, "unmask trace")
    if (data is None) == (prompt is None):
        raise UserError("give either --data with facts, or --prompt with --subject and --answer.")
    name = _find_default() if name is None else name
    rank, world, local = (
        int(os.environ.get(key, default))
        for key, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    if world > 1 and device in ("auto", "cuda"):
        import torch

        device = f"cuda:{local}" if torch.cuda.is_available() else "cpu"
    model = load(name, device=device, dtype=dtype, quiet=rank > 0)
    budget = None if memory is None else int(memory * 1e9)
    console = Console(quiet=rank > 0)
    if prompt is not None:
        if subject is None or answer is None:
            raise UserError("a prompt needs its --subject and its --answer.")
        fact = make_fact(prompt, subject, answer)
        wrong = None if foil is None else make_fact(prompt, subject, foil)
        _trace_one(console, model, fact, survey, out, budget, wrong)
        return
    if foil is not None:
        raise UserError("a --foil goes with --prompt: facts of --data have each other's answers.")
    assert data is not None
    told = {"model": name, "data": str(data), "split": split, "facts": facts}
    told = told | {"phrasings": phrasings, "dtype": dtype} | settings
    told["joint"] = name_joint(model.kind, survey.joint)
    _trace_many(console, model, survey, told, out, budget, rank, world)


def _find_default() -> str:
    """The shipped diffusion model, or whatever was shipped."""
    from unmask.base.errors import UserError
    from unmask.net.hub import shipped_models
    from unmask.net.loading import inspect

    kinds = {name: inspect(name)[0].kind for name in shipped_models()}
    if not kinds:
        raise UserError("no model came with this installation: name one, a folder or a hub id.")
    return next((name for name, kind in kinds.items() if kind == "masked"), next(iter(kinds)))


def _trace_one(
    console: "Console",
    model: "Model",
    fact: "Fact",
    survey: "Survey",
    out: Path,
    memory: int | None,
    foil: "Fact | None",
) -> None:
    from unmask.base.tables import write_table
    from unmask.report.tracing_figures import draw_grid
    from unmask.report.tracing_terminal import show_grid
    from unmask.tracing.survey import trace_one
    from unmask.tracing.table import SCHEMA, tabulate

    assert model.tokenizer is not None
    course, grids = trace_one(model, fact, survey, memory, foil)
    console.print(f"said: {course.text.strip()}", markup=False, highlight=False)
    for label, step in course.find_steps(survey.at):
        if step not in grids:
            console.print(f"step {step}: nothing to corrupt, left out", highlight=False)
            continue
        grid = grids[step]
        words = [model.tokenizer.decode([token]) or "·" for token in grid.tokens]
        place = out / f"step-{step}"
        show_grid(console, grid, words)
        draw_grid(place, grid, words, fact.text)
        write_table(f"{place}.parquet", tabulate(grid, fact, model.kind, label), SCHEMA)
        console.print(f"figure: {place}.png and .pdf", markup=False, highlight=False)


def _trace_many(
    console: "Console",
    model: "Model",
    survey: "Survey",
    told: dict[str, Any],
    out: Path,
    memory: int | None,
    rank: int,
    world: int,
) -> None:
    from unmask.base.errors import UserError
    from unmask.base.runs import open_run
    from unmask.base.tables import read_table
    from unmask.data.corpus import Corpus
    from unmask.data.shards import Shards
    from unmask.data.sources import read_source
    from unmask.report.tracing_terminal import show_averages
    from unmask.tracing.averages import SCHEMA
    from unmask.tracing.survey import choose_facts, run_survey

    source = read_source(Path(told["data"]))
    if isinstance(source, Shards):
        raise UserError(f"{told['data']} holds token shards, expected facts.")
    if isinstance(source, Corpus):
        groups = [source[name.strip()] for name in told["split"].split(",")]
    else:
        groups = [source]
    # In turn, so that a run that is cut short says something about every split.
    asked = zip_longest(
        *(choose_facts(group, told["facts"], told["phrasings"]) for group in groups)
    )
    chosen = [fact for turn in asked for fact in turn if fact is not None]
    folder = open_run(out, "trace", told)
    pool = [fact for group in groups for fact in group]
    summary = run_survey(model, chosen, survey, folder, memory, rank, world, pool)
    if summary is None:
        return
    dropped = ", ".join(f"{count} {reason}" for reason, count in summary.dropped.items())
    console.print(f"{summary.kept} prompts kept, dropped: {dropped or 'none'}", highlight=False)
    if summary.kept:
        show_averages(console, read_table(folder / "averages.parquet", SCHEMA).to_pylist())
    console.print(f"tables: {folder}", markup=False, highlight=False)
