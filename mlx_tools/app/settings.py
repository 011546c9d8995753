"""All settings: their types, limits, help texts, and who may set them.

Nothing else knows them. The names of variables, the help of options, errors, `mlx-tools config
show` and the table in the documentation are made from this file. The default values are in
``config/default.toml`` and nowhere else.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from mlx_tools.backends import (
    BackendKind,
    RouteChoice,
    StrategyChoice,
    StyleChoice,
    parse_address,
)
from mlx_tools.errors import MlxToolsError, UsageError
from mlx_tools.policy import (
    ASKABLE,
    RATES,
    check_effects,
    check_patterns,
    check_rates,
)

ProjectRule = Literal[
    "never", "any", "only_true", "only_false", "lower", "rarer", "stricter", "allow", "add", "more"
]
"""The rule for a setting in a project's file.

Such a file comes with a cloned repository, so it may take power away and never give it.

- ``never``: it must not set it.
- ``any``: it may set it, since it gives no power.
- ``only_true``, ``only_false``: it may switch it that way.
- ``lower``: it may make a number smaller.
- ``rarer``: it may add rates, and lower existing ones.
- ``stricter``: it may move towards the first of the choices.
- ``allow``: it may name some of the tools that were allowed before.
- ``add``: it may add to the list.
- ``more``: it may name all that was in the list before, and more.
"""

Group = Literal["", "own", "backend", "writing", "policy", "run", "gateway"]


class Setting(Struct, frozen=True):
    """A setting's properties besides its type."""

    project: ProjectRule
    """The rule for a project's file."""
    help: str
    option: str = ""
    """Its option: the long name, a short one after a comma, and a word for the value."""
    group: Group = ""
    """The group of options that commands take together."""
    scale: int = 1
    """The option's value times this is the setting's value."""
    env: str = ""
    """Its environment variable, by default ``MLX_TOOLS_<SECTION>_<KEY>``."""
    allowed: str = ""
    """The allowed values in words, if the type does not say them."""
    test: Callable[[Any], object] | None = None
    """Raises an `MlxToolsError` for a value that only its type allows."""
    secret: bool = False
    """It is never shown, and its option names a file that holds it."""
    run: str = ""
    """The field of `RunSettings` that takes the value."""

    @property
    def flags(self) -> tuple[str, ...]:
        """The names of the option, the long one first; empty without an option."""
        return tuple(filter(None, self.option.partition(" ")[0].split(",")))

    @property
    def flag(self) -> str:
        """The option's long name, empty without one."""
        return next(iter(self.flags), "")


def setting(
    project: ProjectRule,
    help: str,  # noqa: A002
    *,
    ge: float | None = None,
    le: float | None = None,
    repr: bool = True,  # noqa: A002
    **options: Any,
) -> Any:
    """Return a field of the settings, with limits and the properties of `Setting`."""
    extra: Any = {"setting": Setting(project, help, **options)}
    return Field(ge=ge, le=le, repr=repr, json_schema_extra=extra)


def _webhooks(value: Mapping[str, str]) -> None:
    from mlx_tools.toolbox import UrlRefused, read_url

    try:
        if any(read_url(text).path != "/" for text in value):
            raise UsageError("an origin has no path")
    except UrlRefused as error:
        raise UsageError(str(error)) from None
    for secret in value.values():
        signing_key(secret)


def _no_wildcards(value: Any) -> None:
    """Refuse texts with ``*``: each text is compared as a whole."""
    for text in value:
        if "*" in text:
            raise UsageError(f"{text[:80]!r}: * stands for nothing here, write each one whole")


def _local_hosts(value: Any) -> None:
    from mlx_tools.toolbox import UrlRefused, read_local

    try:
        for text in value:
            read_local(text)
    except UrlRefused as error:
        raise UsageError(str(error)) from None


def _database(value: Any) -> None:
    from mlx_tools.store import check_address

    check_address(value)


def _server_options(value: Any) -> None:
    from mlx_tools.backends import check_options

    check_options(value)


def signing_key(secret: str) -> bytes:
    """Return the bytes of a key for webhooks.

    Raises:
        UsageError: it is no such key.
    """
    kind, _, text = secret.partition("_")
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if kind != "whsec" or not 24 <= len(key) <= 64:
        raise UsageError("it is no key for webhooks")
    return key


_TOOL = "NAME, a glob such as notes_*, plugin:NAME or plugin:NAME/TOOL"
ValueRule = Mapping[str, Any]
"""The allowed values in words, and their test, as arguments of `setting`."""

TOOLS: ValueRule = {
    "allowed": f"a list of tools, each {_TOOL}",
    "test": lambda value: check_patterns(value, "tools"),
}
EFFECTS: ValueRule = {"allowed": f"a list of {', '.join(ASKABLE)}", "test": check_effects}
SESSION = "session"
"""The name that means all tools together in a table of rates."""
RATE_TABLE: ValueRule = {
    "allowed": f"rates by tool, each tool {_TOOL}, each rate {RATES}",
    "test": lambda value: check_rates(value, "rates"),
}
ADDRESSES: ValueRule = {
    "allowed": "an address such as http://127.0.0.1:8080, or a list of several",
    "test": lambda value: [parse_address(url) for url in addresses(value)],
}

Names = tuple[str, ...]


def addresses(value: str | Names | None) -> Names:
    """Return the addresses in ``backend.url``."""
    return (value,) if isinstance(value, str) else value or ()


Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,500}$")]
Text = Annotated[str, StringConstraints(max_length=100_000)]
Key = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,4000}$")]
Root = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$")]
Program = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,99}$")]
Milliseconds = Annotated[int, Field(ge=1, le=86_400_000)]


class Section(BaseModel):
    """A table of the configuration file. Types are exact: "5" is not 5."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class PolicySection(Section):
    allow: Names | None = setting(
        "allow",
        "The tools that may be called, exactly these; replaces the preset",
        **TOOLS,
        option="--tools,-t A,B",
        env="MLX_TOOLS_ALLOWED_TOOLS",
        group="policy",
    )
    preset: Name | None = setting(
        "allow",
        "A named set of tools that may be called; replaces the list",
        option="--preset NAME",
        group="policy",
        allowed="the name of a preset",
    )
    deny: Names = setting(
        "add", "Tools that may not be called, whatever else allows them; adds up", **TOOLS
    )
    ask: Names = setting("add", "Tools that need an approval for every call; adds up", **TOOLS)
    ask_effects: Names = setting(
        "more",
        "Effects that ask a person before every call that has one of them, whichever tool it "
        "is; network may be added, and an empty list asks about none",
        **EFFECTS,
    )
    local_only: bool = setting(
        "only_true",
        "No tool with the network effect runs, and the backend is on loopback",
        option="--local-only",
        group="policy",
    )
    dry_run: bool = setting(
        "only_true",
        "Tools that write, execute or use the network report what they would do, and do not",
        option="--dry-run",
        env="MLX_TOOLS_DRY_RUN",
        group="policy",
    )
    approve: Literal["never", "auto", "ask", "always"] = setting(
        "stricter",
        "Calls that need approval: never pauses the run, ask asks at the terminal, always "
        "approves all but repaired and echoed calls; auto is ask at a terminal and never "
        "elsewhere",
        option="--approve WHEN",
        group="policy",
    )
    rate_limits: dict[str, str] = setting(
        "rarer",
        f"How often each tool may be called, by tool, and under {SESSION} all of them together in "
        "a session; adds up",
        **RATE_TABLE,
    )
    network_after_read: Literal["deny", "ask", "allow"] = setting(
        "stricter",
        "What becomes of calls that may use the network once a tool has shown private data, "
        "such as your files",
    )
    redact_paths: bool = setting(
        "only_true", "Paths are taken out of what tools return, too, as secrets are"
    )


class WebSettings(Section):
    local_hosts: Names = setting(
        "never",
        "Hosts of this machine or its network that fetch_url may ask besides, each with its port",
        allowed="a list of hosts, each with its port, such as localhost:8080",
        test=_local_hosts,
    )
    searxng: str | None = setting(
        "never",
        "The address of a SearXNG, which web_search asks in place of other engines",
        allowed="an address such as http://127.0.0.1:8888",
        test=parse_address,
    )


class ToolSettings(Section):
    roots: tuple[Root, ...] = setting(
        "never",
        "Folders that file tools may see: DIR or DIR:ro, or DIR:rw; DIR:ro:**/*.md only the files "
        "that fit the pattern",
        option="--root DIR[:rw]",
        group="policy",
        allowed="a list of folders, each DIR, DIR:ro or DIR:rw, with :PATTERN behind it or not",
    )
    commands: tuple[Program, ...] = setting(
        "never",
        "Programs that run_command may run besides its own, with any arguments; naming one allows "
        "run_command, which asks before each run. They are looked for in the system's folders",
        option="--commands A,B",
        group="policy",
        run="commands",
        allowed="a list of programs by name, without a folder",
    )
    program_folders: tuple[Root, ...] = setting(
        "never",
        "Folders of programs that you trust, looked through after the system's and, on a Mac, "
        "before Homebrew's; a program below a :rw root is refused",
        allowed="a list of folders, each with its whole path",
    )
    functions: tuple[Root, ...] = setting(
        "never",
        "Python files whose typed, documented functions the model may call; a function that does "
        "not declare its effects asks before each call",
        option="--functions FILE.py",
        group="policy",
        allowed="a list of Python files",
    )
    cache: Literal["off", "run", "session"] = setting(
        "stricter",
        "How long what a call that only reads was answered serves the same call again, if "
        "nothing was changed since: for one question, or for all of a session",
        run="cache",
    )


class LimitsSection(Section):
    max_iterations: int = setting(
        "lower",
        "Steps of one question, 24 if unset; each is a completion, and then the model must answer",
        ge=1,
        le=1000,
        option="--max-iterations N",
        env="MLX_TOOLS_MAX_ITERATIONS",
        group="run",
    )
    total_timeout_ms: Milliseconds = setting(
        "lower",
        "Time for one question, 1800 if unset; time waiting for a person does not count",
        option="--timeout SECONDS",
        env="MLX_TOOLS_TOTAL_TIMEOUT_MS",
        group="run",
        scale=1000,
    )
    tool_timeout_ms: Milliseconds = setting(
        "lower",
        "Time for one tool call, where the tool sets no shorter one",
        env="MLX_TOOLS_TOOL_TIMEOUT_MS",
    )
    max_tokens: int | None = setting(
        "lower",
        "Tokens of one completion, if unset what fits; at most 16384 then, 8192 if "
        "the context is unknown, and 512 for a model that was measured as weak",
        ge=1,
        le=1_000_000,
        option="--max-tokens N",
        group="writing",
    )
    max_observation_chars: int | None = setting(
        "lower",
        "Characters of a tool's output the model sees; without it an eighth of the context, 4000 "
        "to 32000 (8000 if the context is unknown)",
        ge=100,
        le=10_000_000,
    )


class Routing(Section):
    route: RouteChoice = setting(
        "never",
        "By which path a model is asked: by its server's own function calling (native), by a "
        "prompt, or (auto) natively where that was tried and works",
        option="--route PATH",
        group="gateway",
    )
    local_enabled: bool = setting(
        "only_false",
        "Whether questions may go to a local model by way of a prompt",
        env="ROUTING_LOCAL_ENABLED",
    )


class BackendSettings(Section):
    kind: BackendKind = setting(
        "never",
        "Where the model runs: on a completions server that is up, on one that is started for "
        "the run, in this process (local), on a server that is asked by its own function calling "
        "(native), or (auto) at the named address, else by the gateway where it runs, else on the "
        "server that answers on this machine, else the embedded model is started",
        option="--backend KIND",
        group="backend",
    )
    url: str | Names | None = setting(
        "never",
        "The server's address, with or without /v1; anthropic:URL and ollama:URL for servers "
        "that speak these interfaces; of several the next is asked where one does not answer",
        **ADDRESSES,
        option="--url URL",
        group="backend",
    )
    api_key: Key | None = setting(
        "never",
        "The key that is sent to these addresses; as a bearer token",
        repr=False,
        option="--api-key-file FILE",
        group="own",
        allowed="a key without spaces, or ${NAME} for what the variable NAME holds",
        secret=True,
    )

    server_options: Names = setting(
        "never",
        "Further options of a server of our own, such as --kv-bits, --draft-model, "
        "--adapter-path and --chat-template-args",
        allowed='a list of words, such as ["--kv-bits", "8"]',
        test=_server_options,
    )


class Model(Section):
    name: Name | None = setting(
        "never",
        "The model: the server's name for it, or a folder that holds one",
        option="--model,-m NAME",
        group="backend",
        allowed="a name or a folder",
    )
    prompt_style: StyleChoice = setting(
        "any",
        "How the model is told to write its messages; native as its own template has it, auto "
        "as measured, else jsonl",
        option="--style STYLE",
        group="writing",
        run="style",
    )
    chat_format: Literal["auto", "chatml", "llama3", "gemma", "mistral", "phi", "plain"] = setting(
        "never",
        "The delimiters of turns; auto reads them from the model's own template",
        option="--chat-format FORMAT",
        group="writing",
    )
    reasoning: Literal["off", "auto"] | Annotated[int, Field(ge=1, le=100_000)] = setting(
        "any",
        "Whether a model that can think may, and for how many tokens",
        option="--reasoning off|auto|N",
        group="writing",
        run="reasoning",
    )
    response_mode: Literal["answer-first", "rag-first"] = setting(
        "any",
        "Whether the model answers what it knows, or looks things up first",
        run="response_mode",
    )
    strategy: StrategyChoice = setting(
        "never",
        "How a completion is held to the protocol: where a message begins (auto), never "
        "(free), from its first character on (guided), or by a mask of the sampler (grammar)",
        option="--strategy STRATEGY",
        group="writing",
        run="strategy",
    )
    long_observations: Literal["cut", "summary"] = setting(
        "any",
        "What the model is shown of an output of more than limits.max_observation_chars: head "
        "and tail (cut), or between them a summary that it is asked for (summary)",
        run="long_observations",
    )
    context: int | None = setting(
        "any",
        "How many tokens the model can take; without it as its server or its files say, and "
        "where neither does it is unknown",
        ge=1,
        le=100_000_000,
        run="context",
    )
    compact: Literal["off", "auto"] = setting(
        "any",
        "Whether the model sums up the oldest turns by itself once four fifths of its context "
        "are used (auto), or only where that is asked for (off)",
        run="compact",
    )
    temperature: float = setting(
        "any",
        "Randomness of sampling; 0 always takes the likeliest token",
        ge=0,
        le=2,
        option="--temperature T",
        group="writing",
        run="temperature",
    )
    seed: int | None = setting(
        "any",
        "Seed of sampling",
        ge=0,
        le=4_294_967_295,
        option="--seed N",
        group="writing",
        run="seed",
    )


class PromptSection(Section):
    system: Text | None = setting(
        "never",
        "Who the model is told to be; stands in place of the built-in words",
        option="--system,-s TEXT",
        group="writing",
        allowed="text",
        run="persona",
    )
    project_context: Text = setting(
        "any",
        "What the model is told of the project; never read as instructions",
        allowed="text",
        run="project_context",
    )


class ArtifactSettings(Section):
    keep: Literal["when_needed", "always"] = setting(
        "stricter",
        "Which tools' outputs are stored whole: those that the model cannot see whole and all "
        "of a run in which a tool failed, or always all of them",
    )
    keep_days: int = setting("lower", "Days after which stored outputs are deleted", ge=1, le=3650)


class GatewaySettings(Section):
    host: Name = setting(
        "never",
        "The address that the gateway listens at; any but loopback needs a key",
        option="--host HOST",
        group="gateway",
        allowed="a host's name or address",
    )
    port: int = setting(
        "never",
        "The port that the gateway listens at; 0 takes one that is free",
        ge=0,
        le=65_535,
        option="--port N",
        group="gateway",
    )
    api_key: Key | None = setting(
        "never",
        "The key that clients must send; as a bearer token or in x-api-key",
        repr=False,
        option="--api-key-file FILE",
        group="gateway",
        allowed="a key without spaces, or ${NAME} for what the variable NAME holds",
        secret=True,
    )
    hosts: Names = setting(
        "never",
        "Names besides those of loopback by which clients may reach the gateway",
        option="--allow-host H",
        group="gateway",
        allowed="a list of host names, without wildcards",
        test=_no_wildcards,
    )
    origins: Names = setting(
        "never",
        "Web pages that may ask the gateway, each as http://localhost:3000",
        option="--allow-origin O",
        group="gateway",
        allowed="a list of origins, without wildcards",
        test=_no_wildcards,
    )
    concurrency: int = setting(
        "never", "Requests that are served at the same time", ge=1, le=10_000
    )
    catalog: Literal["whole", "compact"] = setting(
        "never",
        "What the model is told of a client's tools: all descriptions, or one line of each tool",
    )
    approvals: Literal["person", "client"] = setting(
        "never",
        "Who decides about the calls of a run that a client asked for: a person, elsewhere, or the "
        "client too",
    )
    models: dict[str, Name] = setting(
        "never",
        "Other names that clients may ask models by, with the model each stands for; `*` in a name "
        "is any text, `default` is the first model",
        allowed='a table such as { "gpt-*" = "default" }',
    )
    any_model: bool = setting("never", "Whether a gateway of one model answers to any name with it")
    webhooks: dict[str, Key] = setting(
        "never",
        "Where clients may have it told that their runs wait or are done: an origin each, with the "
        "key that what is told there is signed with",
        repr=False,
        allowed='a table such as { "https://hooks.example.org" = "whsec_…" }, each key whsec_ and '
        "24 to 64 bytes in base64",
        test=_webhooks,
        secret=True,
    )


class Settings(Section):
    """All settings, each with a value."""

    enabled: bool = setting(
        "only_false",
        "The switch of the whole program: with false, no tool runs",
        env="PLUGIN_MLX_TOOLS_ENABLED",
    )
    profile: Name | None = setting(
        "never",
        "The profile to use: settings under a name in your file that override its other values",
        option="--profile NAME",
        group="own",
        allowed="the name of a profile",
    )
    sessions: Key | None = setting(
        "never",
        "The PostgreSQL database that sessions are kept in, in place of files; its address",
        repr=False,
        allowed="postgresql://USER@HOST/NAME",
        test=_database,
        secret=True,
    )
    routing: Routing
    backend: BackendSettings
    model: Model
    prompt: PromptSection
    policy: PolicySection
    tools: ToolSettings
    web: WebSettings
    limits: LimitsSection
    artifacts: ArtifactSettings
    gateway: GatewaySettings


# --- the settings as rows: how each is named, read from text, checked and described -------------

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,9})?", re.ASCII)
_NOUNS = {"integer": "an integer", "number": "a number"}


@dataclass(frozen=True)
class SettingRow:
    """One setting."""

    key: str
    """Its dotted name in a file."""
    type: Any
    setting: Setting

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return self.setting.env or "MLX_TOOLS_" + self.key.upper().replace(".", "_")

    @property
    def optional(self) -> bool:
        """True if it may have no value."""
        return self.is_a("null")

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be, empty if it is no choice."""
        return tuple(word for part in self._parts for word in part.get("enum", ()))

    @property
    def may_be_empty(self) -> bool:
        """True if an empty text is a value: it is a list, and not also a single text."""
        return self.is_a("array") and not self.is_a("string")

    def is_a(self, kind: str) -> bool:
        """Return True if its values may be of this JSON Schema type."""
        return any(part["type"] == kind for part in self._parts)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    @cached_property
    def _parts(self) -> list[dict[str, Any]]:
        schema = self._adapter.json_schema()
        return schema.get("anyOf", [schema])  # type: ignore[no-any-return]

    def check(self, value: Any) -> Any:
        """Return the value as the setting holds it.

        Raises:
            ValueError: it is not allowed.
        """
        if isinstance(value, list) and self.is_a("array"):
            value = tuple(value)
        if value is None:
            raise ValueError
        try:
            value = self._adapter.validate_python(value, strict=True)
            if self.setting.test is not None:
                self.setting.test(value)
        except (ValidationError, MlxToolsError):
            raise ValueError from None
        return value

    def read(self, text: str, *, scale: int = 1) -> Any:
        """Return the value that a variable or an option writes.

        Raises ValueError as `check` does.

        An empty text is an empty list or table. It means no value if the setting may have none.
        """
        if self.is_a("object"):
            return self.check(_pairs(text))
        text = text.strip()
        if self.is_a("array") and (text or self.may_be_empty):
            return self.check([item for part in text.split(",") if (item := part.strip())])
        if not text and self.optional:
            return None
        if self.is_a("boolean"):
            word = text.casefold()
            return self.check(word in _TRUE if word in _TRUE + _FALSE else None)
        if self.is_a("integer") and _NUMBER.fullmatch(text):
            number = Decimal(text) * scale
            return self.check(int(number) if number == int(number) else number)
        return self.check(float(text) if self.is_a("number") else text)

    def allowed(self, scale: int = 1) -> str:
        """Return the allowed values in words."""
        if self.setting.allowed:
            return self.setting.allowed
        words = [*self.choices, *(("true", "false") if self.is_a("boolean") else ())]
        for part in self._parts:
            if part["type"] in _NOUNS:
                noun = _NOUNS[part["type"] if scale == 1 else "number"]
                low, high = (f"{part[end] / scale:.12g}" for end in ("minimum", "maximum"))
                words.append(f"{noun} from {low} to {high}")
        return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _pairs(text: str) -> dict[str, str]:
    """Return the table that ``name=value, name=value`` writes."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if name and sign and value and name not in pairs:
            pairs[name] = value
        elif part.strip():
            raise ValueError
    return pairs


@cache
def table() -> dict[str, SettingRow]:
    """Return all settings by key, in the order of their declaration."""
    return {row.key: row for row in _rows(Settings, "")}


def _rows(model: type[BaseModel], prefix: str) -> list[SettingRow]:
    rows: list[SettingRow] = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            rows += _rows(kind, f"{prefix}{name}.")
            continue
        extra: Any = field.json_schema_extra
        bounded: Any = Annotated[(kind, *field.metadata)] if field.metadata else kind
        rows.append(SettingRow(f"{prefix}{name}", bounded, extra["setting"]))
    return rows
