"""`mlx-tools serve`: the gateway, until it is stopped."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlx_tools.cli import options
from mlx_tools.cli.options import option
from mlx_tools.cli.output import note
from mlx_tools.errors import EXIT_OK, MissingDependency, UsageError

if TYPE_CHECKING:
    from mlx_tools.app import Configuration

app = typer.Typer(add_completion=False)

GRACE_SECONDS = 30
"""How long requests may take to end once the gateway is told to."""


@app.command()
@options.with_settings(*options.GATEWAY, *options.BACKEND, *options.WRITING)
def serve(
    api_key_file: Annotated[
        Path | None,
        option("--api-key-file FILE", "A file with the key that clients must send."),
    ] = None,
    *,
    options_given: options.Options,
) -> int:
    """Serve the interfaces that clients and agents speak, until stopped."""
    from mlx_tools.app import is_loopback

    run = options.run_options(options_given, tools=False)
    own = run.configuration.settings.gateway
    key = _key(run.configuration, api_key_file)
    if not key and not is_loopback(own.host):
        raise UsageError(
            f"{own.host} can be reached from other machines, and there is no key",
            hint="name a file that holds one with --api-key-file",
        )
    try:
        import anyio
        import uvicorn

        from mlx_tools.gateway.server import Gateway, application
    except ImportError as error:
        raise MissingDependency(
            f"the gateway needs {error.name}", hint="pip install 'mlx-tools[gateway]'"
        ) from error
    from mlx_tools.app import Door
    from mlx_tools.gateway.admission import Admission
    from mlx_tools.gateway.served_models import ServedModels

    hosts = {own.host, *own.hosts}
    gateway = Gateway(
        ServedModels(run, note), Admission(own.concurrency, own.queue, time.monotonic)
    )
    app = application(gateway, Door(hosts=hosts, origins=own.origins, key=key))
    listening = _listen(own.host, own.port)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    anyio.run(_serve, uvicorn.Server(config), gateway, listening)
    return EXIT_OK


async def _serve(server: Any, gateway: Any, listening: socket.socket) -> None:
    with listening:
        await gateway.models.open()
        host, port = listening.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        note(f"{gateway.models.rows()[0]['id']} is served at http://{name}:{port}/v1")
        await server.serve(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        said = f"{host}:{port}: {error.strerror or error}"
        raise UsageError(said, hint="name another port with --port; 0 takes a free one") from None


def _key(configuration: Configuration, file: Path | None) -> str:
    if file is None:
        return configuration.settings.gateway.api_key or ""
    try:
        key = file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file}: {error}", hint="write the key into it, and nothing else"
        ) from None
    if not key or not key.isascii() or any(c.isspace() for c in key):
        raise UsageError(f"{file} holds no key", hint="write one line without spaces into it")
    return key
