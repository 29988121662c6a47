"""`unmask sample`: texts from a model, un-masked before one's eyes."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.errors import UserError
from unmask.base.progress import announce
from unmask.cli.exits import note_when_stopped
from unmask.cli.options import add_option, make_command
from unmask.measures.contract import Argument
from unmask.sampling.settings import Sampling

if TYPE_CHECKING:
    from unmask.sampling.trajectory import Trajectory

PROMPTS = "None: from nothing, which autoregressive models cannot."
ARGUMENTS = (
    Argument("name", "A model's name, folder or file.", "MODEL"),
    Argument("prompts", PROMPTS, "PROMPT…", is_list=True, is_required=False),
)
MOST_PAUSE = 60
MOST_TEXTS = 1_000_000
_INFILL = "Prompts hold their masks: '… [MASK]*5 …'; a space before them is theirs."
_PLANT = "STEP:POSITION:TEXT, a text that a step writes from a position on; may be repeated."
_NUMBER = "Texts for each prompt; several are drawn at temperature 1 unless told otherwise."
_SHIFT = "Whether its row i predicts i + 1."
_BLOCK = "Positions of a block of its attention, where its settings do not say; 0: none."
_BEGINNING = "A token before every text, or none; else its tokenizer's."
_READ = "Draw nothing: show what another engine drew, JSON lines of prompt, states and tokens."
EXTRAS = (
    add_option("length", int | None, None, "Whole row, prompt included; else the context."),
    add_option("infill", bool, False, _INFILL),
    add_option("plant", list[str], [], _PLANT),
    add_option("forbid", list[str], [], "A token that is never written; may be repeated."),
    add_option("require", list[str], [], "A text that must be there; may be repeated."),
    add_option("number", int, 1, _NUMBER),
    add_option("guesses", bool, False, "Show the likeliest token in every mask; --save keeps it."),
    add_option("pause", float, 0.08, "Seconds for which a terminal shows each step."),
    add_option("device", str, "auto", "auto, cpu, cuda, cuda:N or mps; several by commas."),
    add_option("kind", str | None, None, "What the model is, where its settings do not say."),
    add_option("mask", int | None, None, "Its mask id, where its files do not say."),
    add_option("shift", bool | None, None, _SHIFT, "--shift/--no-shift"),
    add_option("attention_block", int | None, None, _BLOCK),
    add_option("revision", str | None, None, "A branch or commit of its repository."),
    add_option("beginning", str | None, None, _BEGINNING),
    add_option("dtype", str, "auto", "Dtype; auto suits file and device."),
    add_option("read", Path | None, None, _READ),
    add_option("as_json", bool, False, "Print everything as JSON.", "--json"),
    add_option("save", Path | None, None, "A file for the whole trajectory."),
)


def write_samples(given: Mapping[str, Any], settings: Sampling, extras: Mapping[str, Any]) -> None:
    """What the verb does: texts on stdout, un-masked step by step where that is a terminal."""
    import json

    from rich.console import Console

    from unmask.net.loading import load
    from unmask.report.unmasking import Screen
    from unmask.sampling import texts
    from unmask.sampling.imported import read_trajectories

    number, save = extras["number"], extras["save"]
    if not 1 <= number <= MOST_TEXTS:
        raise UserError(f"--number {number} was given: expected 1 to {MOST_TEXTS:,} texts.")
    if number > 1 and settings.temperature is None:
        settings = replace(settings, temperature=1.0)  # the likeliest text would come several times
    if extras["read"] is not None and (given["prompts"] or extras["infill"]):
        raise UserError("--read was given with prompts or --infill: a file has its own prompts.")
    rows = [prompt for prompt in given["prompts"] or [""] for _ in range(number)]
    if extras["infill"] and not any("[MASK]" in row for row in rows):
        raise UserError("nothing is there to fill: write masks as [MASK] or [MASK]*5.")
    if extras["infill"] and (extras["length"] is not None or settings.chat):
        raise UserError(
            "--infill was given with --length or --chat: a text with masks has its own length and "
            "is not a chat; take one of them back."
        )
    if not 0 <= extras["pause"] <= MOST_PAUSE:
        raise UserError(f"--pause {extras['pause']} was given: expected 0 to {MOST_PAUSE} seconds.")
    named = ("device", "dtype", "kind", "mask", "shift", "revision", "beginning")
    options = {name: extras[name] for name in named}
    model = load(given["name"], **options, block=extras["attention_block"])
    if model.paradigm.sampler == "causal" and extras["read"] is None:
        _note_unused(settings)
    console = Console()
    live = console.is_terminal and not extras["as_json"]
    hidden_id, pause = model.mask_id, extras["pause"]
    screen = Screen(console, model.tokenizer, hidden_id, settings.steps, pause) if live else None
    so_far: list[Trajectory] = []

    def watch(state: "Trajectory") -> None:
        so_far[:] = [state]
        if screen is not None:
            screen.show(state)

    settings = replace(
        settings,
        length=extras["length"],
        planted=_read_plants(extras["plant"]),
        forbid=extras["forbid"],
        require=extras["require"],
        guesses=int(extras["guesses"]),
        watch=watch if live or save is not None else None,
    )

    def keep() -> str | None:
        if save is None or not so_far:
            return None
        so_far[0].save(save)
        return f"what was written so far is in {save}"

    with note_when_stopped(keep), screen or announce("sample"):
        if extras["read"] is not None:
            trajectory = read_trajectories(model, extras["read"], settings.watch)
        else:
            draw = texts.infill if extras["infill"] else texts.sample
            trajectory = draw(model, rows, settings)
    if save is not None:
        trajectory.save(save)
    if extras["read"] is None and trajectory.texts:
        _note_empty(trajectory.texts)
    if settings.drafts is not None and extras["read"] is None:
        _note_drafts(trajectory)
    if extras["as_json"]:
        print(json.dumps(_describe(trajectory), ensure_ascii=False))
    elif not live:
        ids = [" ".join(map(str, row)) for row in trajectory.tokens.tolist()]
        for text in trajectory.texts or ids:
            print(text)


def _note_unused(settings: Sampling) -> None:
    """Settings that say how masks are filled; an autoregressive model has none."""
    names = ("steps", "plan", "order", "remask", "block", "cache")
    given = [f"--{name}" for name in names if getattr(settings, name) != getattr(Sampling, name)]
    if given:
        print(f"{', '.join(given)}: without effect on an autoregressive model.", file=sys.stderr)


def _note_drafts(trajectory: "Trajectory") -> None:
    """What drafting gained, in passes."""
    from unmask.sampling.speculation import count_per_round

    each = f"{count_per_round(trajectory):.2f} tokens a round"
    print(f"{each}, a round being 2 of the {trajectory.calls} passes.", file=sys.stderr)


def _note_empty(texts: Sequence[str]) -> None:
    """An empty line would look like a command that did nothing."""
    if empty := sum(not text for text in texts):
        which, it = f"{empty} of {len(texts)} texts are", "them"
        if len(texts) == 1:
            which, it = "the text is", "it"
        message = f"{which} empty: the model ended {it} at once; try a prompt or --temperature 1."
        print(message, file=sys.stderr)


def _read_plants(words: list[str]) -> dict[int, dict[int, str]]:
    """STEP:POSITION:TEXT, each of them."""
    plants: dict[int, dict[int, str]] = {}
    for word in words:
        step, _, rest = word.partition(":")
        position, colon, text = rest.partition(":")
        are_numbers = all(each.isdecimal() and len(each) < 20 for each in (step, position))
        if not (are_numbers and colon and text):
            raise UserError(
                f"--plant {word!r:.60} was given: expected STEP:POSITION:TEXT, such as '3:10: cat'."
            )
        plants.setdefault(int(step), {})[int(position)] = text
    return plants


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


OF_NO_COMMAND = (
    "length",
    "fixed",
    "planted",
    "forbid",
    "require",
    "keep_states",
    "guesses",
    "watch",
)
"""Settings that are given by the options above, or from Python alone."""
sample = make_command(
    "sample",
    "Draw texts from a model; in a terminal the un-masking is shown step by step.",
    ARGUMENTS,
    Sampling,
    EXTRAS,
    write_samples,
    leave_out=OF_NO_COMMAND,
)
