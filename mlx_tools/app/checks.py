"""The checks of ``mlx-tools doctor``: each check is a value, and none of them raises.

A check asks one thing of the server, of the model's files or of this machine. ``warn`` is a thing
that works and could be better, ``fail`` one that stops a run, ``skip`` one that cannot be told.
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
    LocalBackend,
    ModelFiles,
    NativeVerdict,
    SelectedBackend,
    ServerBackend,
    ServerPool,
    StrategyChoice,
    StyleChoice,
    UpstreamPool,
    VendorBackend,
    VerdictChoice,
    complete_one,
    find_openblas,
    has_logprobs,
    honours_stop,
    obeys_grammar,
    reports_cache,
    single_tokens,
)
from mlx_tools.errors import MlxToolsError
from mlx_tools.messages import replace
from mlx_tools.prompt import ChatFormat
from mlx_tools.store import SessionStore, words_digest

Status = Literal["ok", "warn", "fail", "skip"]

TOKENS_ASKED: Final = 8
"""The control tokens that are tried at most: each takes a request."""


class Check(Struct, frozen=True):
    """One finding. ``hint`` says what to do, empty where there is nothing to do."""

    name: str
    status: Status
    detail: str
    hint: str = ""


def failed_check(name: str, error: MlxToolsError) -> Check:
    """A check that an error ended, with what the error says to do."""
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
    """Every check of a backend that was chosen, in the order they are shown.

    ``chat_format`` says in words which one is used and where it comes from, ``is_explicit`` whether
    a person named it; ``control_tokens`` are those that it writes, tried on the server; ``native``
    is what `check_native_tools` says of it. ``sessions`` is where transcripts are kept. A server of
    our own is started, and left running; a model in this process is loaded.
    """
    backend, told = selected.backend, [native] if native is not None else []
    model = [
        check_model(selected, is_explicit=is_explicit),
        check_chat_format(selected.files, chat_format, is_explicit=is_explicit),
    ]
    if backend.kind == "local":
        return [*await check_local(backend), *model, *told, check_store(sessions)]
    if backend.kind == "native":
        return [await check_vendor(backend), check_model(selected), check_store(sessions)]
    checks, client = await check_server(backend)
    checks += model
    if client is not None:
        checks.append(await check_completion(client))
        checks += await check_abilities(client, control_tokens)
    health = selected.health if client is None else await client.health()
    web = check_origins(health, own_origins=backend.kind == "server")
    return [*checks, *told, web, check_openblas(), check_store(sessions)]


async def check_server(
    backend: CompletionsBackend | ServerBackend | ServerPool,
) -> tuple[list[Check], CompletionsBackend | None]:
    """Return whether the server answers, or each of a pool; and the client of the one that is asked
    first, None where it does not."""
    if isinstance(backend, UpstreamPool):
        checks = []
        for one in backend.upstreams:
            ((check,), _) = await check_server(one.backend)
            checks.append(check if check.status == "ok" else replace(check, status="warn"))
        for one in backend.other_upstreams:
            detail = f"{one.address} answers, and serves other models than {backend.model}"
            checks.append(Check("server", "warn", detail, "it is asked for those alone"))
        return checks, backend.current
    try:
        client: Any = await backend.get_client() if backend.kind == "server" else backend
        health = await client.health()
        if dead := health.as_error(str(client.address)):
            raise dead
    except MlxToolsError as error:
        return [failed_check("server", error)], None
    if health.status in ("unreachable", "loading"):
        hint = health.hint or "wait until it is ready"
        return [Check("server", "fail", health.detail, hint)], None
    whose = ", a gateway of mlx-tools," if health.is_gateway else ""
    return [Check("server", "ok", f"{client.address}{whose} answers ({health.detail})")], client


async def check_vendor(backend: VendorBackend) -> Check:
    """Return whether a server that speaks a vendor's own interface answers."""
    health = await backend.health()
    if health.ok:
        said = health.detail or "it lists its models"
        return Check("server", "ok", f"{backend.address} answers ({said})")
    return Check("server", "fail", health.detail, "check the address, the key and the network")


async def check_local(backend: LocalBackend) -> list[Check]:
    """Return whether a model in this process loads and completes text, and what it can do."""
    try:
        await backend.start()
    except MlxToolsError as error:
        return [failed_check("loading", error)]
    return [
        Check("loading", "ok", f"{backend.model.name} is loaded into this process"),
        await check_completion(backend),
        *(Check("OpenBLAS", "warn", line) for line in backend.notes),
        Check("grammar", "ok", "offered, by llguidance"),
    ]


async def check_completion(client: Backend) -> Check:
    """Return whether the server completes text as a run needs it: streamed, one token."""
    try:
        await complete_one(client, 60)
    except MlxToolsError as error:
        return failed_check("completion", error)
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
    """Whether the server's tokenizer reads the chat format's control tokens as such; ``logprobs``,
    ``stop``, cache reporting and grammars: what the server can do, unjudged."""
    asked = list(dict.fromkeys(filter(None, tokens)))[:TOKENS_ASKED]

    async def control_tokens() -> Check:
        found = await single_tokens(client, asked) if asked else {}
        if not found:
            why = "the server does not count prompt tokens" if asked else "the chat format has none"
            return Check("control tokens", "skip", why)
        if wrong := [token for token, single in found.items() if not single]:
            hint = "the chat format is another model's: name the right one with --chat-format"
            return Check(
                "control tokens", "warn", f"no tokens of this model: {', '.join(wrong)}", hint
            )
        return Check(
            "control tokens", "ok", f"{len(found)} tried, each is one token of the model's"
        )

    async def logprobs() -> Check:
        offered = await has_logprobs(client)
        said = "the likeliest tokens can be asked for" if offered else "not offered"
        return Check("logprobs", "ok", said)

    async def stop() -> Check:
        how = await honours_stop(client)
        if how is None:
            return Check("stop", "skip", "the model wrote too little to tell")
        return Check("stop", "ok", _STOP[how])

    async def cache_reporting() -> Check:
        return Check("cache reporting", "ok", _CACHE[await reports_cache(client)])

    async def grammar() -> Check:
        how = await obeys_grammar(client)
        return Check("grammar", "ok", f"offered, by {how}" if how else "not offered")

    checks = []
    for probe in (control_tokens, logprobs, stop, cache_reporting, grammar):
        try:
            checks.append(await probe())
        except MlxToolsError as error:
            name = probe.__name__.replace("_", " ")
            checks.append(Check(name, "skip", f"cannot be told: {error.message}"))
    return checks


def check_tried(verdict: NativeVerdict | None) -> Check:
    """Return whether the server's own function calling works with its model."""
    if verdict is None:
        return Check("native calls", "skip", "not tried: see the route")
    status: Status = "ok" if verdict.passed else "warn"
    return Check("native calls", status, f"{verdict.reason} (tried {verdict.measured_at})")


def check_model(selected: SelectedBackend, *, is_explicit: bool = False) -> Check:
    """Return whether it is known which model is served, and whether its files are here; where the
    chat format is ``is_explicit``, a run needs no files."""
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
    """Where the chat format comes from: the model's own template is the best source, and what a
    person ``is_explicit`` is not doubted."""
    if is_explicit:
        own = files is not None and files.chat_template is not None
        rest = ", in place of the model's own template" if own else ""
        return Check("chat format", "ok", f"{format_name}{rest}")
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
    """Which verdict is in force; ``style`` and ``strategy`` are those of the settings."""
    named = [f"{name} {value}" for name, value in (("style", style), ("strategy", strategy))]
    named = [one for one in named if not one.endswith(" auto")]
    over = f"; the settings name {' and '.join(named)}" if named else ""
    verdict, again = verdict_choice.verdict, "mlx-tools doctor --probe"
    if verdict is None:
        if verdict_choice.problem:
            return Check("verdict", "warn", verdict_choice.problem)
        detail = f"none: style {DEFAULT_STYLE}, strategy auto{over}"
        if verdict_choice.model is None:
            detail, again = f"{detail}; nothing tells which model it is", f"{again} --model NAME"
        hint = f"{again} measures which style and strategy the model follows best"
        return Check("verdict", "ok", detail, hint)
    where = (
        f"kept in {verdict_choice.place}"
        if verdict_choice.source == "stored"
        else "comes with mlx-tools"
    )
    detail = (
        f"style {verdict.style}, strategy {verdict.strategy}, as measured on "
        f"{verdict.measured_at[:10]} with {verdict.questions} questions ({where}){over}"
    )
    if verdict_choice.problem:
        return Check("verdict", "warn", f"{detail}; {verdict_choice.problem}")
    if verdict.prompts != words_digest():
        return Check("verdict", "warn", f"{detail}; the prompts have changed since", again)
    return Check("verdict", "ok", detail)


def written_tokens(chat_format: ChatFormat) -> list[str]:
    """The control tokens that turns of this format are written with: those of other formats are
    none of the model's where it is the right one."""
    turns = (chat_format.system or (), chat_format.user, chat_format.assistant)
    text = chat_format.bos + "".join(part for turn in turns for part in turn)
    own = (one for one in chat_format.control_tokens if not one.startswith("\n") and one in text)
    return sorted(own, key=text.index)


def check_native_tools(chat_format: ChatFormat) -> Check:
    """Return whether the style ``native`` is to be had: the model's own template tells of tools."""
    tools = chat_format.tools
    if tools is None:
        return Check("native tools", "ok", f"no style native: {chat_format.toolless}")
    form = tools.dialect or "bare objects"
    return Check("native tools", "ok", f"the template tells of tools (calls: {form}): style native")


def check_origins(health: Health | None, *, own_origins: bool) -> Check:
    """Return whether any web page may read the server's answers."""
    if health is None or health.status == "unreachable":
        return Check("web pages", "skip", "the server does not answer")
    if health.allowed_origin == "*":
        said = "any web page that is open on this machine can use the server (it has no key)"
        hint = "start it with mlx-tools models serve, or --allowed-origins http://localhost"
        return Check("web pages", "warn", said, hint)
    own_said = "none can use our server: it allows an origin nobody has"
    other = "the server does not let every web page read its answers"
    return Check("web pages", "ok", own_said if own_origins else other)


def check_openblas(platform: str = sys.platform) -> Check:
    """Return whether OpenBLAS is here for MLX's Linux build."""
    if not platform.startswith("linux"):
        return Check("OpenBLAS", "skip", "only MLX's Linux build needs it")
    found = find_openblas(platform)
    if found is not None:
        return Check("OpenBLAS", "ok", f"{found} is preloaded into a server of our own")
    said = "not installed: MLX reads a prompt about ten times as slowly"
    return Check("OpenBLAS", "warn", said, "on Debian or Ubuntu: apt install libopenblas0-pthread")


def check_store(sessions: SessionStore) -> Check:
    """Return whether transcripts can be kept in a store, which is made where it is missing."""
    try:
        sessions.check()
    except MlxToolsError as error:
        return failed_check("transcripts", error)
    return Check("transcripts", "ok", f"{sessions.place} can be written to")
