"""`mlx-tools connect`: settings with which a client asks the gateway."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import Struct

from mlx_tools.app import config
from mlx_tools.backends import parse_address
from mlx_tools.cli.options import AsJson, argument, option
from mlx_tools.cli.output import note, print_json, print_text, warn_all
from mlx_tools.errors import ConfigError, UsageError
from mlx_tools.paths import private_dir, read_regular, write_whole
from mlx_tools.plugins.connect.client_files import (
    CLIENTS,
    ClientPlan,
    FileChanges,
    GatewayTarget,
    ListItem,
    ValueChange,
)
from mlx_tools.plugins.connect.json_edit import read_json, set_json
from mlx_tools.plugins.connect.toml_edit import read_toml, set_toml
from mlx_tools.plugins.connect.yaml_edit import read_yaml, set_yaml

app = typer.Typer(add_completion=False)

_LIST_SECONDS: Final = 3.0
"""Seconds that a gateway on this machine may take to list its models."""

_NEW_FILE_MODE: Final = 0o600
"""The mode of a file that may hold a key."""


class EditedFile(Struct, frozen=True):
    """A client's file before and after.

    Attributes:
        path: Where it is.
        old: Its text; None if there is no such file.
        new: Its text with the changes.
        snippet: What the changes alone come to.
    """

    path: Path
    old: str | None
    new: str
    snippet: str

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty if there is none."""
        lines = difflib.unified_diff(
            (self.old or "").splitlines(keepends=True),
            self.new.splitlines(keepends=True),
            str(self.path) if self.old is not None else "/dev/null",
            str(self.path),
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


@app.command()
def connect(
    client: Annotated[
        str | None,
        argument("CLIENT", f"One of {', '.join(CLIENTS)}.", autocompletion=lambda: [*CLIENTS]),
    ] = None,
    url: Annotated[
        str | None, option("--url URL", "The gateway's address, as serve says it at its start.")
    ] = None,
    write: Annotated[bool, option("--write", "Change the client's files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print or write the settings with which a client asks the gateway.

    The change is shown before anything is written. What else a file holds stays as it is.
    """
    if client is None:
        raise UsageError("no client is named", hint=f"one of {', '.join(CLIENTS)}")
    if client not in CLIENTS:
        raise UsageError(f"unknown client {client[:80]!r}", hint=f"one of {', '.join(CLIENTS)}")
    target, is_running = _target(url)
    plan = CLIENTS[client](target)
    files = [_edit(file) for file in plan.files]
    if not is_running:
        note(
            f"no gateway answers at {target.url}: start one with mlx-tools serve; the size of the "
            f"model's context is not known, and {target.tokens} tokens are named"
        )
    if write and not files:
        raise UsageError(f"{plan.title} has no file for this", hint="set the variables instead")
    changed = [file for file in files if file.new != file.old]
    if not as_json:
        _show(plan, files, target, is_written=write)
    if write:
        for file in changed:
            _write(file)
            if not as_json:
                note(f"{file.path} was written")
    if as_json:
        print_json(_as_json(client, plan, files, target, is_running, is_written=write))


def _target(url: str | None) -> tuple[GatewayTarget, bool]:
    """Return the gateway to connect to, and True if it answers.

    Raises:
        UsageError: this is no address of a gateway.
    """
    loaded = config.load()
    warn_all(loaded.warnings)
    gateway = loaded.settings.gateway
    named = parse_address(url or f"http://{_host_text(gateway.host)}:{gateway.port}")
    if named.interface:
        raise UsageError(f"{url} is the address of no gateway", hint=f"--url {named}")
    address = str(named)
    key = gateway.api_key or ""
    context, is_running = _look(address, key)
    variable = "MLX_TOOLS_GATEWAY_API_KEY" if key else ""
    return GatewayTarget(address, context, "KEY" if key else "none", variable), is_running


def _host_text(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"[{host}]" if ":" in host else host


def _look(address: str, key: str) -> tuple[int | None, bool]:
    """Return the context of a gateway's first model, and True if the gateway answers."""
    import httpx

    headers = {"authorization": f"Bearer {key}"} if key else {}
    verify = not address.startswith("http:")  # to load certificates takes 15 to 50 ms
    try:
        response = httpx.get(
            f"{address}/v1/models",
            headers=headers,
            timeout=_LIST_SECONDS,
            trust_env=False,
            verify=verify,
        )
        rows = response.json().get("data") if response.status_code == 200 else None
        context = rows[0].get("context_length") if rows else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError, LookupError, TypeError):
        return None, False
    return (context if type(context) is int and context > 0 else None), rows is not None


# --- files --------------------------------------------------------------------------------------


def _edit(file: FileChanges) -> EditedFile:
    """Return a file with its changes.

    Raises ConfigError if it cannot be read or changed.
    """
    old = _read(file.path)
    try:
        new, snippet = old or "", ""
        for change in file.changes:
            new = _apply(change, file.format, new)
            snippet = _apply(change, file.format, snippet)
    except ConfigError as error:
        problem = f"{file.path} was not changed: {error.message}"
        hint = "correct the file; or move it away, and the text to add by hand is printed"
        raise ConfigError(problem, hint=hint) from None
    return EditedFile(file.path, old, new, snippet)


def _read(path: Path) -> str | None:
    """Return a file's text, None if there is none. Line ends stay as they are."""
    try:
        return read_regular(path).decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text, and was not changed") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None


_FORMATS: Final[Mapping[str, tuple[Callable[[str], Any], Callable[..., str]]]] = {
    "json": (read_json, set_json),
    "toml": (read_toml, set_toml),
    "yaml": (read_yaml, set_yaml),
}
"""The reader of each format, and the function that sets one value."""


def _apply(change: ValueChange, form: str, text: str) -> str:
    """Make one change to the text, unless the value is there already."""
    read, edit = _FORMATS[form]
    holder = read(text) if text.strip() else None
    steps: list[str | int] = []
    for step in change.path:
        index_or_key = _index(step, holder) if isinstance(step, ListItem) else step
        steps.append(index_or_key)
        holder = _inner(holder, index_or_key)
    is_settled = holder is not None and (change.is_default or holder == change.value)
    return text if is_settled else edit(text, tuple(steps), change.value)


def _index(item: ListItem, holder: Any) -> int:
    """Return the index of the item that is meant, or the one after the last."""
    items = holder if isinstance(holder, list) else []
    for index, other in enumerate(items):
        if isinstance(other, dict) and item.match.items() <= other.items():
            return index
    return len(items)


def _inner(holder: Any, step: str | int) -> Any:
    if isinstance(holder, list) and isinstance(step, int):
        return holder[step] if step < len(holder) else None
    return holder.get(step) if isinstance(holder, dict) else None


def _write(file: EditedFile) -> None:
    """Write a file whole, if it is still what was shown. A link stays one."""
    if _read(file.path) != file.old:
        raise ConfigError(f"{file.path} has changed meanwhile, and was not written")
    private_dir(file.path.parent)
    path = file.path.resolve()
    mode = _NEW_FILE_MODE if file.old is None else path.stat().st_mode & 0o777
    try:
        write_whole(path, file.new.encode("utf-8"), mode)
    except OSError as error:
        raise ConfigError(f"{file.path} cannot be written: {error.strerror or error}") from None


# --- what is shown ------------------------------------------------------------------------------


def _show(
    plan: ClientPlan, files: Sequence[EditedFile], target: GatewayTarget, *, is_written: bool
) -> None:
    """Print the configuration, or with ``is_written`` the changes."""
    for file in files:
        if file.new == file.old:
            print_text(f"# {file.path} says this already")
        elif is_written or file.old is not None:
            print_text(file.diff.rstrip("\n"), exact=True)
        else:
            print_text(f"# {file.path}")
            print_text(file.new.rstrip("\n"), exact=True)
    for name, value in plan.variables.items():
        print_text(f"export {name}={shlex.quote(value)}", exact=True)
    for line in plan.steps:
        note(line)
    if target.key_variable and target.key in "".join(file.new for file in files):
        note(f"put the gateway's key in place of {target.key}")
    if files and not is_written and any(file.new != file.old for file in files):
        note("nothing was written; --write does it")
    if plan.commands and sys.stderr.isatty():
        note(f"then: {'; '.join(plan.commands)}")


def _as_json(
    client: str,
    plan: ClientPlan,
    files: Sequence[EditedFile],
    target: GatewayTarget,
    is_running: bool,
    *,
    is_written: bool,
) -> dict[str, Any]:
    return {
        "client": client,
        "title": plan.title,
        "url": target.url,
        "gateway": is_running,
        "context": target.context,
        "files": [
            {
                "path": str(file.path),
                "exists": file.old is not None,
                "changed": file.new != file.old,
                "written": is_written and file.new != file.old,
                "text": file.new,
                "snippet": file.snippet,
                "diff": file.diff,
            }
            for file in files
        ],
        "variables": dict(plan.variables),
        "commands": list(plan.commands),
        "steps": list(plan.steps),
    }
