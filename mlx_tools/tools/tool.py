"""A tool: what everybody may know of it (its spec), and what runs when it is called."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, cast, overload

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import TOOL_NAME, ToolSpec
from mlx_tools.policy import Policy
from mlx_tools.tools.context import ToolContext, current_context, reset_context, set_context
from mlx_tools.tools.context import ToolError as ToolError
from mlx_tools.tools.declaration import EffectsLike, effects_of, retry_of, timeout_of
from mlx_tools.tools.docstring import docstring_of
from mlx_tools.tools.signature import METHOD, Arguments, AsGiven, parameters_of

Run = Callable[[Mapping[str, Any]], Any]
"""What runs when a tool is called: it gets the arguments, and may return an awaitable."""

_MAX_WRAPPERS: Final = 100


class Callee(Protocol):
    """Anything that can be registered as a tool, whether or not it is a `Tool`."""

    @property
    def spec(self) -> ToolSpec: ...
    async def call(self, arguments: Mapping[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class Preview:
    """What a call would change, told before it runs.

    ``text`` is for a person: a unified diff of what is written. ``state`` identifies what the call
    would act on as it is now, such as a hash of the file's content: an approval holds only as long
    as it stays the same.
    """

    text: str
    state: str


def preview_of(tool: Callee, arguments: Mapping[str, Any], policy: Policy | None = None) -> Preview:
    """What a call would change; empty where the tool cannot tell, a fault in its place where the
    call could only fail. ``policy`` is the one that the call would run under. Blocks: call it in a
    thread."""
    look = getattr(tool, "preview", None)
    token = set_context(ToolContext(policy=policy))
    try:
        return (look(arguments) if look is not None else None) or Preview("", "")
    except ToolError as error:
        return Preview(f"This call can only fail: {error}", f"fails: {error}")
    finally:
        reset_context(token)


class Tool:
    """A spec and the function behind it.

    ``run`` gets the arguments as JSON values. Where it is not asynchronous it runs in a thread.
    ``spec`` may be a function that makes the spec, called once, when it is first needed. A tool
    that was made of a plain function can still be called as that function. ``preview`` tells what a
    call would change; it runs in a thread, changes nothing, and may raise `ToolError`. ``__name__``
    is the tool's name, known before its spec is made.
    """

    __name__: str

    def __init__(
        self,
        spec: ToolSpec | Callable[[], ToolSpec],
        run: Run,
        *,
        function: Callable[..., Any] | None = None,
        preview: Callable[[Mapping[str, Any]], Preview | None] | None = None,
    ) -> None:
        self._spec = spec
        self._run = run
        self._preview = preview
        self._function = function
        self.is_async = is_async(function if function is not None else run)
        if function is not None:
            functools.update_wrapper(cast("Any", self), function, updated=())
        if isinstance(spec, ToolSpec):
            self.__name__ = spec.name

    @property
    def spec(self) -> ToolSpec:
        """What a model, a validator and a policy may know. Raises ToolDefinitionError where the
        function's types have no JSON Schema."""
        if not isinstance(self._spec, ToolSpec):
            self._spec = self._spec()
        return self._spec

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Runs the tool with arguments that were validated against its schema.

        Returns what the function returns and raises what it raises, or `InvalidArguments`. There is
        no limit of time here: `mlx_tools.tools.execute` has one.
        """
        if self.is_async:
            return await self._run(arguments)
        from mlx_tools.tools.threads import submit

        value, error = await submit(self.blocking(arguments)) or (None, None)
        if error is not None:
            raise error
        return value

    def blocking(self, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        """For a tool that is not asynchronous: the call, to be made in a thread."""
        return functools.partial(self._run, arguments)

    def preview(self, arguments: Mapping[str, Any]) -> Preview | None:
        """What a call with these arguments would change, None where the tool cannot tell. Raises
        `ToolError` where such a call could only fail."""
        return self._preview(arguments) if self._preview is not None else None

    def of_plugin(self, plugin: str) -> Tool:
        """The same tool, said to come from ``plugin``."""
        spec = replace(self.spec, plugin=plugin)
        return Tool(spec, self._run, function=self._function, preview=self._preview)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the plain function that the tool was made of."""
        if self._function is None:
            raise TypeError("this tool was made of no plain function: await its call(arguments)")
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.__name__}>"


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives an awaitable: it, or anything that it wraps, is asynchronous."""
    target: Any = function
    for _ in range(_MAX_WRAPPERS):
        call = getattr(target, "__call__", None)  # noqa: B004 (the method itself is looked at)
        if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(call):
            return True
        partial = isinstance(target, functools.partial)
        target = target.func if partial else getattr(target, "__wrapped__", None)
        if target is None:
            return False
    return False


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    effects: EffectsLike | None = None,
    timeout: float | None = None,
    retry: Literal["never", "read_only"] = "never",
    needs_approval: bool = False,
    private: bool = False,
    cache: bool = True,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    effects: EffectsLike | None = None,
    timeout: float | None = None,
    retry: Literal["never", "read_only"] = "never",
    needs_approval: bool = False,
    private: bool = False,
    cache: bool = True,
) -> Any:
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
    answered otherwise a moment later, as by a clock.

    Raises ToolDefinitionError for a name, a signature or a value that cannot be used: at once where
    the signature shows it, else when the spec is first needed, at the latest when the tool is
    registered.
    """
    caller = sys._getframe(1)
    names = {} if caller.f_locals is caller.f_globals else dict(caller.f_locals)

    def make(target: Callable[..., Any]) -> Tool:
        return _make(
            target,
            name=name,
            description=description,
            parameters=parameters,
            names=dict(names),
            effects=effects_of(effects, name or str(getattr(target, "__name__", "tool"))),
            timeout=timeout_of(timeout),
            retry=retry_of(retry),
            needs_approval=bool(needs_approval),
            private=bool(private),
            cache=bool(cache),
        )

    return make if function is None else make(function)


def _make(
    function: Callable[..., Any],
    *,
    name: str | None,
    description: str | None,
    parameters: Mapping[str, Any] | None,
    names: dict[str, Any],
    **rest: Any,
) -> Tool:
    named = _checked_name(function, name)
    if not isinstance(description, str | None):
        raise ToolDefinitionError(f"{named}: description: {description!r:.80} is no text")
    if parameters is None:
        parameters_of(function, named)
    text = docstring_of(function).text if description is None else description

    @functools.cache
    def arguments() -> Arguments | AsGiven:
        whole = parameters is None
        made = Arguments(function, named, names) if whole else AsGiven(function, parameters, names)
        names.clear()  # what they name need not live on
        return made

    def run(given: Mapping[str, Any]) -> Any:
        made = arguments()
        values = made.convert(given)
        if made.context is not None:
            values[made.context] = current_context()
        return function(**values)

    made = Tool(lambda: ToolSpec(named, text, arguments().schema, **rest), run, function=function)
    made.__name__ = named
    return made


def _checked_name(function: Any, name: Any) -> str:
    """What a tool of this function is called. Raises ToolDefinitionError for what is no function of
    which a tool can be made, and no name."""
    if isinstance(function, Tool) or not callable(function):
        hint = METHOD if isinstance(function, classmethod) else None
        raise ToolDefinitionError(f"{function!r} is not a function", hint=hint)
    named = name or getattr(function, "__name__", None) or type(function).__name__
    if not isinstance(named, str) or not TOOL_NAME.fullmatch(named):
        raise ToolDefinitionError(
            f"{named!r} cannot name a tool", hint="give one, of A-Z a-z 0-9 _ . -, with name=..."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolDefinitionError(f"{named}: it yields values", hint="return a list of them")
    return named
