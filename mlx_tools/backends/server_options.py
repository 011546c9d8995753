"""The options of mlx-lm's server: by the size of the memory, and by a setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mlx_tools.backends.models.embedded import folder_bytes
from mlx_tools.backends.models.listing import memory_bytes
from mlx_tools.errors import UsageError, require_texts

GPU_SHARE: Final = 2 / 3
"""The share of a Mac's memory that Metal uses by default: two thirds up to 36 GB, then more."""

HEADROOM: Final = 10**9
"""Bytes for the activations of a long prompt, and for the program itself."""

CACHE_SHARE: Final = 0.5
"""The share of the cache of prompts in the memory that weights and headroom leave.

The other half is for running requests. A choice: a larger cache saves reading, but fewer requests
can run at once.
"""

MIN_CACHE_BYTES: Final = 256 * 2**20
"""The minimum of the cache of prompts: one conversation of some thousand tokens.

With less, each turn would read the whole prompt again, even if the model nearly fills the memory.
"""

UNKNOWN_CACHE: Final = 2**30
"""Bytes of the cache if the size of the memory is unknown. A choice for machines of 8 GB."""

_PER_REQUEST: Final = 2 * 10**9
"""Bytes for one request of a batch: 16,000 tokens of a model with 8 billion parameters."""

_MAX_CONCURRENT: Final = 8
"""The limit of requests at once. A choice: with more, each is too slow on one machine."""

ALLOWED: Final = {
    "--adapter-path": 1,
    "--chat-template-args": 1,
    "--decode-concurrency": 1,
    "--draft-model": 1,
    "--kv-bits": 1,
    "--kv-group-size": 1,
    "--num-draft-tokens": 1,
    "--prefill-step-size": 1,
    "--prompt-cache-bytes": 1,
    "--prompt-cache-size": 1,
    "--prompt-concurrency": 1,
    "--quantized-kv-start": 1,
}
"""The options that the setting may have, each with the number of its values.

Options that change who can reach the server, which model it runs, or whether it runs code in a
model's folder are not allowed.
"""


def find_memory_options(model: Path, memory: int | None = None) -> list[str]:
    """Return the options that limit the server's memory, without the weights.

    Without them its cache of prompts grows until the memory is full.

    Args:
        model: the model's folder.
        memory: the bytes of this machine's memory; None to ask it.
    """
    memory = memory or memory_bytes()
    if memory is None:
        cache, at_once = UNKNOWN_CACHE, 1
    else:
        free = memory * GPU_SHARE - folder_bytes(model) - HEADROOM
        cache = max(MIN_CACHE_BYTES, int(free * CACHE_SHARE))
        at_once = max(1, min(_MAX_CONCURRENT, int(free * (1 - CACHE_SHARE) / _PER_REQUEST)))
    return [
        *("--prompt-cache-bytes", str(cache)),
        *("--decode-concurrency", str(at_once)),
        *("--prompt-concurrency", str(max(1, at_once // 2))),
    ]


def check_options(words: Sequence[str]) -> tuple[str, ...]:
    """Check the words of ``backend.server_options``, and return them.

    Raises:
        UsageError: an option may not be set, or its value is missing.
    """
    words = require_texts("options", words, "give the words of the options as a list")
    rest = list(words)
    while rest:
        name, equals, _ = rest.pop(0).partition("=")
        if name not in ALLOWED:
            raise UsageError(
                f"{name!r} is not a server option that may be set",
                hint=f"use {', '.join(ALLOWED)}",
            )
        if not equals and (not rest or rest.pop(0).startswith("--")):
            raise UsageError(f"{name} lacks its value", hint=f"write {name}, then the value")
    return tuple(words)


def with_options(defaults: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the default options and the user's, which override them."""
    named = {word.partition("=")[0] for word in options}
    pairs = zip(defaults[::2], defaults[1::2], strict=True)
    remaining = [word for name, value in pairs if name not in named for word in (name, value)]
    return [*remaining, *options]
