"""`mlx-tools serve`: the gateway, until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_tools.cli import options
from mlx_tools.cli.options import option
from mlx_tools.cli.output import note
from mlx_tools.errors import EXIT_OK, MissingDependency, UsageError

if TYPE_CHECKING:
    from mlx_tools.app import Configuration

app = typer.Typer(add_completion=False)


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
    import anyio

    from mlx_tools.app import is_loopback

    run = options.run_options(options_given, tools=False)
    host = run.configuration.settings.gateway.host
    key = _key(run.configuration, api_key_file)
    if not key and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines, and there is no key",
            hint="name a file that holds one with --api-key-file",
        )
    try:
        from mlx_tools.gateway import serve
    except ImportError as error:
        needs = f"the gateway needs {error.name}"
        raise MissingDependency(needs, hint="pip install 'mlx-tools[gateway]'") from error
    anyio.run(serve, run, key, note)
    return EXIT_OK


def _key(configuration: Configuration, file: Path | None) -> str:
    if file is None:
        return configuration.settings.gateway.api_key or ""
    try:
        key = file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or error
        raise UsageError(f"{file}: {problem}", hint="a file that holds the key") from None
    if not key or not key.isascii() or any(character.isspace() for character in key):
        raise UsageError(f"{file} holds no key", hint="write one line without spaces into it")
    return key
