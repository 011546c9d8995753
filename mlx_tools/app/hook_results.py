"""The check of results of plugins' hooks.

Plugins are foreign code, so a result may be anything. Parts that cannot be used are left out, and
their faults reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import ValidationError, convert, structs

from mlx_tools.app.hook_values import Command, SessionTable, SourceMaker, StoreKind

_COMMAND: Final = re.compile(r"[a-z][a-z0-9_-]{0,40}( [a-z][a-z0-9_-]{0,40})?")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]{0,40}")
_PLACE: Final = re.compile(r"\w+(\.\w+)*:\w+")


def filter_parts(hook: str, result: Any) -> tuple[Any, list[str]]:
    """Return the usable parts of a hook's result, and the faults of the others.

    The parts are a dictionary if the hook returns values by name, otherwise a list.
    """
    by_name = hook in _CHECKS_BY_NAME
    if result is None:
        return ({} if by_name else []), []
    faults: list[str] = []
    if by_name:
        if not isinstance(result, Mapping):
            return {}, [f"{hook} returns {_name_kind(result)}, which is no table by name"]
        check_named, named = _CHECKS_BY_NAME[hook], dict[Any, Any]()
        for name, value in result.items():
            if (fault := check_named(name, value)) is None:
                named[name] = value
            else:
                faults.append(f"{hook}: {fault}")
        return named, faults
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        return [], [f"{hook} returns {_name_kind(result)}, which is no list"]
    check, parts = _CHECKS[hook], list[Any]()
    for part in result:
        if (fault := check(part)) is None:
            parts.append(part)
        else:
            faults.append(f"{hook}: {fault}")
    return parts, faults


def _name_kind(value: Any) -> str:
    return type(value).__name__


def _is_function(value: Any, *, optional: bool = False) -> bool:
    return callable(value) or (optional and value is None)


def _find_tool_fault(part: Any) -> str | None:
    is_tool = not isinstance(part, type) and callable(getattr(part, "call", None))
    return (
        None
        if is_tool
        else f"it offers {_name_kind(part)}, which is no tool (write @tool above a function)"
    )


def _find_offer_fault(part: Any) -> str | None:
    from mlx_tools.tools import ToolOffer

    if not isinstance(part, ToolOffer):
        return f"it offers {_name_kind(part)}, which is no ToolOffer"
    if not isinstance(part.name, str) or not isinstance(part.plugin, str):
        return "the name and plugin of a ToolOffer are no texts"
    optional = (part.remove, part.last_output)
    is_complete = _is_function(part.load) and all(
        _is_function(one, optional=True) for one in optional
    )
    return None if is_complete else f"parts of the ToolOffer {part.name!r:.80} are no functions"


def _find_command_fault(part: Any) -> str | None:
    if not isinstance(part, Command):
        return f"it offers {_name_kind(part)}, which is no Command"
    if not isinstance(part.name, str) or not _COMMAND.fullmatch(part.name):
        return f"{part.name!r:.80} cannot name a command"
    if not isinstance(part.help, str) or not part.help.strip() or not part.help.isprintable():
        return f"the help of {part.name} is no line of text"
    if not isinstance(part.app, str) or not _PLACE.fullmatch(part.app):
        return f"{part.name}: {part.app!r:.80} is not MODULE:NAME"
    return None


def _find_check_fault(part: Any) -> str | None:
    from mlx_tools.app.checks import Check

    if not isinstance(part, Check):
        return f"it offers {_name_kind(part)}, which is no Check"
    try:
        convert(structs.asdict(part), Check)
    except ValidationError as error:
        return f"a Check is wrong: {error}"
    return None


def _find_route_fault(part: Any) -> str | None:
    from starlette.routing import BaseRoute

    return (
        None if isinstance(part, BaseRoute) else f"it offers {_name_kind(part)}, which is no route"
    )


def _find_store_fault(part: Any) -> str | None:
    if not isinstance(part, StoreKind):
        return f"it offers {_name_kind(part)}, which is no StoreKind"
    schemes = part.schemes
    if not isinstance(schemes, tuple | list) or not all(map(_is_scheme, schemes)):
        return f"{schemes!r:.80} are no schemes of addresses"
    is_complete = _is_function(part.open) and _is_function(part.check)
    return None if is_complete else "the open and check of a StoreKind are no functions"


def _find_table_fault(part: Any) -> str | None:
    from mlx_tools.store import FileFormat

    if not isinstance(part, SessionTable) or not isinstance(part.form, FileFormat):
        return f"it offers {_name_kind(part)}, which is no SessionTable with a FileFormat"
    is_complete = _is_function(part.owner, optional=True)
    return None if is_complete else "the owner of a SessionTable is no function"


def _find_observer_fault(part: Any) -> str | None:
    return None if _is_function(part) else f"it offers {_name_kind(part)}, which is no function"


def _is_scheme(value: Any) -> bool:
    return isinstance(value, str) and _SCHEME.fullmatch(value) is not None


def _find_backend_fault(name: Any, value: Any) -> str | None:
    if not _is_scheme(name) or name in ("http", "https"):
        return f"{name!r:.80} cannot stand before an address"
    return None if _is_function(value) else f"{name} is {_name_kind(value)}, which makes no backend"


def _find_source_fault(name: Any, value: Any) -> str | None:
    if not _is_scheme(name):
        return f"{name!r:.80} cannot name a kind of source"
    if not isinstance(value, SourceMaker):
        return f"{name} is {_name_kind(value)}, which is no SourceMaker"
    optional = (value.make_more, value.close)
    is_complete = _is_function(value.make) and all(
        _is_function(one, optional=True) for one in optional
    )
    return None if is_complete else f"the SourceMaker {name} has parts that are no functions"


def _no_fault(name: Any, value: Any) -> str | None:
    """Accept any table of settings: `find_section_fault` checks it with the others."""
    return None


_CHECKS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "tools": _find_tool_fault,
    "offers": _find_offer_fault,
    "commands": _find_command_fault,
    "checks": _find_check_fault,
    "routes": _find_route_fault,
    "store": _find_store_fault,
    "tables": _find_table_fault,
    "observers": _find_observer_fault,
}
_CHECKS_BY_NAME: Final[Mapping[str, Callable[[Any, Any], str | None]]] = {
    "settings": _no_fault,
    "backends": _find_backend_fault,
    "sources": _find_source_fault,
}
