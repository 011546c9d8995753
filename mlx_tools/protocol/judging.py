"""The table of reading rule 8a, by which a text that may be a call is judged.

The first row that fits a candidate gives its outcome, by the place of the candidate. The rows are
those of docs/protocol.md.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Outcome = Literal["call", "call_like", "invalid", "text"]
"""``call``: validation judges it by its tool's schema, and reports an unknown tool.

``call_like``: the model is corrected once, then the text is shown. ``invalid``: it cannot be read,
and an error says so."""

Place = Literal["spoken", "last_fence", "quoted"]
"""``spoken``: outside code, or alone in the output. ``last_fence``: last in the output and alone in
its fence. ``quoted``: in backticks, a fence amid text, a quotation or a table."""

Kind = Literal["marked", "json", "python"]
"""``marked``: in the marks of its family, in the protocol's own, or in an envelope with its own
type. ``json`` and ``python`` have no mark: ``json`` are objects, a name before an object, and
elements."""

Extent = Literal["whole", "line", "inline"]
"""The part of the output that a candidate without marks is: all of it (of Python calls: its last
lines), the beginning of a line beside prose, or a part of a line."""


class Candidate(NamedTuple):
    """A text that may be a call.

    ``fits`` is None if the arguments cannot be read. ``is_explicit``: its form makes it a call,
    whatever it names.
    """

    kind: Kind
    names_tool: bool
    fits: bool | None
    extent: Extent = "whole"
    is_explicit: bool = False
    has_own_fence: bool = False


class TableRow(NamedTuple):
    """The outcomes of the candidates that fit a row, by their place."""

    spoken: Outcome
    last_fence: Outcome
    quoted: Outcome


MARKED_FITS: Final = TableRow("call", "call_like", "text")
OWN_FENCE_FITS: Final = TableRow("call", "call", "text")
BARE_WHOLE_FITS: Final = TableRow("call", "call_like", "text")
BARE_WHOLE_PYTHON_FITS: Final = TableRow("call", "text", "text")
BARE_LINE_FITS: Final = TableRow("call_like", "call_like", "text")
BARE_LINE_PYTHON_FITS: Final = TableRow("call_like", "text", "text")
NAMED_MISFIT: Final = TableRow("call", "call_like", "text")
NAMED_UNREADABLE: Final = TableRow("invalid", "call_like", "text")
UNKNOWN_NAME: Final = TableRow("call", "text", "text")
ANYTHING_ELSE: Final = TableRow("text", "text", "text")


def find_row(candidate: Candidate) -> TableRow:
    """Return the first row of the table that fits the candidate."""
    form, extent = candidate.kind, candidate.extent
    is_marked = form == "marked"
    if candidate.names_tool and candidate.fits:
        if is_marked:
            return OWN_FENCE_FITS if candidate.has_own_fence else MARKED_FITS
        if extent == "whole":
            return BARE_WHOLE_PYTHON_FITS if form == "python" else BARE_WHOLE_FITS
        # People write a Python call within a sentence when they write about functions.
        if extent == "line" or form == "json":
            return BARE_LINE_PYTHON_FITS if form == "python" else BARE_LINE_FITS
    if candidate.names_tool and (is_marked or extent == "whole") and not candidate.fits:
        return NAMED_UNREADABLE if candidate.fits is None else NAMED_MISFIT
    # After an unknown name text that cannot be read is prose: nothing shows that a call was meant.
    if candidate.is_explicit and candidate.fits is not None:
        return UNKNOWN_NAME
    return ANYTHING_ELSE


def outcome(candidate: Candidate, place: Place) -> Outcome:
    """Return the outcome of a candidate in this place."""
    return getattr(find_row(candidate), place)  # type: ignore[no-any-return]
