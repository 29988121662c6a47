"""A fact is changed on the page: asked before and after, forwards and in reverse, and undone.

An edit stays on for all calls that follow, until it is undone or another is made for its model.
"""

import time
from dataclasses import replace
from typing import Any

import torch

from unmask.data.facts import Fact
from unmask.editing.edit import Edit
from unmask.editing.editor import edit
from unmask.editing.outcomes import Examination
from unmask.editing.requests import make_request
from unmask.explorer.interventions import make_page_fact
from unmask.explorer.requests import EditFactRequest, UndoRequest
from unmask.explorer.session import Explorer
from unmask.explorer.worker import Emit
from unmask.net.model import Model
from unmask.representation.settings import choose_layers


def choose_edit(model: Model, request: EditFactRequest) -> dict[str, Any]:
    """The arguments of `unmask.edit`, its model, fact and object left out."""
    layer = request.layer
    if layer is None:
        (layer,), _ = choose_layers(model.name, model.net.config.layers, "auto")
    return {
        "layers": layer,
        "search_steps": request.search_steps,
        "reveal": request.reveal,
        "clamp": request.clamp,
        # Prompts of the shipped models fill their context: there is no room for texts before them.
        "prefixes": 1,
        "length": request.length,
        "seed": request.seed,
    }


def make_back(request: EditFactRequest) -> Fact | None:
    """The question in reverse, with the old object in it, which asks for the subject."""
    if not request.reverse:
        return None
    prompt, old = request.reverse.rstrip(), request.old.strip()
    begin = prompt.index("{}")
    subject = request.prompt[slice(*request.subject)].strip()
    # At the beginning of a sentence both objects are capitalised.
    shown = old if begin else old[:1].upper() + old[1:]
    back = make_page_fact(prompt.replace("{}", shown), (begin, begin + len(old)), subject)
    return replace(back, subject=old)


def edit_fact(explorer: Explorer, request: EditFactRequest, emit: Emit) -> None:
    """Give a fact a new object; what the model says before and after is sent as it is known.

    The edit replaces the one that the model has. It is kept on after the last event alone: where it
    fails, or its client leaves before, the model has the edit that it had.
    """
    start, model = time.perf_counter(), explorer.pick(request.model)
    had = explorer.edits.get(request.model)
    try:
        explorer.undo_edit(request.model)
        made, rows = try_edit(model, request, emit)
        end = {"layers": list(made.layers), "magnitude": made.magnitude, "rows": rows}
        end["seconds"] = time.perf_counter() - start
        emit("end", end)
        explorer.keep_edit(request, made, end)
    except BaseException:
        if had is not None and request.model not in explorer.edits:
            explorer.keep_edit(had.request, had.edit, had.end)
        raise


@torch.inference_mode(False)
def try_edit(
    model: Model, request: EditFactRequest, emit: Emit
) -> tuple[Edit, list[dict[str, Any]]]:
    """An edit for a model that has none, and the answers to each question before and after."""
    fact, new = make_page_fact(request.prompt, request.subject, request.old), request.new.strip()
    wanted = make_request(fact, new, make_back(request))
    with torch.no_grad():
        examination = Examination(model, [wanted], request.steps, request.length)
        before = examination.ask(wanted.questions)
    questions = zip(wanted.questions, before, strict=True)
    emit(
        "before",
        {
            "answers": [
                {
                    "role": question.role,
                    "prompt": question.fact.prompt,
                    "wanted": question.fact.object,
                    "nll": reply.nll,
                    "text": reply.text,
                }
                for question, reply in questions
            ]
        },
    )
    with torch.enable_grad():
        # Each evaluation is an event: the search ends where nobody waits for it any more.
        more = {"watch": lambda step: emit("search", {"step": step + 1})}
        made = edit(model, fact, new, **choose_edit(model, request), **more)
    emit("progress", {})
    with torch.no_grad():
        return made, list(examination.compare(0, made, before))


def undo(explorer: Explorer, request: UndoRequest, emit: Emit) -> dict[str, bool]:
    """Take a model's edit off, to the bit."""
    explorer.pick(request.model)
    return {"undone": explorer.undo_edit(request.model)}
