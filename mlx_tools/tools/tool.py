"""A tool: its specification, and the function that runs when it is called."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol, TypedDict, Unpack, cast, overload

from msgspec import Struct, field
from msgspec.structs import force_setattr

from mlx_tools.errors import (
    ToolDefinitionError,
    describe_error,
    for_message,
    require_instance,
    require_mapping,
    require_text,
)
from mlx_tools.messages import ALL_EFFECTS, TOOL_NAME, Effects, ErrorInfo, ToolSpec, replace
from mlx_tools.packages import must_pass
from mlx_tools.policy import Policy
from mlx_tools.tools.context import CONTEXT, KnownFile, ToolContext, ToolError, current_context
from mlx_tools.tools.signature import METHOD, Arguments, parse_docstring, read_parameters
from mlx_tools.tools.threads import submit

Run = Callable[[Mapping[str, Any]], Any]
"""The function behind a tool. It gets the arguments, and may return an awaitable."""

EffectsLike = Iterable[str] | Callable[[Mapping[str, Any]], Iterable[str]]

_log = logging.getLogger(__name__)
_MAX_SECONDS: Final = 86_400.0


class ToolLike(Protocol):
    """Any object that can be registered as a tool, such as a `Tool`.

    These members are optional:

    - ``blocking``: the call as a function of the arguments, which runs in a thread. It is used
      instead of ``call``.
    - ``preview``: returns the change that a call would make (`Preview`), None if unknown.
    - ``disabled_reason``: returns why the tool cannot work now, None if it can. It is called each
      time that this is needed.
    - ``pinned``: the digest of the version that the user agreed to, such as one of its files.
    """

    @property
    def spec(self) -> ToolSpec: ...
    async def call(self, arguments: Mapping[str, Any]) -> Any: ...


class Preview(Struct, frozen=True):
    """The change that a call would make, described before it runs."""

    text: str
    """The change as a person reads it, such as a unified diff of a file."""
    state: str
    """Identifies the state that the call would change, such as a hash of a file's content. An
    approval counts only as long as the state is the same."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """For each argument that is a path, the real path that it leads to."""
    fails: bool = False
    """True if the call would fail, or if the preview itself failed."""
    counts: str = ""
    """The size of the whole change, such as ``+2 -17`` lines; empty if unknown."""
    omitted: str = ""
    """A description of the part of the change that ``text`` leaves out. Such a call is never
    approved by a single key."""
    error: ErrorInfo | None = None
    """The error that the call would fail with, None if it would not fail."""


def find_member(tool: ToolLike, name: str) -> Callable[..., Any] | None:
    """Return a tool's optional function of this name, or None.

    A tool may be any object. A member that is not a function, or that raises, counts as absent.
    """
    try:
        member = getattr(tool, name, None)
    except BaseException as error:  # a property may raise anything
        if must_pass(error):
            raise
        _log.info("%s of a tool was not read: %s", name, type(error).__name__)
        return None
    return member if callable(member) else None


def disable_tool(tool: Tool, reason: str | Callable[[], str | None] | None) -> Tool:
    """Return the tool. It is disabled if ``reason`` is a text, or returns one."""
    tool.disabled_reason = reason if callable(reason) else lambda: reason
    return tool


def make_preview(
    tool: ToolLike,
    arguments: Mapping[str, Any],
    policy: Policy | None = None,
    known_file: KnownFile | None = None,
) -> Preview:
    """Return the preview of a call, an empty one if the tool has none.

    If the call would fail, the preview says why. This blocks: call it in a thread.

    Args:
        tool: the tool that would be called.
        arguments: the validated arguments.
        policy: the policy that the call would run under.
        known_file: returns the model's view of a file.
    """
    preview_function = find_member(tool, "preview")
    if preview_function is None:
        return Preview("", "")
    token = CONTEXT.set(ToolContext(policy=policy or Policy(), known_file=known_file))
    try:
        preview = preview_function(arguments)
        return preview if isinstance(preview, Preview) else Preview("", "")
    except ToolError as error:
        text, state = f"This call can only fail: {error}", f"fails: {error}"
        call_error = ErrorInfo(error.code, str(error)[: error.max_chars])
        return Preview(text, state, fails=True, error=call_error)
    except BaseException as error:  # a tool's code may raise anything
        if must_pass(error):
            raise
        why = describe_error(error)
        return Preview(f"What it would change cannot be told: {why}", f"fails: {why}", fails=True)
    finally:
        CONTEXT.reset(token)


def _check_parts(spec: Any, run: Any, functions: Mapping[str, Any], pinned: Any) -> None:
    """Raise `ToolDefinitionError` if a `Tool` cannot be made of these parts."""
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
    """A specification and the function behind it.

    A tool that was made from a plain function can still be called like that function. ``__name__``
    is the tool's name; it is known before the specification is made.

    Args:
        spec: the specification, or a function that makes it. The function is called once, when the
            specification is first needed.
        run: called with the arguments as JSON values. It runs in a thread unless it is
            asynchronous.
        function: the plain function that the tool was made from.
        preview: returns the change that a call would make. It runs in a thread, changes nothing,
            and may raise `ToolError`.
        disabled_reason: see `ToolLike`.
        pinned: see `ToolLike`.
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
        """Return the specification, for models, validators and policies.

        Raises:
            ToolDefinitionError: the types of the function have no JSON Schema.
        """
        spec = self._make_spec
        spec = spec if isinstance(spec, ToolSpec) else spec()
        return require_instance("spec", spec, ToolSpec, "give a ToolSpec, or a function for one")

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Run the tool with arguments that were validated against its schema.

        It has no time limit; use `mlx_tools.tools.execute` for one.

        Returns:
            The value that the function returns.

        Raises:
            InvalidArguments: the arguments do not fit the types of the function.
        """
        if self.is_async:
            return await self._run(arguments)
        value, error = await submit(functools.partial(self._run, arguments)) or (None, None)
        if error is not None:
            raise error
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function that the tool was made from."""
        if self._function is None:
            raise TypeError("this tool has no plain function: await its call(arguments)")
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.__name__}>"


def with_plugin(tool: ToolLike, plugin: str) -> Tool:
    """Return a copy of the tool that belongs to ``plugin``."""
    run: Run = find_member(tool, "blocking") or tool.call
    preview, disabled = (find_member(tool, name) for name in ("preview", "disabled_reason"))
    return Tool(replace(tool.spec, plugin=plugin), run, preview=preview, disabled_reason=disabled)


# --- declarations of a tool -----------------------------------------------------------------------


class EffectsBy(Struct, frozen=True):
    """Effects that depend on the value of one argument.

    If the table does not have the value, or the call does not have the argument, the call counts
    with all effects.

    Args:
        argument: the name of the parameter.
        table: the effects for each value.

    Raises:
        ToolDefinitionError: the table has an entry that is not an effect.
    """

    argument: str
    table: Mapping[str, Effects]

    def __post_init__(self) -> None:
        require_text("argument", self.argument, "give the name of a parameter")
        given_table = require_mapping("table", self.table, "give the effects for each value")
        table = {value: parse_effects(some, self.argument) for value, some in given_table.items()}
        force_setattr(self, "table", table)

    def __call__(self, arguments: Mapping[str, Any]) -> Effects:
        value = arguments.get(self.argument)
        return self.table.get(value, ALL_EFFECTS) if isinstance(value, str) else ALL_EFFECTS

    @property
    def possible(self) -> Effects:
        """Return all effects that calls may have."""
        return frozenset().union(*self.table.values())


def parse_effects(
    effects: EffectsLike | None, name: str
) -> Effects | Callable[[Mapping[str, Any]], Effects]:
    """Return the declared effects of a tool or argument, all effects if None.

    Raises:
        ToolDefinitionError: an item is not an effect. The message begins with ``name``.
    """
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
    """Check the declarations of a specification.

    Raises:
        ToolDefinitionError: a declaration has a wrong type or value.
    """
    name, timeout, retry = spec.name, spec.timeout, spec.retry
    if not isinstance(spec.effects, frozenset) or not spec.effects <= ALL_EFFECTS:
        parse_effects(spec.effects, name)
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise ToolDefinitionError(
                f"{name}: timeout: {for_message(timeout)} is not a number of seconds"
            )
        if not 0 < timeout <= _MAX_SECONDS:
            allowed = f"not between 0 and {_MAX_SECONDS:.0f}"
            raise ToolDefinitionError(f"{name}: timeout: {for_message(timeout)} s is {allowed}")
    for flag in ("needs_approval", "private", "cache"):
        if not isinstance(getattr(spec, flag), bool):
            raise ToolDefinitionError(
                f"{name}: {flag}: {for_message(getattr(spec, flag))} is not True or False"
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
    """The declarations that `tool` takes. They are explained in its docstring."""

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
    """Make a tool from a typed function: ``@tool``, or ``@tool(effects={"read"})``.

    The name is the function's, and the description its docstring up to the first section. The
    schema comes from annotations, defaults and the parameters' descriptions (Google, NumPy or
    Sphinx style). The function gets values of the types it is annotated with. A parameter annotated
    with `ToolContext` gets the call's context. Function and tool may be synchronous or
    asynchronous.

    Args:
        function: the function, if the decorator has no arguments.
        declaration: see below.

    Declarations:
        name: another name for the tool.
        description: another description.
        parameters: a JSON Schema to use unchanged; arguments are then passed on unchanged, too.
        effects: some of read, write, execute, network, or a pure function that returns them for
            the arguments of a call. A tool that declares none has all.
        timeout: seconds for one call, None for the limit of the run.
        retry: with ``read_only`` a failed call is made once more if it changes nothing.
        needs_approval: True to ask a person before every call.
        private: True if only the user should see the output.
        cache: False if the same call may return another result a moment later, as for a clock.
        consent_argument: the argument that an approval for the session is bound to. A call with
            another value needs a new approval.

    Raises:
        ToolDefinitionError: a name, signature or value cannot be used. Errors of the signature are
            raised at once, others when the specification is first needed, at the latest when the
            tool is registered.
    """
    declared: dict[str, Any] = {**declaration}
    if unknown := declared.keys() - Declaration.__annotations__.keys():
        raise TypeError(f"tool() got an unexpected keyword argument {min(unknown)!r}")
    name, text, schema = (declared.pop(key, None) for key in ("name", "description", "parameters"))
    effects, seconds = declared.pop("effects", None), declared.get("timeout")

    def make(target: Callable[..., Any]) -> Tool:
        named = _check_name(target, name)
        if not isinstance(text, str | None):
            raise ToolDefinitionError(f"{named}: description: {text!r:.80} is no text")
        description = parse_docstring(inspect.getdoc(target)).text if text is None else text
        spec = ToolSpec(named, description, effects=parse_effects(effects, named), **declared)
        check_declared(spec)
        if seconds is not None:
            spec = replace(spec, timeout=float(seconds))
        return _make_tool(target, spec, schema)

    return make if function is None else make(function)


def _make_tool(function: Callable[..., Any], declared_spec: ToolSpec, schema: Any) -> Tool:
    """Make the tool of a function, with the given schema or that of its signature."""
    if schema is None:
        read_parameters(function, declared_spec.name)

    @functools.cache
    def arguments() -> Arguments:
        return Arguments(function, declared_spec.name, schema)

    def run(call_arguments: Mapping[str, Any]) -> Any:
        tool = arguments()
        values = tool.convert(call_arguments)
        if tool.context is not None:
            values[tool.context] = current_context()
        return function(**values)

    spec = lambda: replace(declared_spec, parameters=arguments().schema)  # noqa: E731
    tool = Tool(spec, run, function=function)
    tool.__name__ = declared_spec.name
    return tool


def _check_name(function: Any, name: Any) -> str:
    """Return the name of a function's tool.

    Raises:
        ToolDefinitionError: no tool can be made of the function, or the name is not valid.
    """
    # From Python 3.14 on a partial counts as a routine, too.
    if not inspect.isroutine(function) or isinstance(function, classmethod | functools.partial):
        raise ToolDefinitionError(f"{for_message(function)} is not a function", hint=METHOD)
    tool_name = name or function.__name__
    if not isinstance(tool_name, str) or not TOOL_NAME.fullmatch(tool_name):
        raise ToolDefinitionError(
            f"{for_message(tool_name)} cannot name a tool",
            hint="give one, of A-Z a-z 0-9 _ . -, with name=...",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolDefinitionError(f"{tool_name}: it yields values", hint="return a list of them")
    return tool_name
