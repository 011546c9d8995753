"""A tool: what everybody may know of it (its spec), and what runs when it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol, TypedDict, Unpack, cast, overload

from msgspec import Struct, field
from msgspec.structs import force_setattr

from mlx_tools.errors import (
    ToolDefinitionError,
    for_message,
    require_instance,
    require_mapping,
    require_text,
)
from mlx_tools.messages import ALL_EFFECTS, TOOL_NAME, Effects, ErrorInfo, ToolSpec, replace
from mlx_tools.policy import Policy
from mlx_tools.tools.context import CONTEXT, KnownFile, ToolContext, ToolError, current_context
from mlx_tools.tools.signature import METHOD, Arguments, parameters_of, parse_docstring
from mlx_tools.tools.threads import submit

Run = Callable[[Mapping[str, Any]], Any]
"""The function behind a tool: it gets the arguments, and may return an awaitable."""

EffectsLike = Iterable[str] | Callable[[Mapping[str, Any]], Iterable[str]]

_MAX_SECONDS: Final = 86_400.0


class ToolLike(Protocol):
    """Anything that can be registered as a tool, whether or not it is a `Tool`.

    What else it can it says by members that it has, or has not: ``blocking``, its call as a
    function of the arguments for a thread, which is then used in place of ``call``; ``preview``,
    what a call with some arguments would change (`Preview`, None where it cannot tell);
    ``disabled_reason``, why it cannot work now, None where it can, asked each time somebody wants
    to know; ``pinned``, what it is held to by whoever agreed to it, such as a digest of its files.
    """

    @property
    def spec(self) -> ToolSpec: ...
    async def call(self, arguments: Mapping[str, Any]) -> Any: ...


class Preview(Struct, frozen=True):
    """The change that a call would make, told before it runs.

    ``text`` is for a person: a unified diff of what is written. ``state`` identifies what the call
    would act on as it is now, such as a hash of the file's content: an approval holds only as long
    as it stays the same. ``paths`` says of arguments that are paths where in the file system they
    lead. ``fails``: the call could only fail, or nobody can tell. ``counts`` is how much the whole
    change is, such as ``+2 -17`` lines, empty if unknown. ``omitted`` says in words what of the
    change the text leaves out, and is empty if it shows all: a call with an omission is never
    approved by a single key.
    """

    text: str
    state: str
    paths: Mapping[str, str] = field(default_factory=dict)
    fails: bool = False
    counts: str = ""
    omitted: str = ""
    error: ErrorInfo | None = None
    """The error that the call would end with: it can only fail, so it changes nothing."""


def member_of(tool: ToolLike, name: str) -> Callable[..., Any] | None:
    """Return what a tool can besides its call: the function of that name, None where it has none.

    A tool may be anyone's object: what else stands under the name, or fails, is as if absent.
    """
    try:
        found = getattr(tool, name, None)
    except Exception:
        return None
    return found if callable(found) else None


def preview_of(
    tool: ToolLike,
    arguments: Mapping[str, Any],
    policy: Policy | None = None,
    known_file: KnownFile | None = None,
) -> Preview:
    """Return what a call would change; empty where the tool cannot tell, a fault in its place where
    the call could only fail. ``policy`` is the one that the call would run under. Blocks: call it
    in a thread."""
    look = member_of(tool, "preview")
    if look is None:
        return Preview("", "")
    token = CONTEXT.set(ToolContext(policy=policy or Policy(), known_file=known_file))
    try:
        seen = look(arguments)
        return seen if isinstance(seen, Preview) else Preview("", "")
    except ToolError as error:
        text, state = f"This call can only fail: {error}", f"fails: {error}"
        ended = ErrorInfo(error.code, str(error)[: error.max_chars])
        return Preview(text, state, fails=True, error=ended)
    except Exception as error:  # anyone's code
        why = f"{type(error).__name__}: {error}"[:300]
        return Preview(f"What it would change cannot be told: {why}", f"fails: {why}", fails=True)
    finally:
        CONTEXT.reset(token)


def _check_parts(spec: Any, run: Any, functions: Mapping[str, Any], pinned: Any) -> None:
    """Raise `ToolDefinitionError` for what no `Tool` can be made of."""
    wrong = ""
    if isinstance(spec, type) or not (isinstance(spec, ToolSpec) or callable(spec)):
        wrong = f"spec cannot be {for_message(spec)}"
    for name, function in {"run": run, **functions}.items():
        if not callable(function) and (function is not None or name == "run"):
            wrong = f"{name} cannot be {for_message(function)}"
    if pinned is not None and not isinstance(pinned, str):
        wrong = f"pinned cannot be {for_message(pinned)}"
    if wrong:
        hint = "write Tool(ToolSpec(…), run), or decorate a function with @tool"
        raise ToolDefinitionError(f"a tool's {wrong}", hint=hint)


class Tool:
    """A spec and the function behind it.

    ``run`` gets the arguments as JSON values. Where it is not asynchronous it runs in a thread.
    ``spec`` may be a function that makes the spec, called once, when it is first needed. A tool
    that was made of a plain function can still be called as that function. ``preview`` tells what a
    call would change; it runs in a thread, changes nothing, and may raise `ToolError`.
    ``disabled_reason`` and ``pinned`` are as `ToolLike` has them. ``__name__`` is the tool's name,
    known before its spec is made.
    """

    __name__: str

    def __init__(
        self,
        spec: ToolSpec | Callable[[], ToolSpec],
        run: Run,
        *,
        function: Callable[..., Any] | None = None,
        preview: Callable[[Mapping[str, Any]], Preview | None] | None = None,
        disabled_reason: Callable[[], str | None] | None = None,
        pinned: str | None = None,
    ) -> None:
        functions = {"function": function, "preview": preview, "disabled_reason": disabled_reason}
        _check_parts(spec, run, functions, pinned)
        self._make_spec = spec
        self._run = run
        self._function = function
        called: Any = function or run
        self.is_async = any(map(inspect.iscoroutinefunction, (called, inspect.unwrap(called))))
        self.blocking = None if self.is_async else run
        self.preview = preview
        self.disabled_reason = disabled_reason
        self.pinned = pinned
        if function is not None:
            functools.update_wrapper(cast("Any", self), function, updated=())
        if isinstance(spec, ToolSpec):
            self.__name__ = spec.name

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """Return what a model, a validator and a policy may know. Raises ToolDefinitionError where
        the function's types have no JSON Schema."""
        made = self._make_spec
        made = made if isinstance(made, ToolSpec) else made()
        return require_instance("spec", made, ToolSpec, "give a ToolSpec, or what makes one")

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Runs the tool with arguments that were validated against its schema.

        Returns what the function returns and raises what it raises, or `InvalidArguments`. There is
        no limit of time here: `mlx_tools.tools.execute` has one.
        """
        if self.is_async:
            return await self._run(arguments)
        value, error = await submit(functools.partial(self._run, arguments)) or (None, None)
        if error is not None:
            raise error
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the plain function that the tool was made of."""
        if self._function is None:
            raise TypeError("this tool was made of no plain function: await its call(arguments)")
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.__name__}>"


def of_plugin(tool: ToolLike, plugin: str) -> Tool:
    """The same tool, said to come from ``plugin``."""
    run: Run = member_of(tool, "blocking") or tool.call
    preview, disabled = (member_of(tool, name) for name in ("preview", "disabled_reason"))
    return Tool(replace(tool.spec, plugin=plugin), run, preview=preview, disabled_reason=disabled)


# --- what a tool declares of its calls ------------------------------------------------------------


class EffectsBy(Struct, frozen=True):
    """Effects that depend on the value of one argument.

    ``table`` has the effects for each value; for a value that is not in it, and for a call without
    the argument, all effects are taken. Raises ToolDefinitionError for what is no effect.
    """

    argument: str
    table: Mapping[str, Effects]

    def __post_init__(self) -> None:
        require_text("argument", self.argument, "give the name of a parameter")
        given = require_mapping("table", self.table, "give the effects for each value")
        table = {value: effects_of(some, self.argument) for value, some in given.items()}
        force_setattr(self, "table", table)

    def __call__(self, arguments: Mapping[str, Any]) -> Effects:
        value = arguments.get(self.argument)
        return self.table.get(value, ALL_EFFECTS) if isinstance(value, str) else ALL_EFFECTS

    @property
    def possible(self) -> Effects:
        """Return what a call that fits the schema may do at most."""
        return frozenset().union(*self.table.values())


def effects_of(
    effects: EffectsLike | None, name: str
) -> Effects | Callable[[Mapping[str, Any]], Effects]:
    """The effects that were declared for a tool, or an argument, of this name; all where there are
    none."""
    if effects is None:
        return ALL_EFFECTS
    if callable(effects):
        return cast("Callable[[Mapping[str, Any]], Effects]", effects)
    some = f"some of {', '.join(sorted(ALL_EFFECTS))}"
    if not isinstance(effects, Iterable):
        raise ToolDefinitionError(
            f"{name}: effects: {for_message(effects)} is no set of effects",
            hint=f"{some}, or a function of the arguments",
        )
    listed = (effects,) if isinstance(effects, str) else tuple(effects)
    if unknown := [item for item in listed if item not in tuple(ALL_EFFECTS)]:
        raise ToolDefinitionError(f"{name}: {for_message(unknown[0])} is not an effect", hint=some)
    return cast("Effects", frozenset(listed))


def check_declared(spec: ToolSpec) -> None:
    """Check that the spec declares what can be declared, whoever made it. Raises
    ToolDefinitionError."""
    name, timeout, retry = spec.name, spec.timeout, spec.retry
    if not isinstance(spec.effects, frozenset) or not spec.effects <= ALL_EFFECTS:
        effects_of(spec.effects, name)
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise ToolDefinitionError(
                f"{name}: timeout: {for_message(timeout)} is not a number of seconds"
            )
        if not 0 < timeout <= _MAX_SECONDS:
            allowed = f"not between 0 and {_MAX_SECONDS:.0f}"
            raise ToolDefinitionError(f"{name}: timeout: {for_message(timeout)} s is {allowed}")
    for told in ("needs_approval", "private", "cache"):
        if not isinstance(getattr(spec, told), bool):
            raise ToolDefinitionError(
                f"{name}: {told}: {for_message(getattr(spec, told))} is not True or False"
            )
    bound = spec.consent_argument
    if bound is not None and not isinstance(bound, str):
        raise ToolDefinitionError(
            f"{name}: consent_argument: {for_message(bound)} is not the name of an argument"
        )
    if retry not in ("never", "read_only"):
        raise ToolDefinitionError(
            f"{name}: retry: {for_message(retry)} is not allowed", hint="never or read_only"
        )


# --- a function as a tool -------------------------------------------------------------------------


class Declaration(TypedDict, total=False):
    """The declarations that ``@tool`` takes; see there."""

    name: str | None
    description: str | None
    parameters: Mapping[str, Any] | None
    effects: EffectsLike | None
    timeout: float | None
    retry: Literal["never", "read_only"]
    needs_approval: bool
    private: bool
    cache: bool
    consent_argument: str | None


@overload
def tool(**declaration: Unpack[Declaration]) -> Callable[[Callable[..., Any]], Tool]: ...
@overload
def tool(function: Callable[..., Any], /, **declaration: Unpack[Declaration]) -> Tool: ...


def tool(function: Callable[..., Any] | None = None, /, **declaration: Unpack[Declaration]) -> Any:
    """Makes a tool of a typed function: ``@tool``, or ``@tool(effects={"read"})``.

    The name is the function's, the description its docstring up to the first section, the schema
    comes from annotations, defaults and the parameters' descriptions (Google, NumPy or Sphinx
    style). The function gets values of the types it is annotated with; a parameter annotated with
    `ToolContext` gets the call's context. Function and tool may be synchronous or asynchronous.

    ``parameters`` is a JSON Schema to be used as it is; arguments are then passed on as they came.
    ``effects`` are some of read, write, execute, network, or a pure function from the arguments to
    them; a tool that declares none is taken to have all. ``timeout`` is in seconds, None for the
    run's own. ``retry`` ``read_only`` lets a call that changes nothing be tried once more where it
    failed. ``needs_approval`` asks a person before every call. ``private`` says that what it
    returns may be what only the user should see. ``cache`` False says that the same call may be
    answered otherwise a moment later, as by a clock. ``consent_argument`` names the argument that a
    consent for the session is bound to: a call with another value asks again.

    Raises ToolDefinitionError for a name, a signature or a value that cannot be used: at once where
    the signature shows it, else when the spec is first needed, at the latest when the tool is
    registered.
    """
    said: dict[str, Any] = {**declaration}
    if unknown := said.keys() - Declaration.__annotations__.keys():
        raise TypeError(f"tool() got an unexpected keyword argument {min(unknown)!r}")
    name, text, schema = (said.pop(key, None) for key in ("name", "description", "parameters"))
    effects, seconds = said.pop("effects", None), said.get("timeout")

    def make(target: Callable[..., Any]) -> Tool:
        named = _checked_name(target, name)
        if not isinstance(text, str | None):
            raise ToolDefinitionError(f"{named}: description: {text!r:.80} is no text")
        description = parse_docstring(inspect.getdoc(target)).text if text is None else text
        spec = ToolSpec(named, description, effects=effects_of(effects, named), **said)
        check_declared(spec)
        if seconds is not None:
            spec = replace(spec, timeout=float(seconds))
        return _make_tool(target, spec, schema)

    return make if function is None else make(function)


def _make_tool(function: Callable[..., Any], declared_spec: ToolSpec, schema: Any) -> Tool:
    """The tool of a function that declares all but its parameters, or has a schema of its own."""
    if schema is None:
        parameters_of(function, declared_spec.name)

    @functools.cache
    def arguments() -> Arguments:
        return Arguments(function, declared_spec.name, schema)

    def run(call_arguments: Mapping[str, Any]) -> Any:
        made = arguments()
        values = made.convert(call_arguments)
        if made.context is not None:
            values[made.context] = current_context()
        return function(**values)

    spec = lambda: replace(declared_spec, parameters=arguments().schema)  # noqa: E731
    made = Tool(spec, run, function=function)
    made.__name__ = declared_spec.name
    return made


def _checked_name(function: Any, name: Any) -> str:
    """Return what a tool of this function is called. Raises ToolDefinitionError for what is no
    function of which a tool can be made, and no name."""
    # a partial is a method descriptor, and thereby a routine, from Python 3.14 on
    if not inspect.isroutine(function) or isinstance(function, classmethod | functools.partial):
        raise ToolDefinitionError(f"{for_message(function)} is not a function", hint=METHOD)
    named = name or function.__name__
    if not isinstance(named, str) or not TOOL_NAME.fullmatch(named):
        raise ToolDefinitionError(
            f"{for_message(named)} cannot name a tool",
            hint="give one, of A-Z a-z 0-9 _ . -, with name=...",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolDefinitionError(f"{named}: it yields values", hint="return a list of them")
    return named
