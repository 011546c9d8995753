"""How a model is spoken to, and where that was learnt: chat format, style, strategy, context."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

from msgspec import Struct, to_builtins

from mlx_tools.backends.adapters import raise_as_own
from mlx_tools.backends.interface import Backend, RouteChoice, traits_of
from mlx_tools.backends.models.files import ModelFiles, read_context, read_model_files
from mlx_tools.backends.transport import Address
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
    attribute_of,
    wrong_argument,
)
from mlx_tools.messages import replace
from mlx_tools.prompt import NAMED_FORMATS, ChatFormat, format_for_name, format_from_template

if TYPE_CHECKING:
    from mlx_tools.backends.choose import SelectedBackend


@contextmanager
def found_within(seconds: float, option: str = "--timeout") -> Iterator[None]:
    """Bounds what is asked of a server before the first completion: what it is, what it serves.

    ``option`` is what allows more time.

    Raises:
        BackendTimeout: it was not done in time.
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
    """A chat format and, in a few words, where it comes from.

    ``doubt`` is one line for a person where it is a mere guess, empty elsewhere.
    """

    chat_format: ChatFormat
    source: str
    doubt: str = ""

    @property
    def is_named(self) -> bool:
        """True where a person said which one it is."""
        return self.source == _NAMED


_NAMED: Final = "named"


def find_chat_format(
    requested_format: str = "auto", *, files: ModelFiles | None = None, model: str | None = None
) -> FormatChoice:
    """The chat format to use.

    ``requested_format`` names one, or is ``auto``: then the model's own template decides, where its
    files are on this machine, and else its name. Control tokens that the files name are neutralised
    with any format. Raises `ChatFormatError` for a name that is unknown and a template that is of
    no use.
    """
    source, doubt = _NAMED, ""
    if requested_format in NAMED_FORMATS:
        found = NAMED_FORMATS[requested_format]
    elif requested_format != "auto":
        raise ChatFormatError(
            f"{requested_format!r} is no chat format", hint=f"use auto, {', '.join(NAMED_FORMATS)}"
        )
    elif files is not None and files.chat_template is not None:
        source = "the model's own template"
        found = format_from_template(
            files.chat_template,
            name=files.name,
            bos_token=files.bos_token or "",
            eos_token=files.eos_token or "",
            special_tokens=(*files.special_tokens, *files.end_tokens),
            adds_bos=files.adds_bos,
        )
    else:
        found = format_for_name(model or "")
        source = f"the model's name ({found.name})"
        if found is NAMED_FORMATS["plain"]:
            nobody = "nothing says which model is served"
            known = f"that of {model} is not known" if model else nobody
            doubt = (
                f"the chat format plain is a guess, since {known}: "
                "set it with --chat-format, or name the model with --model"
            )
    if files is not None:
        tokens = (*found.control_tokens, *files.special_tokens, *files.end_tokens)
        found = replace(
            found,
            control_tokens=tuple(dict.fromkeys(filter(None, tokens))),
            bos="" if files.adds_bos else found.bos,
        )
    return FormatChoice(found, source, doubt)


async def find_served_format(
    backend: Backend, requested_format: str = "auto", *, files: ModelFiles | None, model: str | None
) -> FormatChoice:
    """Like `find_chat_format`, for the model behind ``backend``.

    Where nothing names the model, mlx-lm's server is asked in a few short requests which format
    its own chat endpoint writes.
    """
    own: Any = backend
    if (
        requested_format == "auto"
        and files is None
        and model
        and attribute_of(backend, "is_ollama")
    ):
        from mlx_tools.backends.ollama_raw import FORMAT_TIMEOUT, format_name

        if (name := await format_name(own, model, FORMAT_TIMEOUT)) is not None:
            found = format_for_name(model)
            found = found if found.user == NAMED_FORMATS[name].user else NAMED_FORMATS[name]
            return FormatChoice(found, f"the template that Ollama shows ({name})")
    unknown = requested_format == "auto" and files is None and model is None
    if unknown and traits_of(backend).asks_server:
        from mlx_tools.backends.capabilities import is_mlx_lm, probe_chat_format

        if await is_mlx_lm(own) and (probed := await probe_chat_format(own)) is not None:
            return FormatChoice(probed, f"the server's own chat endpoint ({probed.name})")
    return find_chat_format(requested_format, files=files, model=model)


# --- the model --------------------------------------------------------------------------------


def model_of(backend: Backend) -> str | None:
    """The name of the model behind ``backend``, where the backend says one."""
    model = attribute_of(backend, "model")
    return model if isinstance(model, str) else None


def folder_of(backend: Backend, model: str | None = None) -> Path | None:
    """The folder of the files of the model behind ``backend``, None where they are not on this
    machine. ``model`` is the model's name, where it is known."""
    own = attribute_of(backend, "model")
    if isinstance(own, Path):
        return own
    name = model or own
    address = attribute_of(backend, "address")
    remote = isinstance(address, Address) and not address.loopback
    if not isinstance(name, str) or (remote and Path(name).is_absolute()):
        return None  # a path on another machine says nothing about this one
    from mlx_tools.backends.models.listing import find_model

    return find_model(name)


async def context_of(backend: Backend, model: str | None = None) -> int | None:
    """How many tokens the model behind ``backend`` takes: as that says, or else the model's files.

    A backend may say it by ``context``, a number or a function. ``model`` is the model's name,
    where it is known. None if unknown.

    Raises:
        BackendBroken: ``context`` failed.
        UsageError: ``context`` is no number of tokens.
    """
    size = await _declared_context(backend)
    if size is not None:
        return size
    try:
        named = model is not None or model_of(backend) is not None
        if not named and traits_of(backend).asks_server:
            model = (await _look_at(backend)).model
        folder = folder_of(backend, model)
        return None if folder is None else read_context(folder)
    except (BackendError, ModelError, UsageError):
        return None  # the run's own request will say what is wrong


async def _declared_context(backend: Backend) -> int | None:
    """How many tokens the backend itself says that its model takes, None if it does not say."""
    try:
        size = getattr(backend, "context", None)
        size = size() if callable(size) else size
        size = await size if inspect.isawaitable(size) else size
    except BackendError:
        return None  # the run's own request will say what is wrong
    except Exception as error:
        raise_as_own(error, f"context of the backend {type(backend).__name__}")
    if size is None:
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        name = f"context of the backend {type(backend).__name__}"
        raise wrong_argument(name, size, "give a number of tokens, or None if it is unknown")
    return size


# --- native or prompted -----------------------------------------------------------------------


class Route(Struct, frozen=True, kw_only=True):
    """By which path a model is asked, and why.

    ``native``: by its server's own chat interface, which tells it of tools and reads its calls. The
    server ``completes`` text too, so that what does not fit is mended by a prompt; it ``obeys`` a
    tool choice.
    """

    path: Literal["native", "prompted"]
    reason: str
    completes: bool = True
    obeys: bool = False

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"path": self.path, "reason": self.reason}
        return said if self.path == "prompted" else to_builtins(self)


def servers_of(backend: Backend) -> tuple[tuple[str, Backend], ...]:
    """The servers behind a backend, each with what it is known by from run to run; none where the
    model runs in this process."""
    traits, own = traits_of(backend), cast("Any", backend)
    if traits.starts_server:
        return (("a server of our own", backend),)
    several = [one.backend for one in getattr(own, "upstreams", ())] if traits.asks_server else []
    found = [(attribute_of(one, "address"), one) for one in several or [own]]
    return tuple((address.url, one) for address, one in found if isinstance(address, Address))


async def find_route(
    backend: Backend,
    choice: RouteChoice = "auto",
    *,
    model: str | None,
    template: str | None = None,
    prompts: bool = True,
    store: VerdictStore | None = None,
) -> Route:
    """By which path the model behind ``backend`` is asked.

    What is wanted holds; ``auto`` is native only where that was tried with this server and model
    (`mlx_tools.backends.capabilities`), and prompted else. ``model`` is what identifies it,
    ``template`` its chat template, where that is known. Without ``prompts`` no model may be
    prompted.

    Raises:
        UsageError: there is no such path.
    """
    servers = servers_of(backend)
    completes = attribute_of(backend, "completes", True) is not False
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
            attribute_of(backend, "obeys_choice", False),
        )
        return Route(path="native", reason=reason, completes=False, obeys=bool(obeys))
    if not servers and (choice == "native" or not prompts):
        raise UsageError(
            "there is no native path to a model in this process: it is prompted",
            hint="name a server with --url, or allow prompts: routing.route, routing.local_enabled",
        )
    known = _find_native(store or VerdictStore(), [name for name, _ in servers], model)
    if not prompts:
        reason, obeys = "prompts to a local model are turned off", bool(known and known.obeys)
        return Route(path="native", reason=reason, completes=False, obeys=obeys)
    if choice == "prompted" or not servers:
        reason = "as asked" if choice == "prompted" else "it runs in this process"
        return Route(path="prompted", reason=reason)
    if known is not None:
        native = choice == "native" or known.passed
        return Route(
            path="native" if native else "prompted",
            reason="as asked" if choice == "native" else known.reason,
            completes=known.completes,
            obeys=known.obeys,
        )
    if choice == "native":
        from mlx_tools.backends.capabilities import completes_text

        return Route(path="native", reason="as asked", completes=await completes_text(backend))
    # A model that was never tried is prompted, whatever its template says: a server may have no
    # parser for its calls, and drop them.
    reason = "its server's own calling was not tried (mlx-tools doctor does)"
    if model is None:
        reason = "nothing tells which model it is, so what a trial finds could not be known again"
    elif template is not None and tells_of_tools(template):
        reason += ", though its template tells of tools"
    elif template is not None:
        reason = "its template does not tell of tools"
    return Route(path="prompted", reason=reason)


def _find_native(
    store: VerdictStore, servers: Sequence[str], model: str | None
) -> NativeVerdict | None:
    """What holds of all the servers, None where one was not tried."""
    found = [store.native(server, model) for server in servers] if model is not None else []
    tried = [one for one in found if one is not None]
    if not tried or len(tried) < len(found):
        return None
    return replace(
        next((one for one in tried if not one.passed), tried[0]),
        obeys=all(one.obeys for one in tried),
        completes=all(one.completes for one in tried),
    )


def tells_of_tools(template: str) -> bool:
    """Whether a model can learn from its chat template which tools there are."""
    return "tools" in template


# --- how it is spoken to -----------------------------------------------------------------------


class PromptPreferences(Protocol):
    """What a caller says of how a model is spoken to: a part of `RunSettings`."""

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
    """How a model is spoken to: style and strategy, with why; the delimiters of turns; how many
    tokens it takes, None where nobody says."""

    decided: PromptChoice
    chat_format: ChatFormat
    context: int | None


async def find_setup(backend: Backend, wishes: PromptPreferences) -> ModelSetup:
    """How the model behind ``backend`` is spoken to.

    What the wishes leave open is found out: what was measured of the model decides where ``auto``
    does not, its own files or its server say the rest. A server whose model's chat format comes
    with the wishes is asked for the size of the context alone.

    Raises:
        BackendUnreachable: a server that has to be asked does not answer.
        UsageError: the style or the strategy is not to be had for this model.
    """
    traits, name, found = traits_of(backend), model_of(backend), wishes.verdict
    own: Any = backend
    chosen, files, chat_format = None, None, wishes.chat_format
    if traits.asks_server and chat_format is None:
        chosen = await _look_at(own)
        name, files = chosen.model, chosen.files
    elif traits.own_model:
        name = str(own.model)
        files = read_model_files(own.model) if chat_format is None else None
    context = wishes.context or await context_of(backend, wishes.model or name)
    style = DEFAULT_STYLE if wishes.route.get("path") == "native" else wishes.style
    if found is None:
        found = find_verdict(_identity(backend, wishes.model or name, files))
    held, free = (decide(style, wishes.strategy, found, grammars=yes) for yes in (True, False))
    decided = held if held != free and await takes_grammar(backend) else free
    if chosen is not None:
        chosen.free_markers(decided.style)
    if chat_format is None and (traits.asks_server or traits.own_model):
        chat_format = (await find_served_format(backend, files=files, model=name)).chat_format
    elif chat_format is None:
        chat_format = find_chat_format(model=name).chat_format
    return ModelSetup(_speakable(decided, chat_format, wishes.style), chat_format, context)


async def _look_at(backend: Any) -> SelectedBackend:
    from mlx_tools.backends.choose import inspect_server

    return await inspect_server(backend)


def _identity(backend: Backend, name: str | None, files: ModelFiles | None) -> str | None:
    """What identifies the model behind a backend: its files where it is ours, else its name."""
    traits = traits_of(backend)
    if name is None or not (traits.asks_server or traits.own_model):
        return name
    from mlx_tools.backends.models.listing import model_identity

    return model_identity(name, files.path if files is not None else folder_of(backend, name))


def _speakable(decided: PromptChoice, chat_format: ChatFormat, wished: StyleChoice) -> PromptChoice:
    """What was decided, for a model whose turns have this format.

    The style ``native`` needs a template that tells of tools in a way that can be learnt; left to
    ``auto``, the usual style takes its place.
    """
    if decided.style != "native":
        return decided
    if chat_format.tools is None and wished == "auto":
        why = {**decided.reasons, "passed_over": f"the style native: {chat_format.toolless}"}
        return replace(decided, style=DEFAULT_STYLE, reasons=why)
    if chat_format.tools is None:
        raise UsageError(
            f"the style native is not to be had for this model: {chat_format.toolless}",
            hint="use --style jsonl, markdown-json or xml",
        )
    if decided.strategy == "grammar":
        raise UsageError(
            "in the style native no grammar can be given, since its marks are special tokens",
            hint="use --strategy auto, guided or free",
        )
    return decided


async def takes_grammar(backend: Any) -> bool:
    """Whether the backend can hold its model to a grammar. A server is asked, in short requests."""
    traits = traits_of(backend)
    if not traits.asks_server:
        return traits.takes_grammar
    from mlx_tools.backends.capabilities import obeys_grammar

    try:
        return await obeys_grammar(backend) is not None
    except BackendError:
        return False  # the run's own request will say what is wrong
