"""Backends: text in, pieces of text out.

Each name is imported when it is first used: the values cost nothing, the servers' clients do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.backends.choose import Chosen as Chosen
    from mlx_tools.backends.choose import choose_backend as choose_backend
    from mlx_tools.backends.choose import look_at as look_at
    from mlx_tools.backends.completions import CompletionsBackend as CompletionsBackend
    from mlx_tools.backends.function import FunctionBackend as FunctionBackend
    from mlx_tools.backends.function import as_backend as as_backend
    from mlx_tools.backends.health import Health as Health
    from mlx_tools.backends.interface import Backend as Backend
    from mlx_tools.backends.interface import Chunk as Chunk
    from mlx_tools.backends.interface import CompletionRequest as CompletionRequest
    from mlx_tools.backends.interface import GrammarText as GrammarText
    from mlx_tools.backends.interface import TokenScore as TokenScore
    from mlx_tools.backends.local import LocalBackend as LocalBackend
    from mlx_tools.backends.server import ServerBackend as ServerBackend

_HOMES: Final = {
    "Backend": "interface",
    "Chosen": "choose",
    "Chunk": "interface",
    "CompletionRequest": "interface",
    "CompletionsBackend": "completions",
    "FunctionBackend": "function",
    "GrammarText": "interface",
    "Health": "health",
    "LocalBackend": "local",
    "ServerBackend": "server",
    "TokenScore": "interface",
    "as_backend": "function",
    "choose_backend": "choose",
    "look_at": "choose",
}

__all__ = [
    "Backend",
    "Chosen",
    "Chunk",
    "CompletionRequest",
    "CompletionsBackend",
    "FunctionBackend",
    "GrammarText",
    "Health",
    "LocalBackend",
    "ServerBackend",
    "TokenScore",
    "as_backend",
    "choose_backend",
    "look_at",
]

__getattr__, __dir__ = names_of(__name__, _HOMES)
