"""`unmask study`: the main job."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from unmask.report.artefacts import StudyFolder
    from unmask.study.settings import Study


def study(
    model: str | None = typer.Option(
        None, help="The diffusion model: name, folder, file or hub id; by default the shipped one."
    ),
    twin: str | None = typer.Option(None, help="Its autoregressive twin; by default the shipped."),
    data: Path | None = typer.Option(
        None, help="A corpus folder or a file of one's own facts; by default a corpus is made."
    ),
    facts: int = typer.Option(30, help="Facts in each group of a corpus that is made."),
    quick: bool = typer.Option(False, "--quick", help="A first look: a minute instead of five."),
    full: bool = typer.Option(False, "--full", help="All prompts, more facts, noise; for a GPU."),
    stages: str = typer.Option(
        "", help="Some of data, recall, denoising, tracing, symmetry, page; all by default."
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with the study in --out, with its own settings."
    ),
    guidance: float = typer.Option(0.8, help="Guidance where texts are drawn; traces have none."),
    metric: str = typer.Option("logp", help="Of effects: p, logp, logit_difference or normalised."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    dtype: str = typer.Option("float32", help="Number format, such as bfloat16."),
    seed: int = typer.Option(0, help="Seed of the corpus, the noise and the intervals."),
    as_json: bool = typer.Option(False, "--json", help="Print the numbers as JSON instead."),
    out: Path = typer.Option(Path("runs/study"), help="Folder for the artefacts and the page."),
) -> None:
    """Run the study, from data to a page you can read; a study that was stopped goes on."""
    import sys

    from rich.console import Console

    from unmask.base.config import build
    from unmask.base.errors import UserError
    from unmask.cli.exits import INTERRUPTED
    from unmask.cli.lists import parse_names
    from unmask.study.pipeline import run_study
    from unmask.study.settings import STAGES, Study

    console = Console(quiet=as_json)
    if resume:
        settings = _read_settings(out)
    else:
        if quick and full:
            raise UserError("--quick and --full were both given: leave one of them out.")
        chosen, other = _choose_pair(model, twin)
        told = {
            "model": chosen,
            "twin": other,
            "data": None if data is None else str(data),
            "facts": facts,
            "size": "quick" if quick else "full" if full else "laptop",
            "guidance": guidance,
            "metric": metric,
            "seed": seed,
            "dtype": dtype,
        }
        settings = build(Study, told, "unmask study")

    def tell(stage: str, seconds: float | None) -> None:
        took = "there already" if seconds is None else f"{seconds:.1f} s"
        console.print(f"{stage}: {took}", style="dim", highlight=False)

    try:
        found = run_study(settings, out, parse_names(stages) or STAGES, device, tell)
    except KeyboardInterrupt:
        print(
            "interrupted; go on where it stopped with: unmask study --resume --out "
            f"{shlex.quote(str(out))}",
            file=sys.stderr,
        )
        raise SystemExit(INTERRUPTED) from None
    if as_json:
        _print_json(found)
    else:
        from unmask.report.study_terminal import show_study

        show_study(console, found)


def _choose_pair(model: str | None, twin: str | None) -> tuple[str, str | None]:
    """The models that were named, else the shipped pair."""
    from unmask.base.errors import UserError
    from unmask.study.settings import SHIPPED_MODEL, SHIPPED_TWIN

    if model is not None:
        return model, twin
    if twin is not None:
        raise UserError(f"a twin {twin} was given without a diffusion model: name it by --model.")
    return SHIPPED_MODEL, SHIPPED_TWIN


def _read_settings(out: Path) -> "Study":
    """The settings that a study was begun with."""
    from dataclasses import fields

    from unmask.base.config import build
    from unmask.report.artefacts import StudyFolder
    from unmask.study.settings import Study

    record = StudyFolder(out).record
    names = {field.name for field in fields(Study)}
    own = {key: value for key, value in record.settings.items() if key in names}
    return build(Study, own, f"{out}/run.json")


def _print_json(found: "StudyFolder") -> None:
    import json
    from dataclasses import asdict

    from unmask.report.artefacts import PAGE
    from unmask.report.story import tell_numbers, tell_story

    told = {
        "run": str(found.path),
        "page": str(found.path / PAGE) if found.has(PAGE) else None,
        "numbers": [asdict(number) for number in tell_numbers(found)],
        "summary": tell_story(found),
    }
    print(json.dumps(told, ensure_ascii=False))
