"""`unmask explore`: a page in the browser over a model and its twin."""

import secrets
import socket
import webbrowser
from contextlib import closing
from pathlib import Path

import typer

from unmask.base.errors import UserError
from unmask.cli.options import list_models
from unmask.study.settings import SHIPPED_MODEL, SHIPPED_TWIN

HOST = "127.0.0.1"


def explore(
    model: str | None = typer.Argument(
        None,
        metavar="MODEL",
        help="A model's name, folder or file; by default the shipped pair.",
        autocompletion=list_models,
    ),
    twin: str | None = typer.Option(
        None, help="Another model, which is shown beside it; MODEL:causal shares its weights."
    ),
    runs: Path | None = typer.Option(None, help="A run folder, or a folder of them, to look at."),
    dictionary: Path | None = typer.Option(
        None,
        help="Features of MODEL's states, a folder in SAELens' format; the shipped model has some.",
    ),
    port: int = typer.Option(0, help="The port to listen on; 0 for one that is free."),
    no_open: bool = typer.Option(False, "--no-open", help="Do not open a browser."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps."),
    dtype: str = typer.Option("auto", help="Dtype; auto suits file and device."),
) -> None:
    """Explore a model in the browser: watch it write, open positions, trace facts.

    The page is served to this machine alone; its address, with a token, is the last line printed.
    """
    import uvicorn

    from unmask.explorer.server import make_app
    from unmask.explorer.session import Explorer, load_readings, open_dictionary
    from unmask.explorer.worker import Worker

    if runs is not None and not runs.is_dir():
        raise UserError(f"there is no folder {str(runs)!r:.200}: expected runs to look at.")
    with closing(_listen(port)) as listener:
        names = {"model": model, "twin": twin}
        if model is None:
            names = {"model": SHIPPED_MODEL, "twin": twin or SHIPPED_TWIN}
        models = load_readings(names, device, dtype)
        worker, token = Worker(), secrets.token_urlsafe(24)
        features = open_dictionary(models["model"], None if dictionary is None else str(dictionary))
        app = make_app(Explorer(models, runs, features), worker, token)
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,  # the page's address has the token in it
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=2,
        )
        address = f"http://{HOST}:{listener.getsockname()[1]}/?token={token}"
        print(address, flush=True)
        if not no_open:
            webbrowser.open(address)
        try:
            uvicorn.Server(settings).run(sockets=[listener])
        finally:
            worker.close()


def _listen(port: int) -> socket.socket:
    """A socket that is bound to this machine alone."""
    if not 0 <= port <= 65535:
        raise UserError(f"the port {port} was given: expected 0 to 65535.")
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        raise UserError(
            f"the port {port} cannot be used ({error.strerror}): name another by --port, or leave "
            "it out."
        ) from None
