"""Runs the rows of a table as one test: pytest takes milliseconds for each that it collects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, Final

import pytest

SHOWN: Final = 10
"""More failures say no more of what is wrong, and are only counted."""

FAILURES: Final = (Exception, pytest.fail.Exception)


def table(
    names: str | Sequence[str], rows: Iterable[Any], ids: object = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with each row, as ``pytest.mark.parametrize`` does, and report all that fail.

    A row may be skipped; the test is if all are. For tests without fixtures of their own, whose
    rows do not touch each other. A `pytest.param` is a row too, without its marks; ``ids`` are
    taken so that either decorator can stand there.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    cells = [_cells(row, len(columns)) for row in rows]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def every_row(**fixtures: Any) -> None:
            failures: list[BaseException] = []
            skipped: list[pytest.skip.Exception] = []
            for row in cells:
                values = dict(zip(columns, row, strict=True))
                try:
                    test(**values, **fixtures)
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except FAILURES as failure:
                    failure.add_note(f"row: {values!r:.2000}")
                    failures.append(failure)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                title = f"{len(failures)} of {len(cells)} rows fail"
                raise BaseExceptionGroup(title, failures[:SHOWN])
            if skipped and len(skipped) == len(cells):
                raise skipped[0]

        signature = inspect.signature(test)
        left = [it for name, it in signature.parameters.items() if name not in columns]
        every_row.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return every_row

    return decorate


def _cells(row: Any, columns: int) -> tuple[Any, ...]:
    """The values of a row; a table of one column may hold them bare."""
    if isinstance(row, type(pytest.param())):
        assert not row.marks, "a row of a table has no marks of its own"
        return tuple(row.values)
    return (row,) if columns == 1 else tuple(row)
