"""`mlx-tools serve`.

The gateway, until it is stopped, or with every session of the user.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from mlx_tools.app import config
from mlx_tools.cli import options
from mlx_tools.cli.installing import note_left_out, program, tell_left
from mlx_tools.cli.output import note
from mlx_tools.errors import MissingDependency, UsageError
from mlx_tools.paths import expand_user, folder_exists, to_install
from mlx_tools.store import RootName

if TYPE_CHECKING:
    from mlx_tools.app import Autostart, RunOptions

app = typer.Typer(add_completion=False)


@app.callback(invoke_without_command=True)
@options.with_settings(
    *(*options.GATEWAY, *options.SERVED),
    *("model.chat_format", "policy.local_only", "policy.dry_run"),
)
def serve(context: typer.Context, *, options_given: options.Options) -> None:
    """Serve the interfaces that clients and agents speak, until stopped."""
    if context.invoked_subcommand is not None:
        context.obj = options_given
        return
    run, key = check_options(options_given)
    import anyio

    with require_extra("gateway", "the gateway"):
        from mlx_tools.gateway import serve
    # A command ends before its garbage matters (`mlx_tools.cli.root.run`). Clients of a server that
    # come and go leave cycles of objects, which should be collected while they are few.
    gc.freeze()
    gc.set_threshold(700, 5, 5)
    anyio.run(serve, run, key, note)


@app.command()
def install(context: typer.Context) -> int:
    """Start the gateway now and with every session of yours.

    Options come before this word.
    """
    check_options(context.obj)
    command = [*program(), "serve", *command_flags(context.obj)]
    autostart = _autostart()
    for name, value in autostart.variables.items():
        note(f"it gets {name}={value}")
    note_left_out(autostart)
    left = autostart.install(command)
    note(f"{next(iter(autostart.texts(command)))} starts it")
    return tell_left(left)


@app.command()
def uninstall() -> int:
    """Stop the gateway that was installed, and start it no more."""
    return tell_left(_autostart().uninstall())


def _autostart() -> Autostart:
    from mlx_tools.app import Autostart

    return Autostart(name="serve")


def command_flags(options_given: options.Options) -> list[str]:
    """Return the options as they were typed, with absolute paths."""
    flags: list[str] = []
    for key, value in options_given.items():
        setting = config.table()[key].setting
        flag = setting.flag
        if setting.secret or (key == "model.name" and folder_exists(str(value))):
            value = str(expand_user(str(value)).absolute())  # it starts in another folder
        if isinstance(value, bool):
            flags += [flag] if value else []
        else:
            values = [value] if isinstance(value, str) else value
            if key == "tools.roots":
                values = [RootName.parse(one).absolute() for one in values]
            flags += [word for one in values for word in (flag, one)]
    return flags


def check_options(options_given: options.Options) -> tuple[RunOptions, str]:
    """Return the options and the key.

    Raises:
        UsageError: anybody could use this gateway.
    """
    run = options.run_options(options_given)
    gateway = run.configuration.settings.gateway
    refuse_without_key(gateway.host, gateway.api_key)
    return run, gateway.api_key or ""


@contextmanager
def require_extra(extra: str, command: str) -> Iterator[None]:
    """Raise `MissingDependency` if an import within the block needs an extra."""
    try:
        yield
    except ImportError as error:
        message = f"{command} needs {error.name}"
        raise MissingDependency(message, hint=to_install(extra)) from error


def refuse_without_key(host: str, key: str | None) -> None:
    """Raise `UsageError` for an address that other machines reach without a key."""
    from mlx_tools.app import is_loopback

    if not key and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines, and there is no key",
            hint="name a file that holds one with --api-key-file",
        )
