"""The explorer's server: its calls, their streams of events, and who may call.

It listens on this machine alone. Every call carries a token that only the printed address has; a
Host that is not local and an Origin that is not the server's own are refused, so that neither a
page of another site nor a name that points here can use a model through somebody's browser.
"""

import asyncio
import hmac
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from unmask.base.config import CheckedSettings
from unmask.base.errors import UserError
from unmask.explorer import circuits, edits, features, interventions, smearing, views
from unmask.explorer import requests as bodies
from unmask.explorer.code import write_python
from unmask.explorer.session import (
    Explorer,
    describe_edits,
    describe_start,
    draw_run,
    list_measured_runs,
)
from unmask.explorer.worker import FAILURE, MISTAKE, RESULT, BusyError, Call, Work, Worker
from unmask.net.model import Model

LOCAL = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""What a Host may be: a name of this machine and perhaps a port, and nothing besides."""
MOST_BYTES = 1_000_000
"""The largest body of a request."""
MOST_DISCARDED = 64_000_000
"""How much of a body that is too large is read and dropped, for the client to get its answer."""
STATIC = files("unmask.explorer") / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
RUN_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; frame-ancestors 'self'"
)
"""A run's report is one file with its scripts inside; in a sandbox it has an origin of its own."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Compute = Callable[[Explorer, Any, Any], Any]


def _on_model(function: Callable[[Model, Any, Any], Any]) -> Compute:
    """A view of a model as a call of the explorer that has it."""
    return lambda explorer, body, emit: function(explorer.pick(body.model), body, emit)


CALLS: dict[str, tuple[type[CheckedSettings], Compute]] = {
    "position": (bodies.PositionRequest, _on_model(views.look_at_position)),
    "restore": (bodies.RestoreRequest, _on_model(interventions.restore)),
    "move": (bodies.MoveRequest, _on_model(interventions.move)),
    "features": (bodies.FeaturesRequest, features.show_features),
    "undo": (bodies.UndoRequest, edits.undo),
    "edits": (bodies.EditsRequest, lambda explorer, body, emit: describe_edits(explorer)),
}
"""Calls that compute one answer: what they are sent, and what they do with it."""
STREAMS: dict[str, tuple[type[CheckedSettings], Compute]] = {
    "write": (bodies.WriteRequest, features.write_steered),
    "circuit": (bodies.CircuitRequest, _on_model(circuits.find_circuit)),
    "smearing": (bodies.StatesRequest, _on_model(smearing.find_smearing)),
    "trace": (bodies.TraceRequest, _on_model(interventions.trace)),
    "edit": (bodies.EditFactRequest, edits.edit_fact),
}
"""Calls that answer by a stream of events."""


class RefusedError(UserError):
    """A request that is not answered, with the status that says why."""

    def __init__(self, status: int, message: str):
        self.status = status
        super().__init__(message)


def make_app(explorer: Explorer, worker: Worker, token: str) -> "AccessGuard":
    """The application; `token` is what its callers must know."""
    start = describe_start(explorer)

    async def show_page(request: HttpRequest) -> Response:
        return HTMLResponse((STATIC / "index.html").read_text("utf-8"))

    async def show_start(request: HttpRequest) -> Response:
        now = {"runs": list_measured_runs(explorer), "edits": describe_edits(explorer)}
        return JSONResponse({**start, **now})

    async def show_run(request: HttpRequest) -> Response:
        name = request.path_params["name"]
        answer = await _compute(worker, request, lambda emit: draw_run(explorer, name))
        return HTMLResponse(answer, headers={"Content-Security-Policy": RUN_POLICY})

    async def tokenize(request: HttpRequest) -> Response:
        body = await _read(request, bodies.TokenizeRequest)
        return JSONResponse(views.tokenize(explorer.pick(body.model), body))

    async def compute(request: HttpRequest) -> Response:
        kind, function = CALLS[_name(request)]
        body = await _read(request, kind)
        work = partial(function, explorer, body)
        return JSONResponse(await _compute(worker, request, work))

    async def stream(request: HttpRequest) -> Response:
        kind, function = STREAMS[_name(request)]
        body = await _read(request, kind)
        return EventStream(worker, partial(function, explorer, body))

    async def show_code(request: HttpRequest) -> Response:
        body = await _read(request, bodies.PythonRequest)
        return JSONResponse(write_python(explorer, body))

    routes = [
        Route("/", show_page),
        Route("/api/start", show_start),
        Route("/api/runs/{name}", show_run),
        Route("/api/tokenize", tokenize, methods=["POST"]),
        Route("/api/python", show_code, methods=["POST"]),
        *(Route(f"/api/{name}", compute, methods=["POST"]) for name in CALLS),
        *(Route(f"/api/{name}", stream, methods=["POST"]) for name in STREAMS),
        Mount("/static", StaticFiles(directory=str(STATIC))),
    ]
    handlers = {UserError: _explain, ClientDisconnect: _say_nothing, HTTPException: _say_missing}
    return AccessGuard(Starlette(routes=routes, exception_handlers=handlers), token)


def _name(request: HttpRequest) -> str:
    return request.url.path.removeprefix("/api/")


async def _explain(request: HttpRequest, error: Exception) -> Response:
    """A mistake as the page shows it."""
    status = getattr(error, "status", 503 if isinstance(error, BusyError) else 400)
    return JSONResponse({"error": str(error)}, status)


async def _say_missing(request: HttpRequest, error: Exception) -> Response:
    """A path, or a method of it, that is not there."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    name, calls = f"{request.method} {request.url.path}", ", ".join([*CALLS, *STREAMS])
    text = f"{name!r:.80} is nothing that the explorer has: expected its page or a call ({calls})."
    return JSONResponse({"error": text}, status)


async def _say_nothing(request: HttpRequest, error: Exception) -> Response:
    """A client that left while it was sending: nobody reads this."""
    return Response(status_code=499)


async def _read(request: HttpRequest, kind: type[bodies.Body]) -> bodies.Body:
    """The request's body, checked; one that is too large is read to its end and dropped."""
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= MOST_BYTES:
            body += chunk
        elif size > MOST_DISCARDED:
            break
    if size > MOST_BYTES:
        raise RefusedError(413, f"the request has more than {MOST_BYTES:,} bytes: send less.")
    return bodies.read_request(kind, bodies.parse_body(bytes(body)), _name(request))


async def _compute(worker: Worker, request: HttpRequest, work: Work) -> Any:
    """What the work returns, unless the client leaves before it is done."""
    call = Call(work)
    worker.submit(call)
    async with _Listener(worker, call, request.receive) as listener:
        while (event := await listener.next()) is not None:
            name, data = event
            if name == RESULT:
                return data
            if name == MISTAKE:
                raise UserError(data)
            if name == FAILURE:
                raise RefusedError(500, data)
    raise RefusedError(499, "the client is gone.")


class _Listener:
    """Events of a call as long as its client is there; leaving the block gives the call up."""

    def __init__(self, worker: Worker, call: Call, receive: Receive):
        self.worker, self.call, self.receive = worker, call, receive

    async def __aenter__(self) -> "_Listener":
        self.gone = asyncio.ensure_future(self._wait_for_end())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.worker.leave(self.call)
        self.gone.cancel()

    async def _wait_for_end(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def next(self) -> tuple[str, Any] | None:
        """The next event; None where the client is gone."""
        event = asyncio.ensure_future(self.call.events.get())
        await asyncio.wait({event, self.gone}, return_when=asyncio.FIRST_COMPLETED)
        if event.done():
            return event.result()
        event.cancel()
        return None


class EventStream(Response):
    """The events of a call, each sent as it comes; the call ends with the connection."""

    def __init__(self, worker: Worker, work: Work):
        super().__init__(media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.worker, self.work = worker, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self.work)
        self.worker.submit(call)
        async with _Listener(self.worker, call, receive) as listener:
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
            while (event := await listener.next()) is not None:
                name, data = event
                if name == RESULT:
                    break
                is_last = name in (MISTAKE, FAILURE)
                text = json.dumps({"error": data} if is_last else data, ensure_ascii=False)
                line = f"event: {'error' if is_last else name}\ndata: {text}\n\n"
                await send({"type": "http.response.body", "body": line.encode(), "more_body": True})
                if is_last:
                    break
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class AccessGuard:
    """Lets through what comes from this machine with the token, and adds headers to answers."""

    def __init__(self, app: Starlette, token: str):
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(scope)
        except RefusedError as error:
            answer: Response = PlainTextResponse(str(error), error.status)
            if scope["path"].startswith("/api/"):
                answer = JSONResponse({"error": str(error)}, error.status)
            await answer(scope, receive, send_guarded)
            return
        await self.app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> None:
        request, path = HttpRequest(scope), scope["path"]
        host = ", ".join(request.headers.getlist("host"))
        origins = request.headers.getlist("origin")
        if not LOCAL.fullmatch(host):
            raise RefusedError(
                403, f"the host {host!r:.80} is not this machine: use the address that was printed."
            )
        if origins not in ([], [f"http://{host}"]):
            raise RefusedError(
                403,
                f"the request comes from {', '.join(origins)!r:.80}: only the explorer's own page "
                "may call.",
            )
        if path.startswith("/static/"):
            return
        given = request.headers.get("x-unmask-token", "")
        # A page and a frame cannot send a header: their address has the token.
        if path == "/" or path.startswith("/api/runs/"):
            given = given or request.query_params.get("token", "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise RefusedError(
                403,
                "the token is missing or wrong: open the address that `unmask explore` printed.",
            )


_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
