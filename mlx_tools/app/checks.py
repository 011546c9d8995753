"""The checks of ``mlx-tools doctor``.

Each check is a value, and none of them raises.

A check is about one property of the server, of the model's files or of this machine. ``warn`` means
that it works but could be better, ``fail`` that no run is possible, and ``skip`` that the property
is unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.backends import (
    DEFAULT_STYLE,
    Backend,
    CompletionsBackend,
    Health,
    LocalModel,
    ModelFiles,
    NativeBackend,
    NativeVerdict,
    SelectedBackend,
    ServerBackend,
    ServerPool,
    StrategyChoice,
    StyleChoice,
    UpstreamPool,
    VerdictChoice,
    complete_one,
    find_openblas,
    find_single_tokens,
    has_logprobs,
    honours_stop,
    obeys_grammar,
    reports_cache,
)
from mlx_tools.errors import MlxToolsError
from mlx_tools.messages import replace
from mlx_tools.prompt import ChatFormat
from mlx_tools.store import SessionStore, digest_words

Status = Literal["ok", "warn", "fail", "skip"]

MAX_TOKENS_TRIED: Final = 8
"""Control tokens that are tried. Each takes a request."""


class Check(Struct, frozen=True):
    """One result. ``hint`` is the advice for a person, empty for none."""

    name: str
    status: Status
    detail: str
    hint: str = ""


def make_failed_check(name: str, error: MlxToolsError) -> Check:
    """Return the failed check for an error, with the error's hint."""
    return Check(name, "fail", error.message, error.hint or "")


async def check_all(
    selected: SelectedBackend,
    *,
    sessions: SessionStore,
    chat_format: str = "",
    is_explicit: bool = False,
    control_tokens: Sequence[str] = (),
    native: Check | None = None,
) -> list[Check]:
    """Return all checks of a selected backend, in the order in which they are shown.

    A server of our own is started and left running. A model in this process is loaded.

    Args:
        selected: the backend.
        sessions: the store of transcripts.
        chat_format: the name of the chat format and its source.
        is_explicit: True if a person named the chat format.
        control_tokens: the chat format's control tokens, to try on the server.
        native: the result of `check_native_tools`.
    """
    backend, native_checks = selected.backend, [native] if native is not None else []
    model = [
        check_model(selected, is_explicit=is_explicit),
        check_chat_format(selected.files, chat_format, is_explicit=is_explicit),
    ]
    if backend.kind == "local":
        return [*await check_local(backend), *model, *native_checks, check_store(sessions)]
    if backend.kind == "native":
        return [await check_vendor(backend), check_model(selected), check_store(sessions)]
    checks, client = await check_server(backend)
    checks += model
    if client is not None:
        checks.append(await check_completion(client))
        checks += await check_abilities(client, control_tokens)
    health = selected.health if client is None else await client.health()
    web = check_origins(health, own_origins=backend.kind == "server")
    return [*checks, *native_checks, web, check_openblas(), check_store(sessions)]


async def check_server(
    backend: CompletionsBackend | ServerBackend | ServerPool,
) -> tuple[list[Check], CompletionsBackend | None]:
    """Check that the server answers, or each server of a pool.

    The second value is the client of the first server, None if that does not answer.
    """
    if isinstance(backend, UpstreamPool):
        checks = []
        for upstream in backend.upstreams:
            ((check,), _) = await check_server(upstream.backend)
            checks.append(check if check.status == "ok" else replace(check, status="warn"))
        for upstream in backend.other_upstreams:
            detail = f"{upstream.address} answers, and serves other models than {backend.model}"
            checks.append(Check("server", "warn", detail, "it is asked for those alone"))
        return checks, backend.current
    try:
        client: Any = await backend.get_client() if backend.kind == "server" else backend
        health = await client.health()
        if dead := health.as_error(str(client.address)):
            raise dead
    except MlxToolsError as error:
        return [make_failed_check("server", error)], None
    if health.status in ("unreachable", "loading"):
        hint = health.hint or "wait until it is ready"
        return [Check("server", "fail", health.detail, hint)], None
    owner = ", a gateway of mlx-tools," if health.is_gateway else ""
    return [Check("server", "ok", f"{client.address}{owner} answers ({health.detail})")], client


async def check_vendor(backend: NativeBackend) -> Check:
    """Check that a server with a vendor's own interface answers."""
    health = await backend.health()
    if health.ok:
        detail = health.detail or "it lists its models"
        return Check("server", "ok", f"{backend.address} answers ({detail})")
    return Check("server", "fail", health.detail, "check the address, the key and the network")


async def check_local(backend: LocalModel) -> list[Check]:
    """Check that a model in this process loads and completes text, and what it can do."""
    try:
        await backend.start()
    except MlxToolsError as error:
        return [make_failed_check("loading", error)]
    return [
        Check("loading", "ok", f"{backend.model.name} is loaded into this process"),
        await check_completion(backend),
        *(Check("OpenBLAS", "warn", line) for line in backend.notes),
        Check("grammar", "ok", "offered, by llguidance"),
    ]


async def check_completion(client: Backend) -> Check:
    """Check that the server streams a completion of one token."""
    try:
        await complete_one(client, 60)
    except MlxToolsError as error:
        return make_failed_check("completion", error)
    return Check("completion", "ok", "one token came, streamed")


_STOP: Final = {
    "yes": "honoured in this try; it is not relied upon",
    "edits": "edits the text and may run on; it is not relied upon",
    "no": "ignored; it is not relied upon",
}
_CACHE: Final = {
    True: "usage says how much of a prompt was cached",
    False: "not reported: cached tokens are shown as unknown",
}


async def check_abilities(client: CompletionsBackend, tokens: Sequence[str]) -> list[Check]:
    """Check the abilities of a server; a missing one is no fault.

    These are control tokens as single tokens, ``logprobs``, ``stop``, cache reporting and grammars.
    """
    tried_tokens = list(dict.fromkeys(filter(None, tokens)))[:MAX_TOKENS_TRIED]

    async def control_tokens() -> Check:
        results = await find_single_tokens(client, tried_tokens) if tried_tokens else {}
        if not results:
            reason = (
                "the server does not count prompt tokens"
                if tried_tokens
                else "the chat format has none"
            )
            return Check("control tokens", "skip", reason)
        if wrong_tokens := [token for token, single in results.items() if not single]:
            hint = "the chat format is another model's: name the right one with --chat-format"
            return Check(
                "control tokens",
                "warn",
                f"no tokens of this model: {', '.join(wrong_tokens)}",
                hint,
            )
        return Check(
            "control tokens", "ok", f"{len(results)} tried, each is one token of the model's"
        )

    async def logprobs() -> Check:
        is_offered = await has_logprobs(client)
        detail = "the likeliest tokens can be asked for" if is_offered else "not offered"
        return Check("logprobs", "ok", detail)

    async def stop() -> Check:
        result = await honours_stop(client)
        if result is None:
            return Check("stop", "skip", "the model wrote too little to tell")
        return Check("stop", "ok", _STOP[result])

    async def cache_reporting() -> Check:
        return Check("cache reporting", "ok", _CACHE[await reports_cache(client)])

    async def grammar() -> Check:
        result = await obeys_grammar(client)
        return Check("grammar", "ok", f"offered, by {result}" if result else "not offered")

    checks = []
    for probe in (control_tokens, logprobs, stop, cache_reporting, grammar):
        try:
            checks.append(await probe())
        except MlxToolsError as error:
            name = probe.__name__.replace("_", " ")
            checks.append(Check(name, "skip", f"unknown: {error.message}"))
    return checks


def check_tried(verdict: NativeVerdict | None) -> Check:
    """Check that the server's own function calling works with its model."""
    if verdict is None:
        return Check("native calls", "skip", "not tried: see the route")
    status: Status = "ok" if verdict.passed else "warn"
    return Check("native calls", status, f"{verdict.reason} (tried {verdict.measured_at})")


def check_model(selected: SelectedBackend, *, is_explicit: bool = False) -> Check:
    """Check that the served model is known, and that its files are here.

    If a person named the chat format (``is_explicit``), a run needs no files.
    """
    if selected.model is None:
        said = "the server does not say which model it serves"
        return Check("model", "warn", said, "name it with --model")
    if selected.files is None:
        detail = f"{selected.model}; its files are not on this machine"
        hint = "its chat format is guessed from its name; name one with --chat-format"
        return Check("model", "ok", detail) if is_explicit else Check("model", "warn", detail, hint)
    return Check("model", "ok", f"{selected.model} ({selected.files.path})")


def check_chat_format(
    files: ModelFiles | None, format_name: str, *, is_explicit: bool = False
) -> Check:
    """Check the source of the chat format: the model's own template is the best one.

    A format that a person named (``is_explicit``) is always accepted.
    """
    if is_explicit:
        has_template = files is not None and files.chat_template is not None
        addition = ", in place of the model's own template" if has_template else ""
        return Check("chat format", "ok", f"{format_name}{addition}")
    if files is not None and files.chat_template is not None:
        return Check("chat format", "ok", format_name or "the model's own template")
    if files is not None:
        hint = "a base model has none: use an instruct version, or name one with --chat-format"
        return Check("chat format", "warn", format_name or "the model has no template", hint)
    hint = "name the model with --model, or the format with --chat-format"
    return Check("chat format", "warn", format_name or "no template is at hand", hint)


def check_verdict(
    verdict_choice: VerdictChoice, style: StyleChoice = "auto", strategy: StrategyChoice = "auto"
) -> Check:
    """Check which verdict applies; the settings name ``style`` and ``strategy``."""
    named = [f"{name} {value}" for name, value in (("style", style), ("strategy", strategy))]
    named = [text for text in named if not text.endswith(" auto")]
    override = f"; the settings name {' and '.join(named)}" if named else ""
    verdict, command = verdict_choice.verdict, "mlx-tools doctor --probe"
    if verdict is None:
        if verdict_choice.problem:
            return Check("verdict", "warn", verdict_choice.problem)
        detail = f"none: style {DEFAULT_STYLE}, strategy auto{override}"
        if verdict_choice.model is None:
            detail, command = (
                f"{detail}; nothing tells which model it is",
                f"{command} --model NAME",
            )
        hint = f"{command} measures which style and strategy the model follows best"
        return Check("verdict", "ok", detail, hint)
    source = (
        f"kept in {verdict_choice.place}"
        if verdict_choice.source == "stored"
        else "comes with mlx-tools"
    )
    detail = (
        f"style {verdict.style}, strategy {verdict.strategy}, as measured on "
        f"{verdict.measured_at[:10]} with {verdict.questions} questions ({source}){override}"
    )
    if verdict_choice.problem:
        return Check("verdict", "warn", f"{detail}; {verdict_choice.problem}")
    if verdict.prompts != digest_words():
        return Check("verdict", "warn", f"{detail}; the prompts have changed since", command)
    return Check("verdict", "ok", detail)


def list_control_tokens(chat_format: ChatFormat) -> list[str]:
    """Return the control tokens of this format's turns.

    If they are not the model's own tokens, the format is that of another model.
    """
    turns = (chat_format.system or (), chat_format.user, chat_format.assistant)
    text = chat_format.bos + "".join(part for turn in turns for part in turn)
    tokens = (
        token
        for token in chat_format.control_tokens
        if not token.startswith("\n") and token in text
    )
    return sorted(tokens, key=text.index)


def check_native_tools(chat_format: ChatFormat) -> Check:
    """Check that the style ``native`` works: the model's own template has tools."""
    tools = chat_format.tools
    if tools is None:
        return Check("native tools", "ok", f"no style native: {chat_format.toolless}")
    form = tools.dialect or "bare objects"
    return Check("native tools", "ok", f"the template tells of tools (calls: {form}): style native")


def check_origins(health: Health | None, *, own_origins: bool) -> Check:
    """Check that a web page cannot simply read the server's answers."""
    if health is None or health.status == "unreachable":
        return Check("web pages", "skip", "the server does not answer")
    if health.allowed_origin == "*":
        detail = "any web page that is open on this machine can use the server (it has no key)"
        hint = "start it with mlx-tools models serve, or --allowed-origins http://localhost"
        return Check("web pages", "warn", detail, hint)
    own_detail = "none can use our server: it allows an origin nobody has"
    foreign_detail = "the server does not let every web page read its answers"
    return Check("web pages", "ok", own_detail if own_origins else foreign_detail)


def check_openblas(platform: str = sys.platform) -> Check:
    """Check that OpenBLAS is installed for MLX's Linux build."""
    if not platform.startswith("linux"):
        return Check("OpenBLAS", "skip", "only MLX's Linux build needs it")
    library = find_openblas(platform)
    if library is not None:
        return Check("OpenBLAS", "ok", f"{library} is preloaded into a server of our own")
    detail = "not installed: MLX reads a prompt about ten times as slowly"
    return Check(
        "OpenBLAS", "warn", detail, "on Debian or Ubuntu: apt install libopenblas0-pthread"
    )


def check_store(sessions: SessionStore) -> Check:
    """Check that transcripts can be written; the store is created if it is missing."""
    try:
        sessions.check()
    except MlxToolsError as error:
        return make_failed_check("transcripts", error)
    return Check("transcripts", "ok", f"{sessions.place} can be written to")
