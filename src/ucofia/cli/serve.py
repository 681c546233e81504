"""`ucofia serve` (page and HTTP API) and `ucofia mcp` (Model Context Protocol)."""

import logging
import os
import socket
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import typer

from ucofia.cli.app import app
from ucofia.cli.console import loading, print_message, show
from ucofia.cli.locate import find_index
from ucofia.cli.options import ClusterOption, DeviceOption, IndexOption
from ucofia.errors import MissingExtraError, NoIndexError, SettingError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ucofia.index.index import Index
    from ucofia.model import Model
    from ucofia.serve.settings import ServeSettings

KEEP_ALIVE_SECONDS = 5  # a connection that is kept open without a request
IN_CONTAINER = "/.dockerenv"  # Docker puts it there
LOCAL = ("127.0.0.1", "localhost", "::1")
IndexesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--index",
        help="Folder of an index; repeated, each gets a page. Default: as for search.",
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option(help="Address to listen on; 0.0.0.0 for the whole network. Default: 127.0.0.1."),
]
PortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port; 0 for any free one. Default: 8642.")
]
TokenOption = Annotated[
    str | None,
    typer.Option(envvar="UCOFIA_TOKEN", help="Answer only requests with this token."),
]
OpenOption = Annotated[
    bool, typer.Option("--open", help="Open the page in a browser.", metavar="")
]
AllowHostOption = Annotated[
    list[str] | None, typer.Option(help="A name under which browsers may reach the server.")
]
AllowIndexOption = Annotated[
    list[Path] | None,
    typer.Option(help="Let the page add videos from this folder. Default: from none."),
]
WaitingOption = Annotated[
    int | None,
    typer.Option(min=1, help="Requests that may wait; more are refused (503). Default: 32."),
]
UploadOption = Annotated[
    int | None,
    typer.Option(min=1, help="Largest upload in MB. Default: 256."),
]
BasePathOption = Annotated[
    str | None, typer.Option(help="Path of the page behind a proxy, like /videos.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(help="TOML file with settings. Default: $UCOFIA_SERVE_CONFIG, or none."),
]
LogLevelOption = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(help="Least severity that is logged. Default: warning."),
]
AccessLogOption = Annotated[
    Literal["none", "text", "json"] | None,
    typer.Option(help="One line per request on stderr. Default: none."),
]
ServeDeviceOption = Annotated[
    str | None, typer.Option("--device", help="Where the model runs: cpu, cuda, mps.")
]


@app.command()
def serve(
    index: IndexesOption = None,
    host: HostOption = None,
    port: PortOption = None,
    token: TokenOption = None,
    open_page: OpenOption = False,
    allow_host: AllowHostOption = None,
    allow_index: AllowIndexOption = None,
    waiting: WaitingOption = None,
    max_upload_mb: UploadOption = None,
    base_path: BasePathOption = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = None,
    access_log: AccessLogOption = None,
    cluster: ClusterOption = None,
    device: ServeDeviceOption = None,
) -> int:
    """Open the page and the HTTP API for an index. Only this machine can reach it by default.

    Every setting can also come from the environment (UCOFIA_SERVE_PORT=...) or a TOML file.

    Example: ucofia serve --open
    """
    _require_serve()
    from ucofia.serve.settings import ServeSettings

    settings = ServeSettings.load(
        config,
        indexes=tuple(index) if index else None,
        host=host,
        port=port,
        token=token,
        hosts=tuple(allow_host) if allow_host else None,
        waiting=waiting,
        upload_bytes=max_upload_mb << 20 if max_upload_mb else None,
        index_folders=tuple(allow_index) if allow_index else None,
        base_path=base_path,
        log_level=log_level,
        access_log=access_log,
        cluster=cluster,
        device=device,
    )
    hosts = (*settings.hosts, socket.gethostname(), settings.host)
    settings = settings.model_copy(update={"hosts": hosts})
    _log(settings)
    places = _find_indexes(settings)
    with loading():
        from ucofia.serve.app import create_app  # costs torch

        opened = _open_indexes(places, settings)
    listening = _listening(settings.host, settings.port)
    for one in opened.values():
        print_message(f"{len(one)} segments in {one.path}")
    with _sharded(opened, settings) as asked:
        indexes = next(iter(asked.values())) if len(asked) == 1 else asked
        _announce(settings, listening.getsockname()[1], open_page=open_page)
        _run(create_app(indexes, settings=settings), settings, listening)
    return 0


@app.command()
def mcp(index: IndexOption = None, device: DeviceOption = "cpu") -> int:
    """Let an assistant search an index, with the Model Context Protocol over stdin and stdout.

    Read-only: search, describe, explain, info.

    Example: ucofia mcp --index ~/Videos/.ucofia
    """
    try:
        import mcp.server  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the server for assistants", "mcp") from error
    from ucofia.index.index import Index
    from ucofia.serve.mcp_server import run

    run(Index.open(find_index(index), device=device))
    return 0


def _require_serve() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import pydantic_settings  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the web server", "serve") from error


def _find_indexes(settings: "ServeSettings") -> Sequence[str]:
    """Return where the indexes are; a missing one is an error before torch is imported."""
    try:
        return [find_index(place) for place in settings.indexes or (None,)]
    except NoIndexError:
        if os.path.exists(IN_CONTAINER):
            print_message("no index yet; beside this container: docker compose run --rm index")
        raise


def _open_indexes(places: Sequence[str], settings: "ServeSettings") -> "dict[str, Index]":
    """Open all indexes by their names; those of the same model share it."""
    from ucofia.index.index import Index

    opened: dict[str, Index] = {}
    models: dict[str, Model] = {}
    for place in places:
        one = Index.open(place, device=settings.device)
        known = models.get(one.settings.fingerprint)
        if known is not None:
            one = Index.open(place, known)
        models[one.settings.fingerprint] = one.model  # missing: an error now
        opened[_name(one.path, opened)] = one
    return opened


@contextmanager
def _sharded(
    opened: "dict[str, Index]", settings: "ServeSettings"
) -> "Iterator[dict[str, Index]]":
    """Let a cluster do the searching, if one is named."""
    cluster = settings.cluster
    if cluster is None:
        yield opened
        return
    from ucofia.cluster.search import sharded

    print_message("spreading the segments over the cluster")
    with ExitStack() as stack:
        enter, share, room = stack.enter_context, len(opened), settings.cache_gb
        yield {
            name: enter(sharded(one, cluster, share=share, cache_gb=room))
            for name, one in opened.items()
        }


def _name(path: str, taken: Container[str]) -> str:
    """Name an index in addresses: by its folder, of a hidden one by the folder above."""
    parts = [part for part in path.replace("\\", "/").split("/") if part]
    last = next((part for part in reversed(parts) if not part.startswith(".")), "index")
    base = "".join(c if c.isalnum() or c in "-_" else "-" for c in last.lower()).strip("-")
    base = base if base not in ("", "api", "media", "assets", "docs", "metrics") else "index"
    numbered = (base if n == 1 else f"{base}-{n}" for n in range(1, 10_000))
    return next(name for name in numbered if name not in taken)


def _log(settings: "ServeSettings") -> None:
    """Write the log, and if asked for the requests, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    ours = logging.getLogger("ucofia")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(settings.log_level.upper())
    lines = logging.StreamHandler(sys.stderr)
    access = logging.getLogger("ucofia.access")
    access.handlers, access.propagate = [lines], False
    access.setLevel(logging.INFO)


def _announce(settings: "ServeSettings", port: int, *, open_page: bool) -> None:
    address = _address(settings.host, port, settings.token, settings.base_path)
    show(address)
    if settings.host not in LOCAL and settings.token is None:
        print_message("everybody in the network can search these videos; --token WORD limits it")
    if open_page:
        import webbrowser

        webbrowser.open(address)


def _run(application: "FastAPI", settings: "ServeSettings", listening: socket.socket) -> None:
    """Answer requests until an interrupt; those under way are answered first."""
    import uvicorn

    from ucofia.serve.connections import protocol

    config = uvicorn.Config(
        application,
        http=protocol(settings),
        ws="none",  # whatever is installed: an upgraded connection would leave the limits
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        proxy_headers=bool(os.environ.get("FORWARDED_ALLOW_IPS")),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    """Take the port before anything is announced, so that a taken one is one clear line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # requests queue from the moment the address is shown
    except (OSError, ValueError, TypeError, OverflowError) as error:  # odd names and ports
        listening.close()
        reason = error.strerror if isinstance(error, OSError) else error
        rule = f"it cannot be listened on ({reason}); choose another with --host or --port"
        raise SettingError("address", f"{host}:{port}", rule) from error
    return listening


def _address(host: str, port: int, token: str | None, base_path: str = "") -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    # Behind the #, a browser keeps it to itself: it reaches no log and no other site.
    secret = f"#token={quote(token, safe='')}" if token else ""
    return f"http://{shown}:{port}{base_path}/{secret}"
