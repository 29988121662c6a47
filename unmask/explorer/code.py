"""The page's views as Python that runs as it is, with the public calls, and gives their values."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from unmask.base.config import CheckedSettings
from unmask.base.devices import name_dtype
from unmask.base.errors import UserError, suggest
from unmask.data.facts import Fact
from unmask.explorer.edits import choose_edit, make_back
from unmask.explorer.interventions import SITES, make_page_fact, make_tracing
from unmask.explorer.requests import (
    EditFactRequest,
    MoveRequest,
    PlaceRequest,
    PositionRequest,
    PythonRequest,
    RestoreRequest,
    TraceRequest,
    WriteRequest,
    WriteSettings,
    read_request,
)
from unmask.explorer.session import Explorer
from unmask.explorer.views import (
    TOP_LENS,
    TOP_POSITION,
    Draw,
    encode_canvas,
    extend,
    plan_draw,
)
from unmask.net.model import Model
from unmask.tracing.windows import default_window, window_of


def write_python(explorer: Explorer, request: PythonRequest) -> dict[str, str]:
    """The code of a view, given the body of its call."""
    if request.view not in VIEWS:
        raise UserError(f"there is no view {request.view!r:.60}: {suggest(request.view, VIEWS)}.")
    kind, write = VIEWS[request.view]
    body: Any = read_request(kind, request.request, request.view)
    model, _ = explorer.pick(body.model)
    code, kept = write(model, body), explorer.edits.get(body.model)
    if kept is not None and request.view != "edit":
        code = code.replace(load := _load(model), load + _put_on(model, kept.request), 1)
    return {"code": code}


def _load(model: Model) -> str:
    dtype = name_dtype(model.net.embedding.weight.dtype)
    device = str(model.device)
    return f"model = unmask.load({model.name!r}, device={device!r}, dtype={dtype!r})\n"


def _write_call(target: str, function: str, *arguments: str, **settings: Any) -> str:
    """A call on one line, or with an argument on each where it would be long."""
    named = [f"{name}={value!r}" for name, value in settings.items()]
    line = f"{target} = {function}({', '.join([*arguments, *named])})\n"
    if len(line) <= 100:
        return line
    return (
        f"{target} = {function}(\n" + "".join(f"    {x},\n" for x in (*arguments, *named)) + ")\n"
    )


def _write_draw(target: str, draw: Draw, **more: Any) -> str:
    settings = {**draw.settings, **more}
    return _write_call(target, f"unmask.{draw.verb}", "model", repr(draw.given), **settings)


def _write_text(model: Model, body: WriteRequest) -> str:
    draw = plan_draw(model, body.canvas, body.settings)
    return (
        f"import unmask\n\n{_load(model)}"
        f"{_write_draw('drawn', draw, guesses=body.top)}"
        "print(drawn.texts[0] if drawn.texts else drawn.tokens[0])\n"
        "print(drawn.committed_at, drawn.confidence, drawn.entropy)\n"
        "for step in range(1, drawn.num_steps + 1):\n"
        "    print(step, drawn.guesses(step))\n"
    )


def _write_position(model: Model, body: PositionRequest) -> str:
    tokens = encode_canvas(model, body.canvas)
    row = model.row_of(body.position)
    aligned = row if model.paradigm.predicts_next else body.position
    lines = [
        "import torch\n\nimport unmask\n\n" + _load(model),
        f"tokens = torch.tensor([{tokens}])",
        'with torch.inference_mode(), model.net.capture("layers.*.attn_pattern") as kept:',
        f"    logits = model.logits(tokens)[0, {aligned}].float()",
    ]
    if model.paradigm.fills_masks:
        lines += _write_reading(model, body, tokens)
    lines += [
        "logp = logits.log_softmax(-1, dtype=torch.float64)",
        f"top = logp.exp().topk({TOP_POSITION})",
        "entropy = torch.special.entr(logp.exp()).sum()",
        f"attention = [pattern[0, :, {row}] for pattern in kept.values()]  # by layer and head",
        "print(entropy, top)",
    ]
    if model.paradigm.is_scored:
        text, at = extend(tokens, body.position), body.position
        lines += [
            f"lens = unmask.logit_lens(model, {text}, positions=[{at}], top={TOP_LENS})",
            f"print(lens.at({at}))",
        ]
    if model.tokenizer is not None:
        lines.append("print([model.tokenizer.piece(token) for token in top.indices.tolist()])")
    return "\n".join(lines) + "\n"


def _write_reading(model: Model, body: PositionRequest, tokens: list[int]) -> list[str]:
    """What a sampler does to a masked model's logits: guidance, and tokens that cannot stand."""
    lines, position = [], body.position
    given = body.canvas.fixed or [True] * len(tokens)
    hidden = [fixed and t != model.mask_id for fixed, t in zip(given, tokens, strict=True)]
    if body.guidance:
        lines += [
            f"given = torch.tensor([{hidden}])",
            "with torch.inference_mode():",
            "    without = model.logits(torch.where(given, model.mask_id, tokens))"
            f"[0, {position}].float()",
            f"logits = torch.lerp(without, logits, {1 + body.guidance!r})",
        ]
    assert model.mask_id is not None
    refused = []
    if model.mask_id < model.net.config.logit_rows:
        refused.append("logits[model.mask_id] = -torch.inf  # a mask is never written")
    if model.tokenizer is not None:
        after = zip(tokens[position + 1 :], hidden[position + 1 :], strict=True)
        if any(is_given and token != model.tokenizer.end_id for token, is_given in after):
            refused.append("logits[model.tokenizer.end_id] = -torch.inf  # given text follows")
    return [*lines, *(["logits = logits.clone()", *refused] if refused else [])]


def _write_fact(fact: Fact, target: str = "fact") -> str:
    names = ("subject", "object", "prompt", "completion", "subject_span", "object_span", "fact_id")
    return _write_call(target, "unmask.Fact", **{name: getattr(fact, name) for name in names})


def _write_edit(model: Model, body: EditFactRequest) -> str:
    """The lines that make the edit: a fact and the call."""
    fact = make_page_fact(body.prompt, body.subject, body.old)
    arguments = ("model", "fact", repr(body.new.strip()))
    return _write_fact(fact) + _write_call(
        "edit", "unmask.edit", *arguments, **choose_edit(model, body)
    )


def _put_on(model: Model, body: EditFactRequest) -> str:
    """The lines that give a model the edit that it has here."""
    return (
        _write_edit(model, body) + "edited = edit.on(model)  # as long as this name is there\n"
        "edited.__enter__()\n"
    )


def _write_edited(model: Model, body: EditFactRequest) -> str:
    back = make_back(body)
    return "".join(
        (
            "import unmask\n"
            "from unmask.editing.outcomes import Examination\n"
            "from unmask.editing.requests import make_request\n\n",
            _load(model),
            _write_edit(model, body),
            "back = None\n" if back is None else _write_fact(back, "back"),
            f"request = make_request(fact, {body.new.strip()!r}, back)\n",
            _write_call(
                "examination",
                "Examination",
                "model",
                "[request]",
                steps=body.steps,
                length=body.length,
            ),
            "before = examination.ask(request.questions)\n"
            "rows = list(examination.compare(0, edit, before))\n"
            "for row in rows:\n"
            '    print(row["prompt"], row["text_before"], row["text_after"], sep="\\n")\n'
            '    print(row["nll_before"], row["nll_after"])  # of the right answer, per token\n',
        )
    )


def _trace_fact(body: TraceRequest) -> Fact:
    return make_page_fact(body.prompt, body.subject, body.answer)


def _list_tracing(body: TraceRequest) -> dict[str, Any]:
    settings = make_tracing(body)
    names = ("parts", "corruption", "samples", "at", "steps", "any_answer", "seed")
    return {name: getattr(settings, name) for name in names}


def _write_trace(model: Model, body: TraceRequest) -> str:
    return (
        f"import unmask\n\n{_load(model)}{_write_fact(_trace_fact(body))}"
        + _write_call("(grid,)", "unmask.trace_steps", "model", "fact", **_list_tracing(body))
        + "print(grid.clean, grid.corrupted)\n"
        "for part, values in grid.scores.items():  # [position, layer]\n"
        "    print(part, values)\n"
    )


PUT = '''

def put(vector):
    """A patch that puts a vector at the position."""

    def act(x):
        if x.shape[1] <= position:
            return x
        x = x.clone()
        x[:, position] = vector
        return x

    return act


'''


def _write_restore(model: Model, body: RestoreRequest) -> str:
    if body.part not in SITES:
        raise UserError(f"the part {body.part} cannot be restored here: {', '.join(SITES)} can.")
    layers, window = model.net.config.layers, [body.layer]
    if body.part != "resid":
        window = list(range(*window_of(body.layer, default_window(layers), layers)))
    sites = [f"layers.{layer}.{SITES[body.part]}" for layer in window]
    settings = {**_list_tracing(body), "parts": (body.part,)}
    go_on = [
        "drawn = unmask.infill(model, state.tolist(), steps=max(1, len(clean.states) - step))",
    ]
    if not model.paradigm.has_steps:
        go_on = [
            "prompt = clean.states[0][: clean.prompt_length].tolist()",
            "drawn = unmask.sample(model, prompt, length=clean.states.shape[1])",
        ]
    return "".join(
        (
            "import torch\n\nimport unmask\n"
            "from unmask.tracing.clean_run import generate\n"
            "from unmask.tracing.corruption import get_corruption, hide\n\n",
            _load(model),
            _write_fact(_trace_fact(body)),
            _write_call("settings", "unmask.Tracing", **settings),
            "clean = generate(model, fact, settings)\n",
            "((_, step),) = clean.find_steps(settings.at)\n",
            f"position, state = {body.position}, clean.state_at(step)\n",
            "(grid,) = unmask.trace_steps(model, clean, settings, places=(position,))\n",
            f"p = grid.scores[{body.part!r}][0, {body.layer}]\n",
            PUT,
            "noise = get_corruption(settings.corruption, settings.samples, settings.seed)\n",
            "bad = hide(noise, model, state, range(*clean.subject))\n",
            "subject = slice(*clean.subject)\n",
            f"sites = {sites}\n",
            "with torch.inference_mode():\n",
            "    hidden = bad.embed(model.net.embedding(bad.tokens))[0, subject]\n",
            "    with model.net.capture(*sites) as kept:\n",
            "        model.logits(state[None])\n",
            "\n\ndef hide_subject(x):\n",
            "    x = x.clone()\n    x[:, subject] = hidden\n    return x\n\n\n",
            "texts = []\n",
            "for restored in ((), sites):\n",
            '    patches = {"embed": hide_subject}\n',
            "    patches |= {site: put(kept[site][0, position]) for site in restored}\n",
            "    with torch.inference_mode(), model.net.patch(patches):\n",
            *(f"        {line}\n" for line in go_on),
            "    rest = drawn.tokens[0, clean.prompt_length :].tolist()\n",
            "    texts.append(model.tokenizer.decode(rest))\n",
            "corrupted, restored = texts\n",
            "print(p, clean.text, corrupted, restored, sep='\\n')\n",
        )
    )


def _write_state(name: str, model: Model, place: PlaceRequest, settings: WriteSettings) -> str:
    """The lines that make the row of tokens that a place is in."""
    tokens = encode_canvas(model, place.canvas)
    if place.canvas.tokens is not None:
        return f"{name} = torch.tensor({tokens})\n"
    draw = plan_draw(model, place.canvas, replace(settings, steps=place.steps))
    end = "" if model.paradigm.has_steps else f"[: {len(tokens) + place.step - 1}]"
    return _write_draw("drawn", draw) + f"{name} = drawn.states[{place.step - 1}, 0]{end}\n"


def _write_move(model: Model, body: MoveRequest) -> str:
    source, target = body.source, body.target
    left = replace(body.settings, steps=max(1, target.steps - target.step + 1))
    rest = plan_draw(model, target.canvas, left)
    verb = "infill" if model.paradigm.has_steps else "sample"
    chosen = {k: v for k, v in rest.settings.items() if verb == "sample" or k != "length"}
    read = f'"layers.{source.layer}.resid_out"'
    write = f'"layers.{target.layer}.resid_out"'
    return "".join(
        (
            "import torch\n\nimport unmask\n\n",
            _load(model),
            _write_state("source", model, source, body.settings),
            _write_state("target", model, target, body.settings),
            f"position = {target.position}\n",
            PUT,
            f"with torch.inference_mode(), model.net.capture({read}) as kept:\n",
            "    model.logits(source[None])\n",
            f"vector = kept[{read}][0, {source.position}]\n",
            _write_call("before", f"unmask.{verb}", "model", "target.tolist()", **chosen),
            f"with torch.inference_mode(), model.net.patch({{{write}: put(vector)}}):\n",
            _indent(_write_call("after", f"unmask.{verb}", "model", "target.tolist()", **chosen)),
            "for drawn in (before, after):\n",
            "    print(drawn.texts[0] if drawn.texts else drawn.tokens[0])\n",
        )
    )


def _indent(lines: str) -> str:
    return "".join(f"    {line}\n" for line in lines.splitlines())


VIEWS: Mapping[str, tuple[type[CheckedSettings], Callable[[Model, Any], str]]] = {
    "write": (WriteRequest, _write_text),
    "position": (PositionRequest, _write_position),
    "trace": (TraceRequest, _write_trace),
    "restore": (RestoreRequest, _write_restore),
    "move": (MoveRequest, _write_move),
    "edit": (EditFactRequest, _write_edited),
}
"""The body of each view's call, and what writes its code."""
