"""The verb that opens the page: serve."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from ucofia.cli.app import app
from ucofia.cli.console import index_here, show, talk
from ucofia.cli.options import DeviceOption, IndexOption
from ucofia.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from fastapi import FastAPI

STALLED_SECONDS = 5  # a connection that is kept open without a request
MOST_CONNECTIONS = 512
LOCAL = ("127.0.0.1", "localhost", "::1")
HostOption = Annotated[
    str, typer.Option(help="Address to listen on; 0.0.0.0 for the whole network.")
]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")]
TokenOption = Annotated[
    str | None,
    typer.Option(envvar="UCOFIA_TOKEN", help="Answer only those who know this word."),
]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
AllowHostOption = Annotated[
    list[str] | None, typer.Option(help="A name under which browsers may reach the server.")
]
AllowIndexOption = Annotated[
    list[Path] | None,
    typer.Option(help="Let the page add videos from this folder. Default: from none."),
]
WaitingOption = Annotated[
    int, typer.Option(min=1, help="Requests that may wait before others are sent away.")
]
UploadOption = Annotated[
    int, typer.Option(min=1, help="Largest picture or video that may be sent.")
]


@app.command()
def serve(
    index: IndexOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8642,
    token: TokenOption = None,
    open_page: OpenOption = False,
    allow_host: AllowHostOption = None,
    allow_index: AllowIndexOption = None,
    waiting: WaitingOption = 32,
    max_upload_mb: UploadOption = 256,
    device: DeviceOption = "cpu",
) -> int:
    """Open the page and the HTTP API for an index. Only this machine can reach it by default.

    Example: ucofia serve --open
    """
    _require_extra()
    from ucofia.index.index import Index
    from ucofia.serve.app import create_app
    from ucofia.serve.settings import ServeSettings

    if token is not None and not token.strip():
        raise typer.BadParameter("an empty one protects nothing", param_hint="--token")
    settings = ServeSettings(
        token=token,
        hosts=(socket.gethostname(), host, *(allow_host or ())),
        waiting=waiting,
        upload_bytes=max_upload_mb << 20,
        index_folders=tuple(allow_index or ()),
    )
    opened = Index.open(index_here(index), device=device)
    _ = opened.model  # a missing model is told now, not to the first who searches
    listening = _listening(host, port)
    talk(f"{len(opened)} segments in {opened.path}")
    _announce(host, listening.getsockname()[1], token, open_page=open_page)
    _run(create_app(opened, settings=settings), listening)
    return 0


def _require_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the web server", "serve") from error


def _announce(host: str, port: int, token: str | None, *, open_page: bool) -> None:
    address = _address(host, port, token)
    show(address)
    if host not in LOCAL and token is None:
        talk("everybody in the network can search these videos; --token WORD limits it")
    if open_page:
        import webbrowser

        webbrowser.open(address)


def _run(application: "FastAPI", listening: socket.socket) -> None:
    """Answer requests until somebody interrupts."""
    import uvicorn

    config = uvicorn.Config(
        application,
        log_level="warning",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=STALLED_SECONDS,
        timeout_graceful_shutdown=STALLED_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    """Take the port before anything is announced, so that a taken one is one clear line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        rule = f"it cannot be listened on ({error.strerror}); choose another with --port"
        raise SettingError("address", f"{host}:{port}", rule) from error
    return listening


def _address(host: str, port: int, token: str | None) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    # Behind the #, a browser keeps it to itself: it reaches no log and no other site.
    return f"http://{shown}:{port}/" + (f"#token={quote(token, safe='')}" if token else "")
