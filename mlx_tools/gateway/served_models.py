"""The models that the gateway serves: their names, prompts and contexts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import anyio
import anyio.to_thread

from mlx_tools.app import RunOptions, open_selected_backend, try_route
from mlx_tools.backends import (
    TokenCounter,
    find_model_folder,
    find_model_name,
    find_setup,
    read_traits,
)
from mlx_tools.errors import BackendUnreachable, MlxToolsError
from mlx_tools.gateway.conversation import PromptProfile
from mlx_tools.gateway.request import ApiError
from mlx_tools.gateway.turn import TurnRunner
from mlx_tools.messages import replace
from mlx_tools.schema import make_validator
from mlx_tools.store import load_words

DEFAULT: Final = "default"
"""The name that also stands for the configured model, or else for the first that is served."""

REQUEST_SECONDS: Final = 600.0
"""Seconds that one request may take, corrections included."""

TRIAL: Final = 20.0
"""Seconds for the test of a server's own function calling, once for each server and model."""

Note = Callable[[str], None]

_CONTEXT_FIELDS: Final = (
    *("context_length", "context_window", "max_model_len", "max_context_length"),
    "max_input_tokens",
)
"""Fields in which clients read the length of a model's context: those of OpenRouter, Groq, vLLM,
LM Studio and Anthropic."""

_MAX_UNKNOWN: Final = 20
"""Unknown names that are reported to the person who serves: they come from clients."""


@lru_cache(maxsize=64)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern of names, in which ``*`` is any text."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


@dataclass
class ServedModels:
    """The models behind a configuration's backend.

    A model is opened when it is first asked for.

    Attributes:
        options: The settings that models are opened with.
        note: Tells the person who serves.
        aliases: Other names of models, by patterns with ``*``; an exact name comes first.
        any_model: If only one model is served, it answers to any name.
        exit_stack: Closes what was opened for models.
        open_runners: The models that are open, by name.
        names: The names of the models that are served; the first is the default.
    """

    options: RunOptions
    note: Note
    aliases: Mapping[str, str] = field(default_factory=dict)
    any_model: bool = False
    exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    open_runners: dict[str, TurnRunner] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    _unknown_names: set[str] = field(default_factory=set, init=False)
    _lock: anyio.Lock = field(default_factory=anyio.Lock)

    async def open(self) -> None:
        """Find out what is served. Raises `MlxToolsError` as `mlx_tools.app.found` does."""
        named = self.options.model_name
        speaker = await self.open_model(named, first=True)
        own = named or speaker.profile.settings.model or DEFAULT
        self.open_runners[own] = speaker
        others: tuple[str, ...] = ()
        if named is None and read_traits(speaker.backend).asks_server:
            others = await speaker.backend.models()  # type: ignore[attr-defined]
        if (start := getattr(speaker.backend, "start", None)) is not None:
            await start()  # so that the first client does not wait for it
        # The validator takes long to import: it must not stop a stream.
        await anyio.to_thread.run_sync(make_validator, {"type": "object"})
        self.names = tuple(dict.fromkeys((own, *others)))

    async def aclose(self) -> None:
        """Close the open models."""
        await self.exit_stack.aclose()

    def served_name(self, name: str) -> str:
        """Return the name of the model that a client means.

        Raises `ApiError` (404) if there is no such model.
        """
        if name in self.names:
            return name
        meant = self.aliases.get(name)
        if meant is None:
            patterns = (pattern for pattern in self.aliases if "*" in pattern)
            matches = (p for p in patterns if _compile_pattern(p).fullmatch(name[:1000]))
            meant = self.aliases.get(next(matches, ""), name)
        if meant in ("", DEFAULT):
            return self.names[0]
        if meant in self.names:
            return meant
        is_alone = len(self.names) == 1
        if self.any_model and is_alone:
            return self.names[0]
        if is_alone and name not in self._unknown_names and len(self._unknown_names) < _MAX_UNKNOWN:
            self._unknown_names.add(name)
            self.note(
                f"a client asked for the model {name[:100]!r}, which is not served here: to have "
                f"{self.names[0]} answer to any name, set any_model = true in [gateway]"
            )
        names = ", ".join(self.names[:20])
        message = f"The model {name!r} does not exist. There are: {names}."
        raise ApiError(404, "model_not_found", message, param="model")

    async def speaker(self, name: str) -> TurnRunner:
        """Return the runner of the model of this name. Raises `ApiError` if there is none."""
        name = self.served_name(name)
        if name in self.open_runners:  # no request waits for a model that is being opened
            return self.open_runners[name]
        async with self._lock:
            if name not in self.open_runners:
                try:
                    self.open_runners[name] = await self.open_model(name)
                except MlxToolsError as error:
                    is_down = isinstance(error, BackendUnreachable)
                    raise ApiError(
                        502,
                        "upstream_error",
                        str(error),
                        should_retry=False if is_down else None,
                    ) from error
            return self.open_runners[name]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``/v1/models``, with less of models that nobody asked yet."""
        rows = []
        for name in self.names:
            row = {"id": name, "object": "model", "created": 0, "owned_by": "mlx-tools"}
            row |= {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
            if (speaker := self.open_runners.get(name)) is not None:
                settings = speaker.profile.settings
                path = settings.route.get("path", "prompted")
                row |= {"tool_mode": path}
                row |= dict.fromkeys(_CONTEXT_FIELDS, settings.context)
            rows.append(row)
        return rows

    def runners(self) -> Mapping[str, TurnRunner | None]:
        """Return the runners of the models by name; None for one that nobody asked yet."""
        return {name: self.open_runners.get(name) for name in self.names}

    async def open_model(self, name: str | None, *, first: bool = False) -> TurnRunner:
        """Open a model; for the ``first`` its server's own function calling is tested."""
        options = replace(self.options, model=name, spread=True, serves=True)
        chosen, settings = await self.exit_stack.enter_async_context(
            open_selected_backend(options, self.note)
        )
        if first:
            settings = await try_route(options, chosen, settings, TRIAL)
        self.note(f"{settings.model or 'the model'} is asked {_describe_route(settings.route)}")
        setup = await find_setup(chosen.backend, settings)
        model = settings.model or find_model_name(chosen.backend)
        chat_format = setup.chat_format
        manner = PromptProfile(
            settings=replace(settings, model=model, chat_format=chat_format, context=setup.context),
            chat_format=chat_format,
            style=setup.decided.style,
            strategy=setup.decided.strategy,
            words=load_words(),
            weak_model=setup.decided.weak,
            catalog=options.configuration.settings.gateway.catalog,
        )
        # a long prompt is read for minutes, and clients are told that the server is alive
        limits = replace(
            options.configuration.limits(),
            total_timeout=REQUEST_SECONDS,
            completion_timeout=REQUEST_SECONDS,
            idle_timeout=REQUEST_SECONDS,
        )
        counter = TokenCounter(lambda: find_model_folder(chosen.backend, model))
        return TurnRunner(chosen.backend, manner, limits, counter)


def _describe_route(route: Mapping[str, Any]) -> str:
    path = "natively" if route.get("path") == "native" else "by a prompt"
    return f"{path}: {route.get('reason')}"
