"""`unmask sample`: texts from a model, un-masked before one's eyes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unmask.cli.exits import note_when_stopped

if TYPE_CHECKING:
    from unmask.sampling.trajectory import Trajectory


def sample(
    name: str = typer.Argument(..., metavar="MODEL", help="A model's name, folder or file."),
    prompts: list[str] = typer.Argument(None, metavar="PROMPT…", help="None: from nothing."),
    steps: int = typer.Option(16, help="Denoising steps."),
    guidance: str = typer.Option("0", help="Strength, or a schedule of it such as up=0.8."),
    plan: str = typer.Option(
        "smdm", help="smdm, llada, linear, cosine, one, threshold=0.9, ancestral."
    ),
    order: str = typer.Option("confidence", help="confidence, entropy, margin, left, random."),
    remask: str = typer.Option("none", help="none, cap, rescale, conf, loop, low; low=0.2."),
    length: int | None = typer.Option(None, help="Whole row, prompt included; else the context."),
    block: int | None = typer.Option(None, help="Tokens of a block, filled from left to right."),
    temperature: float | None = typer.Option(None, help="0: the likeliest token."),
    top_k: int | None = typer.Option(None, help="Draw among the k likeliest."),
    top_p: float | None = typer.Option(None, help="Draw among those with this probability."),
    stochastic: float = typer.Option(1.0, help="Share of the steps that draw, before argmax."),
    infill: bool = typer.Option(
        False,
        "--infill",
        help="Prompts hold their masks: '… [MASK]*5 …'; a space before them is theirs.",
    ),
    forbid: list[str] = typer.Option([], help="A token that is never written; may be repeated."),
    require: list[str] = typer.Option([], help="A text that must be there; may be repeated."),
    cache: str = typer.Option("none", help="none, exact, approximate (keeps the prefix)."),
    chat: bool = typer.Option(False, "--chat", help="Prompts as turns of the model's chat."),
    number: int = typer.Option(
        1, help="Texts for each prompt; several are drawn at temperature 1 unless told otherwise."
    ),
    seed: int = typer.Option(0, help="Seed of whatever is drawn."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    dtype: str = typer.Option("auto", help="Dtype; auto suits file and device."),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    save: Path | None = typer.Option(None, help="A file for the whole trajectory."),
) -> None:
    """Draw texts from a model; in a terminal the un-masking is shown step by step."""
    import json
    from contextlib import nullcontext

    from rich.console import Console

    from unmask.base.errors import UserError
    from unmask.net.loading import load
    from unmask.report.unmasking import Screen
    from unmask.sampling import texts

    if number < 1:
        raise UserError(f"{number} texts were asked for: expected at least 1.")
    if number > 1 and temperature is None:
        temperature = 1.0  # the likeliest text would come several times
    rows = [prompt for prompt in prompts or [""] for _ in range(number)]
    if infill and not any("[MASK]" in row for row in rows):
        raise UserError("nothing is there to fill: write masks as [MASK] or [MASK]*5.")
    if infill and (length is not None or chat):
        raise UserError(
            "--infill was given with --length or --chat: a text with masks has its own length and "
            "is not a chat; take one of them back."
        )
    model = load(name, device=device, dtype=dtype)
    console = Console()
    live = console.is_terminal and not as_json
    screen = Screen(console, model.tokenizer, model.mask_id, steps) if live else None
    so_far: list[Trajectory] = []

    def watch(state: "Trajectory") -> None:
        so_far[:] = [state]
        if screen is not None:
            screen.show(state)

    settings: dict[str, Any] = {
        "steps": steps,
        "guidance": guidance,
        "plan": plan,
        "order": order,
        "remask": remask,
        "block": block,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "stochastic": stochastic,
        "forbid": forbid,
        "require": require,
        "cache": cache,
        "seed": seed,
        "watch": watch if live or save is not None else None,
    }

    def keep() -> str | None:
        if save is None or not so_far:
            return None
        so_far[0].save(save)
        return f"what was written so far is in {save}"

    with note_when_stopped(keep), screen or nullcontext():
        if infill:
            trajectory = texts.infill(model, rows, **settings)
        else:
            trajectory = texts.sample(model, rows, length=length, chat=chat, **settings)
    if save is not None:
        trajectory.save(save)
    if as_json:
        print(json.dumps(_describe(trajectory), ensure_ascii=False))
    elif not live:
        ids = [" ".join(map(str, row)) for row in trajectory.tokens.tolist()]
        for text in trajectory.texts or ids:
            print(text)


def _describe(trajectory: "Trajectory") -> dict[str, object]:
    """Everything but the states, which `--save` keeps."""
    return {
        "texts": trajectory.texts,
        "tokens": trajectory.tokens.tolist(),
        "committed_at": trajectory.committed_at.tolist(),
        "confidence": [[round(p, 6) for p in row] for row in trajectory.confidence.tolist()],
        "entropy": [[round(nats, 6) for nats in row] for row in trajectory.entropy.tolist()],
        "calls": trajectory.calls,
    }
