"""Pages of HTML that show what others wrote: all of it escaped, what is not seen by its number."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.app.steps import as_text, brief, spelled

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER: Final = Path(__file__).resolve().parent

LOOK: Final = _FOLDER / "look.css"
"""The style that such pages share."""


class Html(str):
    """HTML that goes into the page as it is: what the template's escaping leaves alone."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def templates(folder: Path) -> Environment:
    """The templates of a folder, and ``steps.html.j2``, which shows the steps of a run."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, _FOLDER]),
        autoescape=True,
        finalize=_final,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seen"] = seen
    environment.filters["brief"] = lambda value: seen(brief(value))
    return environment


def seen(value: Any) -> Html:
    """A text as HTML, with what would not be seen in marks of its own."""
    return Html(spelled(escape(as_text(value)), '<b class="x">{}</b>'))


def _final(value: Any) -> Any:
    """Whatever is printed, and was not through `seen`: in attributes, and elsewhere."""
    return value if hasattr(value, "__html__") else spelled(as_text(value))
