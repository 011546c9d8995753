"""Whether an element's own style hides it from a reader of the page: a text there is meant for
machines alone. What a style sheet hides is not known here. Imports nothing of mlx_tools.

Every declaration counts, also one that a later one takes back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_COMMENT: Final = re.compile(r"/\*.*?(?:\*/|$)", re.DOTALL)
_SPACES: Final = re.compile(r"[ \t\n\r\f\u00a0]+")
_PREFIX: Final = re.compile(r"\A-(?:webkit|moz|ms|o)-")
_NO_COLOUR: Final = frozenset(("", "inherit", "initial", "unset", "revert", "none"))
_LENGTH: Final = re.compile(
    r"(?:calc\()*([+-]?(?:\d{1,9}\.?\d{0,9}|\.\d{1,9})(?:e[+-]?\d{1,3})?)([a-z%]*)"
)

_NOTHING: Final = r"(?:0+(?:\.0*)?|\.0+)%?"
_CLEAR: Final = re.compile(
    rf"transparent|(?:rgb|hsl)a?\((?:(?:[^,/]*,){{3}}|[^/]*/){_NOTHING}\)"
    r"|#[0-9a-f]{3}0|#[0-9a-f]{6}00"
)
_NO_FONT: Final = re.compile(r"(?:^|[a-z])0+(?:\.0*)?(?:px|pt|r?em|%)?(?=/|[a-z\"']|$)")
_FADED: Final = re.compile(r"opacity[(=]([\d.]{1,9})(%?)")
_RECT: Final = re.compile(r"rect\((?:[01](?:px|em)?,?){1,4}\)")
_SHAPE: Final = re.compile(
    r"inset\((?:[5-9]\d|100)%.*|circle\(0+(?:px|em|%)?(?:at.*)?\)|polygon\([0,px%]*\)"
)
_SHRUNK: Final = re.compile(r"scale[xy]?\((?:[^,)]{0,40},)?0*(?:\.0\d*)?[,)]")
_MOVED: Final = re.compile(r"translate\w{0,3}\((?:[^)]{0,60},)?-(?:\d{4}|[2-9]\d\d(?:%|v[wh]))")
_FAR_MARGIN: Final = re.compile(r"-(?:\d{4}|[1-9]\d\dv[wh]|[1-9]\d\dr?em)")
_SMALLEST: Final = {"px": 4.0, "pt": 3.0, "em": 0.2, "rem": 0.2, "%": 20.0, "": 4.0}
"""Sizes of letters below which nobody reads them."""
_FARTHEST: Final = {"px": 900.0, "pt": 700.0, "em": 50.0, "rem": 50.0, "%": 100.0, "": 900.0}
"""How far out of the page, by unit; others, such as ``vw``, count in hundredths like ``%``."""


def hides(style: str) -> bool:
    """Whether the value of a ``style`` attribute hides what it is for."""
    if "\\" in style:  # an escape, which nobody needs here but to hide what is written
        return True
    style = _SPACES.sub("", _COMMENT.sub("", style)).lower()
    said: dict[str, str] = {}
    clipped = small = False
    for declaration in style.split(";"):
        name, _, value = declaration.partition(":")
        name = _PREFIX.sub("", name)
        rule = _RULES.get(name)
        value = value.partition("!")[0]
        if rule is not None and rule(value):
            return True
        if name in ("overflow", "overflow-x", "overflow-y"):
            clipped = clipped or value in ("hidden", "clip")
        elif name in ("width", "height", "max-width", "max-height"):
            number, unit = _length(value)
            small = small or number == 0 or (number == 1 and unit in ("", "px"))
        elif name in ("color", "background", "background-color") and value not in _NO_COLOUR:
            said[name.removesuffix("-color")] = value
    return (clipped and small) or said.get("color", "-") == said.get("background")


def _length(value: str) -> tuple[float | None, str]:
    found = _LENGTH.match(value)
    return (float(found[1]), found[2]) if found is not None else (None, "")


def _faint(value: str) -> bool:
    number, unit = _length(value)
    return number is not None and number < (10 if unit == "%" else 0.1)


def _tiny(value: str) -> bool:
    number, unit = _length(value)
    return number is not None and number < _SMALLEST.get(unit, 0.01)


def _before(value: str) -> bool:
    number, unit = _length(value)
    return number is not None and number <= -_FARTHEST.get(unit, 100.0)


def _beside(value: str) -> bool:
    """Before the page or far beside it. Far below its beginning is where long pages go on."""
    number, unit = _length(value)
    far = number is not None and number >= 5 * _FARTHEST.get(unit, 1000.0)
    return far or _before(value)


def _filtered(value: str) -> bool:
    found = _FADED.search(value)
    if found is None:
        return False
    hundredths = found[2] == "%" or "alpha(" in value
    return _faint(f"{found[1]}{'%' if hundredths else ''}")


def _transformed(value: str) -> bool:
    return _SHRUNK.search(value) is not None or _MOVED.search(value) is not None


_RULES: Final[dict[str, Callable[[str], bool]]] = {
    "display": lambda value: value == "none",
    "visibility": lambda value: value in ("hidden", "collapse"),
    "content-visibility": lambda value: value == "hidden",
    **dict.fromkeys(("opacity", "zoom", "scale"), _faint),
    "font-size": _tiny,
    "font": lambda value: _NO_FONT.search(value) is not None,
    **dict.fromkeys(("left", "right", "text-indent"), _beside),
    **dict.fromkeys(("top", "bottom", "inset", "translate"), _before),
    **dict.fromkeys(
        ("margin", "margin-left", "margin-top", "margin-right", "margin-bottom"),
        lambda value: _FAR_MARGIN.search(value) is not None,
    ),
    "filter": _filtered,
    "clip": lambda value: _RECT.fullmatch(value) is not None,
    "clip-path": lambda value: _SHAPE.fullmatch(value) is not None,
    "transform": _transformed,
    **dict.fromkeys(
        ("color", "text-fill-color"), lambda value: _CLEAR.fullmatch(value) is not None
    ),
}
