"""The page's views as Python that runs as it is: the very call that makes a view.

Texts and traces are one public call each. What other views compute is shown as the source of their
own function, with the imports that it needs, and its call with what the page sent.
"""

import ast
import inspect
from dataclasses import fields, is_dataclass
from textwrap import indent
from types import ModuleType
from typing import Any

import unmask
from unmask.base.config import CheckedSettings
from unmask.base.devices import name_dtype
from unmask.base.errors import UserError, suggest
from unmask.explorer import circuits, edits, features, interventions, requests, smearing, views
from unmask.explorer.session import Explorer
from unmask.net.model import Model


def write_python(explorer: Explorer, request: requests.PythonRequest) -> dict[str, str]:
    """The code of a view, given the body of its call."""
    if request.view not in VIEWS:
        raise UserError(f"there is no view {request.view!r:.60}: {suggest(request.view, VIEWS)}.")
    kind, view = VIEWS[request.view]
    body: Any = requests.read_request(kind, request.request, request.view)
    model, made = explorer.pick(body.model), explorer.edits.get(body.model)
    dtype, device = name_dtype(model.net.embedding.weight.dtype), str(model.device)
    code = _write_call("model = unmask.load", repr(model.name), device=device, dtype=dtype)
    if made is not None and request.view != "edit":
        code += _write_edit(model, made.request)
    arguments = ["model", _write(body), "print"]
    is_steered = isinstance(body, requests.WriteRequest) and body.steering.feature is not None
    if is_steered or isinstance(body, requests.FeaturesRequest):
        explorer.pick_features(body.model)
        assert explorer.features is not None
        code += _write_call(
            "dictionary = unmask.Dictionary.load", repr(explorer.features.place), repr(device)
        )
        arguments.insert(1, "dictionary")
    if request.view in PUBLIC:
        return {"code": f"import unmask\n\n{code}{view(explorer, body)}"}
    call = _write_call(f"answer = {view.__name__}", *arguments)
    code = f"{inspect.getsource(view)}\n\n{code}{call}print(answer)\n"
    return {"code": f"{_list_imports(code, view)}\n\n\n{code}"}


def _list_imports(code: str, view: Any) -> str:
    """The imports of the names that a view's function and its request find in their modules."""
    known = {**vars(requests), **inspect.unwrap(view).__globals__, "unmask": unmask}
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    modules, names = [], dict[str, list[str]]()
    for name in sorted(used & known.keys() - {view.__name__}):
        value = known[name]
        if isinstance(value, ModuleType):
            modules.append(f"import {name}")
        else:
            is_named = getattr(value, "__name__", None) == name  # a constant knows no module
            home = value.__module__ if is_named else view.__module__
            names.setdefault(home, []).append(name)
    return "\n".join(
        [*modules, *(f"from {home} import {', '.join(names[home])}" for home in sorted(names))]
    )


def _write(value: Any) -> str:
    """A value as Python, a dataclass by what differs from its defaults."""
    if not is_dataclass(value):
        return repr(value)
    name = type(value).__name__
    values = ((each.name, getattr(value, each.name), each.default) for each in fields(value))
    changed = {key: given for key, given, default in values if given != default}
    return _write_call(f"unmask.{name}" if hasattr(unmask, name) else name, **changed).rstrip()


def _write_call(function: str, *arguments: str, **settings: Any) -> str:
    """A call on one line, or with an argument on each where it would be long."""
    written = [*arguments, *(f"{name}={_write(value)}" for name, value in settings.items())]
    line = f"{function}({', '.join(written)})\n"
    if len(line) <= 100 and "\n" not in line[:-1]:
        return line
    lines = "".join(f"{each},\n" for each in written)
    return f"{function}(\n{indent(lines, '    ')})\n"


def _write_edit(model: Model, body: requests.EditFactRequest) -> str:
    """The lines that give a model the edit that it has here."""
    fact = _write(interventions.make_page_fact(body.prompt, body.subject, body.old))
    arguments = ("model", fact, repr(body.new.strip()))
    call = _write_call("edit = unmask.edit", *arguments, **edits.choose_edit(model, body))
    return f"{call}edited = edit.on(model)  # as long as this name is there\nedited.__enter__()\n"


def _write_text(explorer: Explorer, body: requests.WriteRequest) -> str:
    model, feature = explorer.pick(body.model), body.steering.feature
    draw = views.plan_draw(model, body.canvas, body.settings)
    settings = {**draw.settings, "guesses": body.top}
    call = _write_call(f"drawn = unmask.{draw.verb}", "model", repr(draw.given), **settings)
    if feature is not None:
        given = features.list_steering(model, explorer.pick_features(body.model), body)
        where = ("model", "dictionary.site", f"dictionary.w_dec[{feature}]")
        steering = _write_call("with unmask.steer", *where, **given).rstrip()
        call = f"{steering}:\n{indent(call, '    ')}"
    return (
        call + "print(drawn.texts[0] if drawn.texts else drawn.tokens[0])\n"
        "for step in range(1, drawn.num_steps + 1):\n"
        "    print(step, drawn.states[step, 0], drawn.guesses(step))\n"
    )


def _write_trace(explorer: Explorer, body: requests.TraceRequest) -> str:
    fact = interventions.make_page_fact(body.prompt, body.subject, body.answer)
    settings = interventions.make_tracing(body)
    return (
        _write_call("(grid,) = unmask.trace_steps", "model", _write(fact), _write(settings))
        + "print(grid.clean, grid.corrupted)\n"
        "for part, values in grid.scores.items():  # [position, layer]\n"
        "    print(part, values)\n"
    )


PUBLIC: dict[str, tuple[type[CheckedSettings], Any]] = {
    "write": (requests.WriteRequest, _write_text),
    "trace": (requests.TraceRequest, _write_trace),
}
"""The body of each view that is one public call, and what writes it."""
VIEWS: dict[str, tuple[type[CheckedSettings], Any]] = PUBLIC | {
    "position": (requests.PositionRequest, views.look_at_position),
    "features": (requests.FeaturesRequest, features.find_features),
    "circuit": (requests.CircuitRequest, circuits.find_circuit),
    "smearing": (requests.StatesRequest, smearing.find_smearing),
    "restore": (requests.RestoreRequest, interventions.restore),
    "move": (requests.MoveRequest, interventions.move),
    "edit": (requests.EditFactRequest, edits.try_edit),
}
"""With those whose own function is shown."""
