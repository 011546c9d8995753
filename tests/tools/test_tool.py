"""``@tool``: from a typed function to a schema, and from JSON to what the function takes."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, Optional, Union

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ALL_EFFECTS
from mlx_tools.tools import EffectsBy, InvalidArguments, Registry, Tool, ToolContext, tool
from tests.tables import table

if typing.TYPE_CHECKING:
    Undefined = int


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Size(TypedDict):
    width: int
    title: NotRequired[str]


class Node(BaseModel):
    """A node of a tree."""

    value: int = Field(title="The value", description="What it holds")
    children: list[Node] = []


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
NOW = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)


def called(made: Tool, **arguments: Any) -> Any:
    return asyncio.run(made.call(arguments))


def properties(made: Tool) -> dict[str, Any]:
    Draft202012Validator.check_schema(made.spec.parameters)
    found: dict[str, Any] = made.spec.parameters["properties"]
    return found


def test_name_description_and_schema_come_from_the_function() -> None:
    @tool(effects={"read"})
    def area(width: float, height: float = 1.0) -> float:
        """Area of a rectangle
        in square metres.

        Works for any size.

        Args:
            width: Its width
                in metres.
            height (float): Its height.

        Returns:
            The area.
        """
        return width * height

    assert area.spec.name == "area"
    assert area.spec.description == "Area of a rectangle in square metres.\n\nWorks for any size."
    assert area.spec.effects == {"read"}
    assert area.spec.parameters == {
        "type": "object",
        "properties": {
            "width": {"type": "number", "description": "Its width in metres."},
            "height": {"type": "number", "description": "Its height.", "default": 1.0},
        },
        "required": ["width"],
        "additionalProperties": False,
    }
    assert area(2.0, height=3.0) == 6.0
    assert called(area, width=2) == 2.0
    assert area.__doc__ is not None


def test_what_is_not_declared_is_every_effect_and_no_approval() -> None:
    @tool
    def something() -> None: ...

    spec = something.spec
    assert spec.effects == ALL_EFFECTS
    assert (spec.retry, spec.timeout, spec.plugin) == ("never", None, "")
    assert not spec.needs_approval
    assert spec.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert not spec.private and "private" not in spec.to_json()


def test_everything_can_be_declared() -> None:
    declared: dict[str, Any] = {"description": "Words.", "timeout": 3, "retry": "read_only"}
    declared |= {"needs_approval": True, "private": True, "cache": False}
    spec = tool(name="other.name", effects=["network", "read"], **declared)(lambda: 1).spec
    assert (spec.name, spec.effects) == ("other.name", {"network", "read"})
    assert {key: getattr(spec, key) for key in declared} == declared
    assert spec.to_json()["private"] is True


@table(
    ("hint", "schema", "json_value", "value"),
    [
        (str, STRING, "a", "a"),
        (int, INTEGER, 3, 3),
        (float, {"type": "number"}, 3, 3.0),
        (bool, {"type": "boolean"}, True, True),
        (Any, {}, {"a": [1]}, {"a": [1]}),
        (Optional[int], {"anyOf": [INTEGER, {"type": "null"}]}, None, None),  # noqa: UP045
        (int | None, {"anyOf": [INTEGER, {"type": "null"}]}, 4, 4),
        (Union[int, str], {"anyOf": [INTEGER, STRING]}, "x", "x"),  # noqa: UP007
        (Literal["a", "b"], {**STRING, "enum": ["a", "b"]}, "b", "b"),
        (Colour, {**STRING, "enum": ["red", "blue"]}, "red", Colour.RED),
        (list[int], {"type": "array", "items": INTEGER}, [1], [1]),
        (dict[str, int], {"type": "object", "additionalProperties": INTEGER}, {"a": 1}, {"a": 1}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2},
            [1, "a"],
            (1, "a"),
        ),
        (set[int], {"type": "array", "items": INTEGER, "uniqueItems": True}, [1, 2], {1, 2}),
        (datetime.date, {**STRING, "format": "date"}, "2026-11-21", NOW.date()),
        (datetime.datetime, {**STRING, "format": "date-time"}, "2026-11-21T10:00:00Z", NOW),
        (decimal.Decimal, {"type": "number"}, 0.1, decimal.Decimal("0.1")),
        (
            Annotated[int, Field(ge=0, description="Of years")],
            {**INTEGER, "minimum": 0, "description": "Of years"},
            7,
            7,
        ),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
                "required": ["x"],
                "additionalProperties": False,
            },
            {"x": 1},
            Point(1.0),
        ),
        (
            Size,
            {
                "type": "object",
                "properties": {"width": INTEGER, "title": STRING},
                "required": ["width"],
                "additionalProperties": False,
            },
            {"width": 1, "title": "t"},
            {"width": 1, "title": "t"},
        ),
    ],
)
def test_a_type_gives_a_schema_and_gets_a_value(
    hint: Any, schema: Any, json_value: Any, value: Any
) -> None:
    def take(item):  # type: ignore[no-untyped-def]
        return item

    take.__annotations__ = {"item": hint}
    made = tool(effects={"read"})(take)
    assert properties(made)["item"] == schema
    assert called(made, item=json_value) == value
    assert type(called(made, item=json_value)) is type(value)


def test_models_may_nest_and_refer_to_themselves() -> None:
    @tool
    def walk(root: Node, nodes: list[Node]) -> int:
        return root.value + len(root.children) + len(nodes)

    parameters = walk.spec.parameters
    assert parameters["properties"]["root"] == {"$ref": "#/$defs/Node"}
    assert parameters["$defs"]["Node"] == {
        "type": "object",
        "description": "A node of a tree.",
        "properties": {
            "value": {"type": "integer", "description": "What it holds"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
        },
        "required": ["value"],
    }
    assert called(walk, root={"value": 3, "children": [{"value": 1}]}, nodes=[]) == 4


def test_a_property_may_be_called_title_and_a_definition_used_twice_stays_one() -> None:
    @tool
    def resize(title: str, first: Size, second: Size) -> str:
        return title + str(first["width"] + second["width"])

    assert properties(resize)["title"] == {"type": "string"}
    assert properties(resize)["first"] == {"$ref": "#/$defs/Size"}
    assert "title" in resize.spec.parameters["$defs"]["Size"]["properties"]
    assert called(resize, title="t", first={"width": 1}, second={"width": 2}) == "t3"


def test_defaults_are_the_functions_own() -> None:
    @tool
    def defaults(
        a: int = 5,
        b: Colour = Colour.BLUE,
        c: str | None = None,
        d: int = Field(7, le=9, description="Of d"),
        e: list[int] = Field(default_factory=list),  # noqa: B008
        *,
        f: float = float("nan"),
    ) -> list[Any]:
        return [a, b, c, d, e]

    found = properties(defaults)
    assert "required" not in defaults.spec.parameters
    assert (found["a"]["default"], found["b"]["default"]) == (5, "blue")
    assert found["d"] == {"type": "integer", "description": "Of d", "maximum": 9, "default": 7}
    assert [key for key in found if "default" not in found[key]] == ["c", "e", "f"]
    assert called(defaults) == [5, Colour.BLUE, None, 7, []]
    assert called(defaults, a=1, b="red", c="x", d=2, e=[3]) == [1, Colour.RED, "x", 2, [3]]


def test_a_field_may_be_required_have_a_name_for_json_and_says_more_than_the_docstring() -> None:
    @tool
    def send(
        to: str = Field(description="Whom"), from_: Annotated[str, Field(alias="from")] = "me"
    ):  # type: ignore[no-untyped-def]
        """Sends it.

        Args:
            to: From the docstring.
        """
        return f"{from_} to {to}"

    assert send.spec.parameters["required"] == ["to"]
    assert set(properties(send)) == {"to", "from"}
    assert properties(send)["to"]["description"] == "Whom"
    assert called(send, **{"to": "you", "from": "him"}) == "him to you"
    assert called(send, to="you") == "me to you"


def test_names_that_frameworks_reserve_are_ordinary_parameters() -> None:
    @tool
    def odd(self: int, model_config: str, schema: int, _hidden: int, type: str, properties: int):  # type: ignore[no-untyped-def]  # noqa: A002
        return [self, model_config, schema, _hidden, type, properties]

    names = ("self", "model_config", "schema", "_hidden", "type", "properties")
    given = dict(zip(names, (1, "c", 2, 3, "t", 4), strict=True))
    assert list(properties(odd)) == list(given)
    assert asyncio.run(odd.call(given)) == list(given.values())


def test_the_context_is_handed_over_once_and_not_in_the_schema() -> None:
    @tool
    def report(x: int, context: ToolContext) -> bool:
        return isinstance(context, ToolContext)

    @tool
    async def optional(context: ToolContext | None = None) -> bool:
        return isinstance(context, ToolContext)

    @tool
    def twice(one: ToolContext, x: int, other: ToolContext) -> None: ...

    assert set(properties(report)) == {"x"}
    assert called(report, x=1) is True
    assert called(optional) is True
    with pytest.raises(ToolDefinitionError, match="one and other are both a ToolContext"):
        assert twice.spec


def test_asynchronous_functions_however_they_are_wrapped() -> None:
    async def plain(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    class Adder:
        async def method(self, x: int) -> int:
            return x + 1

        def blocks(self, x: int) -> Undefined:  # what is returned need not be there
            return x + 1

    def blocks(x: int) -> int:
        return x + 1

    @functools.wraps(blocks)
    async def made(*args: Any, **kwargs: Any) -> Any:
        return blocks(*args, **kwargs)

    for function in (plain, wrapped, made, Adder().method):
        plus = tool(name="plus")(function)
        assert plus.is_async
        assert called(plus, x=1) == 2
    assert not tool(Adder().blocks).is_async
    assert called(tool(Adder().blocks), x=1) == 2


def test_the_signature_that_a_decorator_gave_counts() -> None:
    def any_number(**values: Any) -> Any:
        return values

    parameter = inspect.Parameter("n", inspect.Parameter.KEYWORD_ONLY, annotation="list[int]")
    any_number.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    made = tool(any_number)
    assert properties(made) == {"n": {"type": "array", "items": {"type": "integer"}}}
    assert called(made, n=[1]) == {"n": [1]}


def test_a_default_is_new_for_each_call_unless_it_stands_for_nothing_given() -> None:
    nothing = object()

    @tool
    def gather(x: int, into: list[int] = [], by: Any = nothing) -> Any:  # noqa: B006
        into.append(x)
        return into, by is nothing

    assert [called(gather, x=x) for x in (1, 2)] == [([1], True), ([2], True)]
    assert properties(gather)["into"]["default"] == []


# --- what cannot be a tool ---


def positional(a: int, /) -> None: ...
def several(*a: int) -> None: ...
def named(**a: int) -> None: ...
def bare(a) -> None: ...  # type: ignore[no-untyped-def]
def unbound(self, a: int) -> None: ...  # type: ignore[no-untyped-def]
def generator() -> typing.Iterator[int]:
    yield 1


async def stream() -> typing.AsyncIterator[int]:
    yield 1


@table(
    ("function", "what"),
    [
        (positional, "positional-only"),
        (several, "any number of values"),
        (named, "any names"),
        (bare, "no annotation"),
        (generator, "yields"),
        (stream, "yields"),
        (lambda: 1, "name"),
        (max, "signature"),
        ("text", "not a function"),
        (None, "not a function"),
        (functools.partial(bare, a=1), "not a function"),
        (unbound, r"self has no annotation .*tool\(thing\.method\)"),
        (classmethod(unbound), r"not a function .*tool\(thing\.method\)"),
    ],
)
def test_a_signature_that_cannot_be_is_refused_at_once(function: Any, what: str) -> None:
    with pytest.raises(ToolDefinitionError, match=what):
        tool()(function)


@table(
    ("declared", "what"),
    [
        ({"name": "the tool"}, "cannot name a tool"),
        ({"name": "tооl"}, "cannot name a tool"),
        ({"name": "tool\u200b"}, "cannot name a tool"),
        ({"name": "\u202eloot"}, "cannot name a tool"),
        ({"name": "x" * 65}, "cannot name a tool"),
        ({"name": 5}, "5 cannot name a tool"),
        ({"description": 5}, "t: description: 5 is no text"),
        ({"effects": {"reed"}}, "'reed' is not an effect"),
        ({"effects": "erase"}, "'erase' is not an effect"),
        ({"effects": 5}, "5 is no set of effects"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"retry": "always"}, "retry"),
        *(({key: "no"}, f"{key}: 'no' is not") for key in ("needs_approval", "private", "cache")),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_at_once(declared: Any, what: str) -> None:
    with pytest.raises(ToolDefinitionError, match=what):
        tool(**declared)(lambda: 1) if "name" in declared else tool(name="t", **declared)(lambda: 1)


@pytest.mark.parametrize("name", ["plugin", "colour"])
def test_nothing_else_can_be_declared(name: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        tool(**{name: "builtin"})  # type: ignore[call-overload]


class Opaque:
    """No type that JSON knows."""


class Broken:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise ImportError("email-validator is not installed")


class Unwritable:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return handler(int)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        raise ZeroDivisionError("no schema")


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (Opaque, "a parameter has no JSON Schema: "),
        (list[Opaque], "a parameter has no JSON Schema: "),
        (Callable[[int], int], "a parameter has no JSON Schema: "),
        ("Missing", "an annotation cannot be resolved: "),
        (Annotated[str, Field(pattern="(?<=a)b")], "a parameter has no .*: error: look-around"),
        (Broken, "a parameter has no .*: ImportError: email-validator is not installed"),
        (Unwritable, "a parameter has no .*: ZeroDivisionError: no schema"),
    ],
)
def test_a_type_without_a_schema_is_refused_when_the_tool_is_registered(
    hint: Any, said: str
) -> None:
    def take(good, bad):  # type: ignore[no-untyped-def]
        return bad

    take.__annotations__ = {"good": int, "bad": hint}
    made = tool(take)
    for need in (lambda: Registry([made]), lambda: made.spec):
        with pytest.raises(ToolDefinitionError, match=f"^take: {said}"):
            need()


def test_a_tool_of_no_plain_function_cannot_be_called_as_one() -> None:
    made = Tool(tool(name="x")(lambda: 1).spec, lambda arguments: 2)
    with pytest.raises(TypeError, match="await"):
        made()
    assert called(made) == 2


def test_arguments_that_fit_the_schema_but_not_the_type_are_told_apart_by_path() -> None:
    @tool
    def plan(when: datetime.date, points: list[Point]) -> None: ...

    with pytest.raises(InvalidArguments, match=r"when: .*; points\.0\.x: "):
        called(plan, when="tomorrow", points=[{"x": "here"}])


def test_effects_by_argument_are_all_effects_for_what_is_not_listed() -> None:
    effects = EffectsBy("operation", {"read": frozenset(("read",)), "write": frozenset(("write",))})
    assert effects({"operation": "read"}) == {"read"}
    for arguments in ({}, {"operation": "delete"}, {"operation": ["read"]}, {"operation": None}):
        assert effects(arguments) == ALL_EFFECTS
    assert effects.possible == {"read", "write"}
    made = tool(name="t", effects=effects)(lambda: 1)
    assert made.spec.possible_effects == {"read", "write"}
    assert made.spec.mutates({"operation": "write"})
    assert not made.spec.mutates({"operation": "read"})


def test_a_function_that_tells_effects_cannot_change_the_call() -> None:
    def effects(arguments: Any) -> set[str]:
        arguments["paths"].clear()
        arguments.clear()
        return {"read"}

    made = tool(name="t", effects=effects)(lambda: 1)
    arguments = {"paths": ["a"]}
    assert made.spec.get_effects(arguments) == {"read"}
    assert arguments == {"paths": ["a"]}


def test_declaring_a_tool_loads_no_pydantic() -> None:
    code = (
        "import sys\n"
        "from mlx_tools import builtin_tools, tool\n"
        "@tool\n"
        "def area(width: float) -> float:\n"
        "    '''Area.'''\n"
        "    return width\n"
        "builtin_tools().specs()\n"
        "print('pydantic' in sys.modules, 'jsonschema' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
