"""Models on this machine: the embedded one, the Hugging Face cache, and what their files say.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.backends.models.download import PullProgress as PullProgress
    from mlx_tools.backends.models.embedded import DEFAULT as DEFAULT
    from mlx_tools.backends.models.files import ModelFiles as ModelFiles
    from mlx_tools.backends.models.files import read_model_files as read_model_files
    from mlx_tools.backends.models.listing import ListedModel as ListedModel
    from mlx_tools.backends.models.listing import ModelMissing as ModelMissing
    from mlx_tools.backends.models.listing import find_model as find_model
    from mlx_tools.backends.models.listing import list_models as list_models
    from mlx_tools.backends.models.listing import model_path as model_path
    from mlx_tools.backends.models.listing import pull_model as pull_model
    from mlx_tools.backends.models.memory import Suggestion as Suggestion
    from mlx_tools.backends.models.memory import memory_bytes as memory_bytes
    from mlx_tools.backends.models.memory import suggest_model as suggest_model
    from mlx_tools.backends.models.pull import Pulled as Pulled
    from mlx_tools.backends.models.pull import verify as verify

_HOMES: Final = {
    "DEFAULT": "embedded",
    "ListedModel": "listing",
    "ModelFiles": "files",
    "ModelMissing": "listing",
    "PullProgress": "download",
    "Pulled": "pull",
    "Suggestion": "memory",
    "find_model": "listing",
    "list_models": "listing",
    "memory_bytes": "memory",
    "model_path": "listing",
    "pull_model": "listing",
    "read_model_files": "files",
    "suggest_model": "memory",
    "verify": "pull",
}

__all__ = [
    "DEFAULT",
    "ListedModel",
    "ModelFiles",
    "ModelMissing",
    "PullProgress",
    "Pulled",
    "Suggestion",
    "find_model",
    "list_models",
    "memory_bytes",
    "model_path",
    "pull_model",
    "read_model_files",
    "suggest_model",
    "verify",
]

__getattr__, __dir__ = names_of(__name__, _HOMES)
