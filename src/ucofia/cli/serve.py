"""The verb that opens the page: serve."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucofia.cli.app import app
from ucofia.cli.options import DeviceOption, IndexOption
from ucofia.cli.show import index_here, talk
from ucofia.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    import socket

STALLED_SECONDS = 5  # a connection that is kept open without a request
MOST_CONNECTIONS = 512
LOCAL = ("127.0.0.1", "localhost", "::1")


@app.command()
def serve(
    index: IndexOption = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for the whole network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8642,
    token: Annotated[
        str | None,
        typer.Option(envvar="UCOFIA_TOKEN", help="Answer only those who know this word."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name under which browsers may reach the server.")
    ] = None,
    allow_index: Annotated[
        list[Path] | None,
        typer.Option(help="Let the page add videos from this folder. Default: from none."),
    ] = None,
    waiting: Annotated[
        int, typer.Option(min=1, help="Requests that may wait before others are sent away.")
    ] = 32,
    max_upload_mb: Annotated[
        int, typer.Option(min=1, help="Largest picture or video that may be sent.")
    ] = 256,
    device: DeviceOption = "cpu",
) -> int:
    """Open the page and the HTTP API for an index. Only this machine can reach it by default.

    Example: ucofia serve --open
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("the web server", "serve") from error
    import socket

    from ucofia.index.index import Index
    from ucofia.serve.app import create_app
    from ucofia.serve.settings import ServeSettings

    if token is not None and not token.strip():
        raise SettingError("token", token, "an empty one protects nothing")
    settings = ServeSettings(
        token=token,
        hosts=(socket.gethostname(), host, *(allow_host or ())),
        waiting=waiting,
        upload_bytes=max_upload_mb << 20,
        index_folders=tuple(allow_index or ()),
    )
    opened = Index.open(index_here(index), device=device)
    _ = opened.model  # a missing model is told now, not to the first who searches
    application = create_app(opened, settings=settings)
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        log_level="warning",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=STALLED_SECONDS,
        timeout_graceful_shutdown=STALLED_SECONDS,
    )
    listening = _listening(host, port)
    address = _address(host, listening.getsockname()[1], token)
    talk(f"{len(opened)} segments in {opened.path}")
    print(address, flush=True)
    if host not in LOCAL and token is None:
        talk("everybody in the network can search these videos; --token WORD limits it")
    if open_page:
        import webbrowser

        webbrowser.open(address)
    uvicorn.Server(config).run(sockets=[listening])
    return 0


def _listening(host: str, port: int) -> "socket.socket":
    """Take the port before anything is announced, so that a taken one is one clear line."""
    import socket

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
    from urllib.parse import quote

    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    # Behind the #, a browser keeps it to itself: it reaches no log and no other site.
    return f"http://{shown}:{port}/" + (f"#token={quote(token, safe='')}" if token else "")
