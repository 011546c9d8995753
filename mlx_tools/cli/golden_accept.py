"""Brings golden transcripts up to date, once a person has seen what changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlx_tools.cli.golden_check import differences, show
from mlx_tools.cli.output import complain, note, print_json
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.golden import (
    CannotSettle,
    Difference,
    Golden,
    read_golden,
    replay,
    settled,
    write_golden,
)
from mlx_tools.store.transcript import FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class _Change:
    """A transcript as it is, what of it is otherwise today, and as it would be written."""

    path: Path
    golden: Golden
    differences: tuple[Difference, ...]
    now: Golden


def accept(paths: Sequence[Path], *, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Shows what changes, asks, writes, and returns the exit code.

    A transcript that what was recorded does not suffice for is told of, left alone, and makes the
    exit code 1.
    """
    found, refused = [], 0
    for path in paths:
        golden = read_golden(path)
        try:
            change = _Change(path, golden, replay(golden).differences, settled(golden).now)
        except CannotSettle as error:
            refused += 1
            complain(f"{path}: {error}")
            continue
        if change.differences or change.now.all != golden.all:
            found.append(change)
            _show(change, as_json=as_json)
    code = EXIT_STOPPED if refused else EXIT_OK
    if not found:
        note("nothing to accept")
    elif dry_run:
        complain(f"{len(found)} would be written", kind="dry run")
    elif not yes and not _agreed(len(found)):
        note("nothing was written")
    else:
        for change in found:
            write_golden(change.now, change.path)
        complain(f"{len(found)} written", kind="done")
    return code


def _show(change: _Change, *, as_json: bool) -> None:
    version = change.golden.header.version
    if as_json:
        told = [difference.to_json() for difference in change.differences]
        names = {"name": change.golden.name, "path": str(change.path)}
        print_json(names | {"from_version": version, "differences": told})
        return
    show([("bold", str(change.path))])
    if version != FORMAT_VERSION:
        show([("", f"  format {version} becomes {FORMAT_VERSION}")])
    elif not change.differences:
        show([("", "  nothing that it says; the digests of the words become today's")])
    show(differences(change.differences))


def _agreed(count: int) -> bool:
    """Whether the user wants it. Raises `UsageError` where nobody can be asked."""
    from mlx_tools.app.wiring import at_terminal  # it brings all that a run needs
    from mlx_tools.cli.inputs import said_yes

    if not at_terminal():
        raise UsageError(
            f"{count} would be written, and nobody is here to be asked",
            hint="--yes writes them, --dry-run shows them",
        )
    return said_yes(f"Write {count} of them?")
