"""Configurations of the clients that can be connected to a gateway.

Each was tried with the client's own package, or follows the named page of its maker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, field

NAME: Final = "mlx-tools"
"""The name of the provider in the clients' files."""

MODEL: Final = "default"
"""The name that a gateway's first model answers to, whatever the model is."""

_DEFAULT_CONTEXT: Final = 32_768
"""Tokens that a client is told if the gateway does not report the model's own."""

_MAX_OUTPUT: Final = 8_192
"""Tokens of an answer: what the gateway allows a turn without a limit."""


class GatewayTarget(Struct, frozen=True):
    """The gateway that a client is connected to.

    Attributes:
        url: The gateway's address, without ``/v1`` and without a slash at its end.
        context: Tokens of the model's context; None if unknown.
        key: What stands for the key in files: a word if the gateway has none.
        key_variable: The variable that holds the key; empty if the gateway has none.
        home: The user's home.
        environ: The variables of the user's shell.
        is_mac: The files are where macOS has them.
    """

    url: str
    context: int | None = None
    key: str = "none"
    key_variable: str = ""
    home: Path = field(default_factory=Path.home)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    is_mac: bool = sys.platform == "darwin"

    @property
    def api(self) -> str:
        """The address of OpenAI's interfaces."""
        return f"{self.url}/v1"

    @property
    def tokens(self) -> int:
        """Tokens of the context that a client is told of."""
        return self.context or _DEFAULT_CONTEXT

    @property
    def output(self) -> int:
        """Tokens that an answer may have: at most a quarter of the context."""
        return min(_MAX_OUTPUT, self.tokens // 4)

    def folder(self, variable: str, *usual: str) -> Path:
        """Return the folder that a variable names, else the usual one in the user's home."""
        named = self.environ.get(variable)
        return Path(named).expanduser() if named else self.home.joinpath(*usual)


class ListItem(Struct, frozen=True):
    """A place in a list: the item that has these values, or after the last item."""

    match: Mapping[str, Any]


Step = str | int | ListItem


class ValueChange(Struct, frozen=True):
    """One value of a file, by its path. ``is_default``: a present value stays."""

    path: tuple[Step, ...]
    value: Any
    is_default: bool = False


class FileChanges(Struct, frozen=True):
    """The changes of one file."""

    path: Path
    format: Literal["json", "toml", "yaml"]
    changes: tuple[ValueChange, ...]


class ClientPlan(Struct, frozen=True):
    """The way in which a client is connected.

    Attributes:
        title: The client's name as its makers write it.
        files: What is changed in its files.
        variables: Variables that it reads, where it has no file for them.
        commands: What to run then.
        steps: What a person does in its windows.
    """

    title: str
    files: tuple[FileChanges, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


def _set(*path_and_value: Any, is_default: bool = False) -> ValueChange:
    *path, value = path_and_value
    return ValueChange(tuple(path), value, is_default)


def _codex(target: GatewayTarget) -> ClientPlan:
    provider = {"name": NAME, "base_url": target.api, "wire_api": "responses"}
    if target.key_variable:
        provider["env_key"] = target.key_variable
    changes = [_set("model", MODEL), _set("model_provider", NAME)]
    changes += [_set("model_providers", NAME, key, value) for key, value in provider.items()]
    if target.context:
        changes.append(_set("model_context_window", target.context))
    path = target.folder("CODEX_HOME", ".codex") / "config.toml"
    return ClientPlan(
        "Codex",
        (FileChanges(path, "toml", tuple(changes)),),
        commands=('codex exec "Which files are here?"',),
    )


def _claude_code(target: GatewayTarget) -> ClientPlan:
    models = ("MODEL", "SMALL_FAST_MODEL", *(f"DEFAULT_{n}_MODEL" for n in _CLASSES))
    values = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        **{f"ANTHROPIC_{name}": MODEL for name in models},
        "CLAUDE_CODE_SUBAGENT_MODEL": MODEL,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.output),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if target.context:
        values["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
        values["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.context)
    path = target.folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"
    changes = tuple(_set("env", name, value) for name, value in values.items())
    return ClientPlan(
        "Claude Code",
        (FileChanges(path, "json", changes),),
        commands=('claude -p "Which files are here?"',),
    )


_CLASSES: Final = ("HAIKU", "SONNET", "OPUS")


def _opencode_like(target: GatewayTarget, path: Path, title: str, command: str) -> ClientPlan:
    """Return the plan for opencode, and for programs built on it."""
    key = f"{{env:{target.key_variable}}}" if target.key_variable else target.key
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": NAME,
        "options": {"baseURL": target.api, "apiKey": key},
        "models": {
            MODEL: {
                "name": f"{NAME} {MODEL}",
                "tool_call": True,
                "limit": {"context": target.tokens, "output": target.output},
            }
        },
    }
    changes = (
        _set("provider", NAME, provider),
        _set("model", f"{NAME}/{MODEL}"),
        _set("small_model", f"{NAME}/{MODEL}"),
    )
    return ClientPlan(title, (FileChanges(path, "json", changes),), commands=(command,))


def _first_existing(folder: Path, *names: str) -> Path:
    """Return the first of these files that exists, else the first one."""
    return next((folder / name for name in names if (folder / name).exists()), folder / names[0])


def _opencode(target: GatewayTarget) -> ClientPlan:
    folder = target.folder("XDG_CONFIG_HOME", ".config") / "opencode"
    path = _first_existing(folder, "opencode.json", "opencode.jsonc")
    return _opencode_like(target, path, "opencode", 'opencode run "Which files are here?"')


def _kilo(target: GatewayTarget) -> ClientPlan:
    folder = target.folder("XDG_CONFIG_HOME", ".config") / "kilo"
    path = _first_existing(folder, "kilo.json", "kilo.jsonc")
    return _opencode_like(target, path, "Kilo", 'kilo run "Which files are here?"')


def _pi(target: GatewayTarget) -> ClientPlan:
    provider = {
        "baseUrl": target.api,
        "api": "openai-completions",
        "apiKey": target.key_variable or target.key,
        "models": [{"id": MODEL, "contextWindow": target.tokens, "maxTokens": target.output}],
    }
    path = target.folder("PI_CODING_AGENT_DIR", ".pi", "agent") / "models.json"
    changes = (_set("providers", NAME, provider),)
    return ClientPlan(
        "pi",
        (FileChanges(path, "json", changes),),
        commands=(f'pi --provider {NAME} --model {MODEL} -p "Which files are here?"',),
    )


def _qwen_code(target: GatewayTarget) -> ClientPlan:
    variable = target.key_variable or "MLX_TOOLS_KEY"
    model = {
        "id": MODEL,
        "name": f"{NAME} {MODEL}",
        "baseUrl": target.api,
        "envKey": variable,
        "generationConfig": {
            "contextWindowSize": target.tokens,
            "samplingParams": {"max_tokens": target.output},
        },
    }
    changes = [
        _set("modelProviders", "openai", ListItem({"id": MODEL, "baseUrl": target.api}), model),
        _set("security", "auth", "selectedType", "openai"),
        _set("model", "name", MODEL),
        _set("fastModel", MODEL),
    ]
    if not target.key_variable:
        changes.insert(1, _set("env", variable, target.key))
    path = target.home / ".qwen" / "settings.json"
    return ClientPlan(
        "Qwen Code",
        (FileChanges(path, "json", tuple(changes)),),
        commands=('qwen -p "Which files are here?"',),
    )


def _continue(target: GatewayTarget) -> ClientPlan:
    model = {
        "name": NAME,
        "provider": "openai",
        "model": MODEL,
        "apiBase": target.api,
        "apiKey": target.key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {
            "contextLength": target.tokens,
            "maxTokens": target.output,
        },
    }
    path = target.folder("CONTINUE_GLOBAL_DIR", ".continue") / "config.yaml"
    head = {"name": "Local", "version": "1.0.0", "schema": "v1"}
    changes = (
        *(_set(key, value, is_default=True) for key, value in head.items()),
        _set("models", ListItem({"name": NAME}), model),
    )
    return ClientPlan(
        "Continue",
        (FileChanges(path, "yaml", changes),),
        commands=('cn -p "Which files are here?"',),
    )


_LONG_AGO: Final = "2026-01-01T00:00:00.000Z"
"""The time of the last change of Cline's settings: it wants some time, and writes its own later."""


def _cline(target: GatewayTarget) -> ClientPlan:
    provider = "openai-compatible"
    settings = {
        "provider": provider,
        "apiKey": target.key,
        "model": MODEL,
        "baseUrl": target.api,
    }
    path = target.home / ".cline" / "data" / "settings" / "providers.json"
    changes = (
        _set("version", 1, is_default=True),
        _set("lastUsedProvider", provider),
        *(_set("providers", provider, "settings", key, value) for key, value in settings.items()),
        _set("providers", provider, "updatedAt", _LONG_AGO, is_default=True),
        _set("providers", provider, "tokenSource", "manual", is_default=True),
    )
    steps = (
        "In the editor's extension: choose OpenAI Compatible as the API provider, "
        f"{target.api} as the base URL, {target.key} as the key and {MODEL} as the model ID, "
        f"and set the context window to {target.tokens}.",
    )
    return ClientPlan(
        "Cline",
        (FileChanges(path, "json", changes),),
        commands=('cline "Which files are here?"',),
        steps=steps,
    )


def _llm(target: GatewayTarget) -> ClientPlan:
    data = ("Library", "Application Support") if target.is_mac else (".config",)
    folder = target.folder("LLM_USER_PATH", *data, "io.datasette.llm")
    model = {
        "model_id": NAME,
        "model_name": MODEL,
        "api_base": target.api,
        "supports_tools": True,
        "supports_schema": True,
    }
    if target.key_variable:
        model["api_key_name"] = NAME
    item = ListItem({"model_id": NAME})
    file = FileChanges(folder / "extra-openai-models.yaml", "yaml", (_set(item, model),))
    commands = [f'llm -m {NAME} -T llm_time "What time is it?"']
    if target.key_variable:
        commands.insert(0, f"llm keys set {NAME}")
    return ClientPlan("llm", (file,), commands=tuple(commands))


def _open_webui(target: GatewayTarget) -> ClientPlan:
    variables = {
        "OPENAI_API_BASE_URL": target.api,
        "OPENAI_API_KEY": target.key,
        "TASK_MODEL_EXTERNAL": MODEL,
    }
    steps = (
        "Open WebUI keeps its settings in a database; it reads these variables at its first start.",
        "In the model's advanced parameters set function calling to native"
        + (f", and the context to {target.context}." if target.context else "."),
    )
    return ClientPlan(
        "Open WebUI", variables=variables, commands=("open-webui serve",), steps=steps
    )


def _zed(target: GatewayTarget) -> ClientPlan:
    provider = {
        "api_url": target.api,
        "available_models": [
            {
                "name": MODEL,
                "display_name": f"{NAME} {MODEL}",
                "max_tokens": target.tokens,
                "max_output_tokens": target.output,
                "capabilities": {
                    "tools": True,
                    "images": False,
                    "parallel_tool_calls": True,
                    "prompt_cache_key": False,
                },
            }
        ],
    }
    model = {"provider": NAME, "model": MODEL}
    changes = (
        _set("language_models", "openai_compatible", NAME, provider),
        _set("agent", "default_model", model),
        _set("agent", "thread_summary_model", model),
        _set("agent", "commit_message_model", model),
    )
    path = target.folder("XDG_CONFIG_HOME", ".config") / "zed" / "settings.json"
    if target.is_mac:
        path = target.home / ".config" / "zed" / "settings.json"
    return ClientPlan(
        "Zed",
        (FileChanges(path, "json", changes),),
        variables={"MLX_TOOLS_API_KEY": target.key},
        steps=(
            "Zed reads the key from this variable, or asks for it in its settings of providers.",
        ),
    )


def _jetbrains(target: GatewayTarget) -> ClientPlan:
    key = f"${{{target.key_variable}}}" if target.key_variable else target.key
    profile = {
        "id": MODEL,
        "baseUrl": f"{target.api}/chat/completions",
        "apiType": "OpenAICompletion",
        "apiKey": key,
        "fasterModel": {"id": MODEL},
    }
    path = target.home / ".junie" / "models" / f"{NAME}.json"
    changes = tuple(_set(name, value) for name, value in profile.items())
    steps = (
        "In the IDE: Settings, Tools, AI Assistant, Models & API keys, Third-party AI providers: "
        f"choose OpenAI-compatible, with {target.api} as the URL and {target.key} as the key; "
        f"enable tool calling, and choose {MODEL} as the core and the instant model"
        + (f", with a context window of {target.context}." if target.context else "."),
    )
    return ClientPlan(
        "JetBrains",
        (FileChanges(path, "json", changes),),
        commands=(f"junie --model {NAME}",),
        steps=steps,
    )


def _aider(target: GatewayTarget) -> ClientPlan:
    model = f"openai/{MODEL}"
    values = {
        "openai-api-base": target.api,
        "openai-api-key": target.key,
        "model": model,
        "weak-model": model,
        "editor-model": model,
    }
    metadata = {
        "max_input_tokens": target.tokens,
        "max_output_tokens": target.output,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    files = (
        FileChanges(
            target.home / ".aider.conf.yml",
            "yaml",
            tuple(_set(name, value) for name, value in values.items()),
        ),
        FileChanges(target.home / ".aider.model.metadata.json", "json", (_set(model, metadata),)),
    )
    return ClientPlan("aider", files, commands=("aider",))


CLIENTS: Final[Mapping[str, Callable[[GatewayTarget], ClientPlan]]] = {
    "codex": _codex,
    "claude-code": _claude_code,
    "opencode": _opencode,
    "pi": _pi,
    "qwen-code": _qwen_code,
    "continue": _continue,
    "cline": _cline,
    "kilo": _kilo,
    "llm": _llm,
    "open-webui": _open_webui,
    "zed": _zed,
    "jetbrains": _jetbrains,
    "aider": _aider,
}
"""The clients by the names that the command accepts."""
