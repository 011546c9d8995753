"""Draws what imports what into docs/architecture.md; `tests/test_architecture.py` holds it to this.

`ROOMS` is the one place that says who may import whom. A *room* is a module or a package right
under ``mlx_tools``; it may import the rooms that stand before it in the list. Each plugin is a room
of its own, which no other room imports. The imports
are read from the source, those inside functions and under ``TYPE_CHECKING`` too.

    python scripts/import_diagram.py            write the diagram
    python scripts/import_diagram.py --check    exit 1 where it is out of date
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scripts.generated_part import ROOT, GeneratedPart

PACKAGE: Final = "mlx_tools"
FACE: Final = "__init__"
"""The room of the public names: the package itself."""

ROOMS: Final = (
    "lazy",
    "packages",
    "unseen",
    "errors",
    "macos",
    "messages",
    "paths",
    "schema",
    "parsing",
    "protocol",
    "policy",
    "transcript",
    "prompt",
    "process",
    "store",
    "backends",
    "tools",
    "decoding",
    "controller",
    "toolbox",
    "app",
    "golden",
    "gateway",
    "testing",
    FACE,
    "cli",
    "plugins",
    "__main__",
)
"""The order of the house: a room imports only rooms that stand before it."""

APPLICATIONS: Final = frozenset({"golden", "gateway"})
"""They stand on ``app``, and import neither each other nor the command line, which starts them."""


PLUGINS: Final = "plugins"
"""The room whose folders are plugins: none of them imports another, and no room imports one."""


def find_room_name(module: str) -> str:
    """Return the room of a module, which is named without the package's own name."""
    first, _, rest = module.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first == PLUGINS and rest else first


def find_rank(room: str) -> int:
    """Return a room's place in the order of the house."""
    return ROOMS.index(room.partition(".")[0])


@functools.cache
def find_modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name, without ``mlx_tools``."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == FACE:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


_LOOKED_AT: Final = (
    *(ast.Module, ast.Import, ast.ImportFrom, ast.Call),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)


@functools.cache
def list_nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return the module, and its imports, calls, functions and classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return tuple(node for node in ast.walk(tree) if isinstance(node, _LOOKED_AT))


def find_called_name(node: ast.Call) -> str:
    """Return the last name of a called expression, empty without one."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


@functools.cache
def list_imports(name: str, path: Path) -> tuple[tuple[int, str], ...]:
    """Return the imports of a module, each with its line and absolute dotted name.

    Of ``from a import b`` both ``a`` and ``a.b`` come out, since ``b`` may be a module.
    """
    return tuple(_iter_imports(name, path))


def _iter_imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    is_package = path.name == "__init__.py"
    package = [PACKAGE, *([] if name == FACE else name.split("."))]
    if not is_package:
        package.pop()
    for node in list_nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            first = node.args[0]
            if (
                find_called_name(node) in {"import_module", "__import__"}
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                yield node.lineno, first.value


def find_room(dotted: str, rooms: frozenset[str]) -> str | None:
    """Return the room of an absolute dotted name, None outside of the package."""
    first, _, rest = dotted.partition(".")
    if first != PACKAGE:
        return None
    room = find_room_name(rest)
    return room if room in rooms else FACE


def collect_room_imports() -> dict[str, dict[str, str]]:
    """Return the imported rooms of each room, each with one place (``file:line``)."""
    found = find_modules()
    rooms = frozenset(map(find_room_name, found))
    edges: dict[str, dict[str, str]] = {room: {} for room in rooms}
    for name, path in found.items():
        here = find_room_name(name)
        for line, dotted in list_imports(name, path):
            there = find_room(dotted, rooms)
            # `from mlx_tools import errors` names the package on its way to a room.
            on_the_way = dotted == PACKAGE
            if there not in (None, here) and not on_the_way:
                edges[here].setdefault(str(there), f"{path.relative_to(ROOT)}:{line}")
    return edges


def find_violations() -> list[str]:
    """Return the wrong imports, one line each: upward, or of an unknown room."""
    edges = collect_room_imports()
    faults = [
        f"{room}: not in ROOMS of scripts/import_diagram.py"
        for room in sorted(edges)
        if room.partition(".")[0] not in ROOMS
    ]
    for here, imported in sorted(edges.items()):
        for there, place in sorted(imported.items()):
            if {here.partition(".")[0], there.partition(".")[0]} - set(ROOMS):
                continue
            is_plugin = there.startswith(f"{PLUGINS}.")
            if find_rank(there) > find_rank(here) or is_plugin or {here, there} <= APPLICATIONS:
                faults.append(f"{place}: {here} imports {there}")
    return faults


def collect_file_imports() -> dict[str, set[str]]:
    """Return the modules of the same room that each module imports."""
    found = find_modules()
    edges: dict[str, set[str]] = {}
    for name, path in found.items():
        dotted = [
            one.removeprefix(f"{PACKAGE}.")
            for _, one in list_imports(name, path)
            if one.startswith(f"{PACKAGE}.")
        ]
        # Of ``from room import file`` the file is meant, and not the room that names it.
        meant = {one if one in found else one.rpartition(".")[0] for one in dotted}
        on_the_way = {
            one.rpartition(".")[0] for one in dotted if one in found and one.rpartition(".")[0]
        }
        named = {one.rpartition(".")[0] for one in dotted if one not in found}
        edges[name] = {
            one
            for one in (meant - on_the_way) | (meant & named)
            if one in found and one != name and one.partition(".")[0] == name.partition(".")[0]
        }
    return edges


def find_cycles() -> list[list[str]]:
    """Return the import cycles inside of rooms, each in the order of names."""
    edges = collect_file_imports()

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        left = [*edges[start]]
        while left:
            if (module := left.pop()) not in seen:
                seen.add(module)
                left += edges[module]
        return seen

    reached = {name: reach(name) for name in edges}
    found = {
        tuple(sorted(one for one in reached[name] if name in reached[one]))
        for name in edges
        if name in reached[name]
    }
    return sorted(map(list, found))


def reduce_graph(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without edges that follow from others."""

    def reach(room: str) -> set[str]:
        return edges[room].union(*(reach(next_room) for next_room in edges[room]))

    return {
        room: {
            there
            for there in imported
            if not any(there in reach(other) for other in imported - {there})
        }
        for room, imported in edges.items()
    }


def draw_diagram() -> str:
    """Return the mermaid block: an edge for each import, a line for each room."""
    graph = {room: set(imported) for room, imported in collect_room_imports().items()}
    arrows = reduce_graph(graph)
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'  {make_node_id(FACE)}["{PACKAGE}"]']
    lines += [
        f"  {make_node_id(here)} --> {' & '.join(map(make_node_id, sorted(arrows[here])))}"
        for here in sorted(arrows)
        if arrows[here]
    ]
    return "\n".join([*lines, "```"])


def make_node_id(room: str) -> str:
    """Return mermaid's identifier of a room."""
    return "face" if room == FACE else room.replace(".", "/")


PART: Final = GeneratedPart("architecture.md", "import diagram", "import_diagram.py", draw_diagram)

if __name__ == "__main__":
    if faults := find_violations():
        raise SystemExit("\n".join(faults))
    PART.main()
