"""The way in which a model is asked: route, chat format, style, strategy, context."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

from msgspec import Struct, to_builtins

from mlx_tools.backends.adapters import raise_mapped
from mlx_tools.backends.address import Address
from mlx_tools.backends.interface import Backend, RouteChoice, read_traits
from mlx_tools.backends.models.files import ModelFiles, read_context, read_model_files
from mlx_tools.backends.verdicts import (
    DEFAULT_STYLE,
    NativeVerdict,
    PromptChoice,
    StrategyChoice,
    StyleChoice,
    VerdictChoice,
    VerdictStore,
    decide,
    find_verdict,
)
from mlx_tools.errors import (
    BackendError,
    BackendTimeout,
    ChatFormatError,
    ModelError,
    UsageError,
    read_attribute,
    wrong_argument,
)
from mlx_tools.messages import replace
from mlx_tools.prompt import NAMED_FORMATS, ChatFormat, format_for_name, format_from_template

if TYPE_CHECKING:
    from mlx_tools.backends.inspection import SelectedBackend


@contextmanager
def limit_discovery(seconds: float, option: str = "--timeout") -> Iterator[None]:
    """Limit the time of requests before the first completion, within the block.

    Args:
        seconds: the limit.
        option: the option that allows more time, for the message.

    Raises:
        BackendTimeout: the block took longer.
    """
    import anyio

    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise BackendTimeout(
            f"the server did not say what it serves in the {seconds:.3g} s that there were",
            hint=f"allow more time with {option}, or see the server's log",
        )


# --- chat format ------------------------------------------------------------------------------


class FormatChoice(Struct, frozen=True):
    """A chat format, and the reason for it."""

    chat_format: ChatFormat
    source: str
    """The source of the format, in a few words."""
    doubt: str = ""
    """One line for a person if the format is only a guess, otherwise empty."""

    @property
    def is_named(self) -> bool:
        """True if a person named the format."""
        return self.source == _NAMED_SOURCE


_NAMED_SOURCE: Final = "named"


def find_chat_format(
    requested_format: str = "auto", *, files: ModelFiles | None = None, model: str | None = None
) -> FormatChoice:
    """Return the chat format to use.

    With any format, control tokens in the model's files are neutralised.

    Args:
        requested_format: the name of a format, or ``auto``: the model's own template if its files
            are on this machine, otherwise a guess by its name.
        files: the model's files, None if they are not on this machine.
        model: the model's name, None if unknown.

    Raises:
        ChatFormatError: the name is unknown, or the template cannot be used.
    """
    source, doubt = _NAMED_SOURCE, ""
    if requested_format in NAMED_FORMATS:
        chat_format = NAMED_FORMATS[requested_format]
    elif requested_format != "auto":
        raise ChatFormatError(
            f"{requested_format!r} is no chat format", hint=f"use auto, {', '.join(NAMED_FORMATS)}"
        )
    elif files is not None and files.chat_template is not None:
        source = "the model's own template"
        chat_format = format_from_template(
            files.chat_template,
            name=files.name,
            bos_token=files.bos_token or "",
            eos_token=files.eos_token or "",
            special_tokens=(*files.special_tokens, *files.end_tokens),
            adds_bos=files.adds_bos,
        )
    else:
        chat_format = format_for_name(model or "")
        source = f"the model's name ({chat_format.name})"
        if chat_format is NAMED_FORMATS["plain"]:
            unknown_model = "nothing says which model is served"
            reason = f"that of {model} is not known" if model else unknown_model
            doubt = (
                f"the chat format plain is a guess, since {reason} (start with --chat-format NAME"
                f"{'' if model else ', or --model NAME'})"
            )
    if files is not None:
        tokens = (*chat_format.control_tokens, *files.special_tokens, *files.end_tokens)
        # The model may have more control tokens than the named format. A tool's output must not put
        # any of them into the prompt.
        chat_format = replace(
            chat_format,
            control_tokens=tuple(dict.fromkeys(filter(None, tokens))),
            bos="" if files.adds_bos else chat_format.bos,
        )
    return FormatChoice(chat_format, source, doubt)


async def find_served_format(
    backend: Backend, requested_format: str = "auto", *, files: ModelFiles | None, model: str | None
) -> FormatChoice:
    """Return the chat format of the model behind ``backend``; see `find_chat_format`.

    If the model is unknown, the format of mlx-lm's server is found by a few short requests to its
    chat endpoint.
    """
    server: Any = backend
    if (
        requested_format == "auto"
        and files is None
        and model
        and read_attribute(backend, "is_ollama")
    ):
        from mlx_tools.backends.ollama_raw import FORMAT_TIMEOUT, format_name

        if (name := await format_name(server, model, FORMAT_TIMEOUT)) is not None:
            chat_format = format_for_name(model)
            chat_format = (
                chat_format if chat_format.user == NAMED_FORMATS[name].user else NAMED_FORMATS[name]
            )
            return FormatChoice(chat_format, f"the template that Ollama shows ({name})")
    is_unknown = requested_format == "auto" and files is None and model is None
    if is_unknown and read_traits(backend).asks_server:
        from mlx_tools.backends.capabilities import is_mlx_lm, probe_chat_format

        if await is_mlx_lm(server) and (probed := await probe_chat_format(server)) is not None:
            return FormatChoice(probed, f"the server's own chat endpoint ({probed.name})")
    return find_chat_format(requested_format, files=files, model=model)


# --- the model --------------------------------------------------------------------------------


def find_model_name(backend: Backend) -> str | None:
    """Return the name of the model behind ``backend``, None if unknown."""
    model = read_attribute(backend, "model")
    return model if isinstance(model, str) else None


def find_model_folder(backend: Backend, model: str | None = None) -> Path | None:
    """Return the folder of the model behind ``backend``, None if not on this machine.

    Args:
        backend: the backend.
        model: the model's name, if it is known.
    """
    model_value = read_attribute(backend, "model")
    if isinstance(model_value, Path):
        return model_value
    name = model or model_value
    address = read_attribute(backend, "address")
    is_remote = isinstance(address, Address) and not address.loopback
    if not isinstance(name, str) or (is_remote and Path(name).is_absolute()):
        return None  # the path is on another machine
    from mlx_tools.backends.models.listing import find_model

    return find_model(name)


async def find_context_size(backend: Backend, model: str | None = None) -> int | None:
    """Return the size of the model's context in tokens, None if unknown.

    It is read from the backend's ``context`` (a number or a function), otherwise from the model's
    files.

    Args:
        backend: the backend.
        model: the model's name, if it is known.

    Raises:
        BackendBroken: ``context`` failed.
        UsageError: ``context`` is not a number of tokens.
    """
    size = await _declared_context(backend)
    if size is not None:
        return size
    try:
        named = model is not None or find_model_name(backend) is not None
        if not named and read_traits(backend).asks_server:
            model = (await _inspect(backend)).model
        folder = find_model_folder(backend, model)
        return None if folder is None else read_context(folder)
    except (BackendError, ModelError, UsageError):
        return None  # the run's own request will raise it again


async def _declared_context(backend: Backend) -> int | None:
    """Return the size of the context by the backend's ``context``, None if unknown."""
    try:
        size = getattr(backend, "context", None)
        size = size() if callable(size) else size
        size = await size if inspect.isawaitable(size) else size
    except BackendError:
        return None  # the run's own request will raise it again
    except Exception as error:
        raise_mapped(error, f"context of the backend {type(backend).__name__}")
    if size is None:
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        name = f"context of the backend {type(backend).__name__}"
        raise wrong_argument(name, size, "give a number of tokens, or None if it is unknown")
    return size


# --- native or prompted -----------------------------------------------------------------------


class Route(Struct, frozen=True, kw_only=True):
    """The way in which a model is asked, and the reason."""

    path: Literal["native", "prompted"]
    """``native``: by its server's chat interface, which shows it the tools and reads its calls.

    ``prompted``: by a prompt that mlx-tools writes.
    """
    reason: str
    completes: bool = True
    """True if the server also completes text, so that invalid calls can be mended by a prompt."""
    obeys: bool = False
    """True if the server obeys a tool choice."""

    def to_json(self) -> dict[str, Any]:
        """Return the route for the header of a session."""
        fields: dict[str, Any] = {"path": self.path, "reason": self.reason}
        return fields if self.path == "prompted" else to_builtins(self)


def find_servers(backend: Backend) -> tuple[tuple[str, Backend], ...]:
    """Return the servers behind a backend, each with a stable name.

    There are none if the model runs in this process.
    """
    traits, server = read_traits(backend), cast("Any", backend)
    if traits.starts_server:
        return (("a server of our own", backend),)
    backends = (
        [backend_part.backend for backend_part in getattr(server, "upstreams", ())]
        if traits.asks_server
        else []
    )
    pairs = [
        (read_attribute(backend_part, "address"), backend_part)
        for backend_part in backends or [server]
    ]
    return tuple(
        (address.url, backend_part)
        for address, backend_part in pairs
        if isinstance(address, Address)
    )


async def find_route(
    backend: Backend,
    choice: RouteChoice = "auto",
    *,
    model: str | None,
    template: str | None = None,
    prompts: bool = True,
    store: VerdictStore | None = None,
) -> Route:
    """Return the route to the model behind ``backend``.

    ``choice`` is the wanted route. ``auto`` is native only if that was tested with this server and
    model (`mlx_tools.backends.capabilities`); otherwise it is prompted. ``model`` is the model's
    identity, ``template`` its chat template, None if unknown. Without ``prompts`` no model may be
    prompted.

    Raises:
        UsageError: the wanted route does not exist.
    """
    servers = find_servers(backend)
    completes = read_attribute(backend, "completes", True) is not False
    if choice == "prompted" and not prompts:
        raise UsageError(
            "no model may be prompted: routing.local_enabled is false",
            hint="set it to true, or leave routing.route at auto",
        )
    if choice == "prompted" and not completes:
        raise UsageError(
            "the server takes messages alone, no prompts", hint="routing.route: auto or native"
        )
    if not completes:
        reason, obeys = (
            "its server takes messages alone",
            read_attribute(backend, "obeys_choice", False),
        )
        return Route(path="native", reason=reason, completes=False, obeys=bool(obeys))
    if not servers and (choice == "native" or not prompts):
        raise UsageError(
            "there is no native path to a model in this process: it is prompted",
            hint="name a server with --url, or allow prompts: routing.route, routing.local_enabled",
        )
    verdict = _find_native(store or VerdictStore(), [name for name, _ in servers], model)
    if not prompts:
        reason, obeys = "prompts to a local model are turned off", bool(verdict and verdict.obeys)
        return Route(path="native", reason=reason, completes=False, obeys=obeys)
    if choice == "prompted" or not servers:
        reason = "as asked" if choice == "prompted" else "it runs in this process"
        return Route(path="prompted", reason=reason)
    if verdict is not None:
        native = choice == "native" or verdict.passed
        return Route(
            path="native" if native else "prompted",
            reason="as asked" if choice == "native" else verdict.reason,
            completes=verdict.completes,
            obeys=verdict.obeys,
        )
    if choice == "native":
        from mlx_tools.backends.capabilities import completes_text

        return Route(path="native", reason="as asked", completes=await completes_text(backend))
    # A model that was never tested is prompted, even if its template has tools: its server may have
    # no parser for the calls, and drop them.
    reason = "its server's own calling was not tried (mlx-tools doctor does)"
    if model is None:
        reason = "nothing tells which model it is, so what a trial finds could not be known again"
    elif template is not None and shows_tools(template):
        reason += ", though its template tells of tools"
    elif template is not None:
        reason = "its template does not tell of tools"
    return Route(path="prompted", reason=reason)


def _find_native(
    store: VerdictStore, servers: Sequence[str], model: str | None
) -> NativeVerdict | None:
    """Return one native verdict for all the servers, None if a server was not tested."""
    verdicts = [store.native(server, model) for server in servers] if model is not None else []
    tried = [verdict for verdict in verdicts if verdict is not None]
    # For a pool every server must have been tested, because any of them may get a request.
    if not tried or len(tried) < len(verdicts):
        return None
    return replace(
        next((verdict for verdict in tried if not verdict.passed), tried[0]),
        obeys=all(verdict.obeys for verdict in tried),
        completes=all(verdict.completes for verdict in tried),
    )


def shows_tools(template: str) -> bool:
    """Return True if a chat template shows tools to the model."""
    return "tools" in template


# --- style, strategy, chat format and context ---------------------------------------------------


class PromptPreferences(Protocol):
    """A caller's preferences for the way a model is asked: a part of `RunSettings`."""

    @property
    def style(self) -> StyleChoice: ...
    @property
    def strategy(self) -> StrategyChoice: ...
    @property
    def verdict(self) -> VerdictChoice | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def chat_format(self) -> ChatFormat | None: ...
    @property
    def context(self) -> int | None: ...
    @property
    def route(self) -> Mapping[str, Any]: ...


class ModelSetup(Struct, frozen=True):
    """The way in which a model is asked."""

    decided: PromptChoice
    """The style and the strategy."""
    chat_format: ChatFormat
    context: int | None
    """The size of the context in tokens, None if unknown."""


async def find_setup(backend: Backend, wishes: PromptPreferences) -> ModelSetup:
    """Return the way in which the model behind ``backend`` is asked.

    For ``auto`` the verdict on the model decides about style and strategy. Chat format and context
    come from the model's files or its server. If the preferences have a chat format, a server is
    asked only for the size of the context.

    Raises:
        BackendUnreachable: a server that has to be asked does not answer.
        UsageError: the style or the strategy does not work with this model.
    """
    traits, name, verdict_choice = read_traits(backend), find_model_name(backend), wishes.verdict
    server: Any = backend
    selected, files, chat_format = None, None, wishes.chat_format
    if traits.asks_server and chat_format is None:
        selected = await _inspect(server)
        name, files = selected.model, selected.files
    elif traits.own_model:
        name = str(server.model)
        files = read_model_files(server.model) if chat_format is None else None
    context = wishes.context or await find_context_size(backend, wishes.model or name)
    style = DEFAULT_STYLE if wishes.route.get("path") == "native" else wishes.style
    if verdict_choice is None:
        verdict_choice = find_verdict(_identity(backend, wishes.model or name, files))
    # The server is asked whether it takes grammars only if that changes the choice, because it
    # costs requests.
    constrained, unconstrained = (
        decide(style, wishes.strategy, verdict_choice, grammars=has_grammar)
        for has_grammar in (True, False)
    )
    decided = (
        constrained
        if constrained != unconstrained and await takes_grammar(backend)
        else unconstrained
    )
    if selected is not None:
        selected.free_markers(decided.style)
    if chat_format is None and (traits.asks_server or traits.own_model):
        chat_format = (await find_served_format(backend, files=files, model=name)).chat_format
    elif chat_format is None:
        chat_format = find_chat_format(model=name).chat_format
    return ModelSetup(_check_style(decided, chat_format, wishes.style), chat_format, context)


async def _inspect(backend: Any) -> SelectedBackend:
    from mlx_tools.backends.inspection import inspect_server

    return await inspect_server(backend)


def _identity(backend: Backend, name: str | None, files: ModelFiles | None) -> str | None:
    """Return the identity of a backend's model, by its files or else by its name."""
    traits = read_traits(backend)
    if name is None or not (traits.asks_server or traits.own_model):
        return name
    from mlx_tools.backends.models.listing import model_identity

    return model_identity(
        name, files.path if files is not None else find_model_folder(backend, name)
    )


def _check_style(
    decided: PromptChoice, chat_format: ChatFormat, wished: StyleChoice
) -> PromptChoice:
    """Return the choice for a model with this chat format.

    The style ``native`` needs a template that shows tools in a known form. Without one, ``auto``
    becomes the default style.

    Raises:
        UsageError: the style was named, and does not work with this model.
    """
    if decided.style != "native":
        return decided
    if chat_format.tools is None and wished == "auto":
        reasons = {**decided.reasons, "passed_over": f"the style native: {chat_format.toolless}"}
        return replace(decided, style=DEFAULT_STYLE, reasons=reasons)
    if chat_format.tools is None:
        raise UsageError(
            f"the style native does not work with this model: {chat_format.toolless}",
            hint="use --style jsonl, markdown-json or xml",
        )
    if decided.strategy == "grammar":
        raise UsageError(
            "the style native has no grammar, because its marks are special tokens",
            hint="use --strategy auto, guided or free",
        )
    return decided


async def takes_grammar(backend: Any) -> bool:
    """Return True if the backend takes grammars; ask a server by short requests."""
    traits = read_traits(backend)
    if not traits.asks_server:
        return traits.takes_grammar
    from mlx_tools.backends.grammar_option import obeys_grammar

    try:
        return await obeys_grammar(backend) is not None
    except BackendError:
        return False  # the run's own request will raise it again
