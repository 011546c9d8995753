"""Backends: text in, pieces of text out; the models behind them, and what was measured of these.

Each name is imported when it is first used: the values cost nothing, the servers' clients do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.backends.adapters import CompleteFunction as CompleteFunction
    from mlx_tools.backends.adapters import FunctionBackend as FunctionBackend
    from mlx_tools.backends.adapters import Guarded as Guarded
    from mlx_tools.backends.adapters import as_backend as as_backend
    from mlx_tools.backends.capabilities import has_logprobs as has_logprobs
    from mlx_tools.backends.capabilities import honours_stop as honours_stop
    from mlx_tools.backends.capabilities import obeys_grammar as obeys_grammar
    from mlx_tools.backends.capabilities import reports_cache as reports_cache
    from mlx_tools.backends.capabilities import single_tokens as single_tokens
    from mlx_tools.backends.choose import Chosen as Chosen
    from mlx_tools.backends.choose import choose_backend as choose_backend
    from mlx_tools.backends.choose import look_at as look_at
    from mlx_tools.backends.choose import native_markers as native_markers
    from mlx_tools.backends.completions import CompletionsBackend as CompletionsBackend
    from mlx_tools.backends.completions import Health as Health
    from mlx_tools.backends.interface import Backend as Backend
    from mlx_tools.backends.interface import Chunk as Chunk
    from mlx_tools.backends.interface import CompletionRequest as CompletionRequest
    from mlx_tools.backends.interface import GrammarText as GrammarText
    from mlx_tools.backends.interface import TokenScore as TokenScore
    from mlx_tools.backends.local import LocalBackend as LocalBackend
    from mlx_tools.backends.models.download import PullProgress as PullProgress
    from mlx_tools.backends.models.download import Report as Report
    from mlx_tools.backends.models.download import fetch_wheel as fetch_wheel
    from mlx_tools.backends.models.download import file_sha256 as file_sha256
    from mlx_tools.backends.models.embedded import DEFAULT_MODEL as DEFAULT_MODEL
    from mlx_tools.backends.models.files import ModelFiles as ModelFiles
    from mlx_tools.backends.models.files import read_model_files as read_model_files
    from mlx_tools.backends.models.hub import ListedModel as ListedModel
    from mlx_tools.backends.models.listing import ModelMissing as ModelMissing
    from mlx_tools.backends.models.listing import find_model as find_model
    from mlx_tools.backends.models.listing import list_models as list_models
    from mlx_tools.backends.models.listing import memory_bytes as memory_bytes
    from mlx_tools.backends.models.listing import model_identity as model_identity
    from mlx_tools.backends.models.listing import model_path as model_path
    from mlx_tools.backends.models.listing import pull_model as pull_model
    from mlx_tools.backends.models.listing import suggest_model as suggest_model
    from mlx_tools.backends.models.tokens import TokenCounter as TokenCounter
    from mlx_tools.backends.openblas import find_openblas as find_openblas
    from mlx_tools.backends.router import context_of as context_of
    from mlx_tools.backends.router import decide_for as decide_for
    from mlx_tools.backends.router import find_chat_format as find_chat_format
    from mlx_tools.backends.router import find_served_format as find_served_format
    from mlx_tools.backends.router import folder_of as folder_of
    from mlx_tools.backends.router import format_of as format_of
    from mlx_tools.backends.router import found_within as found_within
    from mlx_tools.backends.router import model_of as model_of
    from mlx_tools.backends.router import speakable as speakable
    from mlx_tools.backends.router import takes_grammar as takes_grammar
    from mlx_tools.backends.server import ServerBackend as ServerBackend
    from mlx_tools.backends.transport import parse_address as parse_address
    from mlx_tools.backends.verdicts import DEFAULT_STYLE as DEFAULT_STYLE
    from mlx_tools.backends.verdicts import STRATEGIES as STRATEGIES
    from mlx_tools.backends.verdicts import STYLES as STYLES
    from mlx_tools.backends.verdicts import Decided as Decided
    from mlx_tools.backends.verdicts import FoundVerdict as FoundVerdict
    from mlx_tools.backends.verdicts import StrategyChoice as StrategyChoice
    from mlx_tools.backends.verdicts import StyleChoice as StyleChoice
    from mlx_tools.backends.verdicts import StyleVerdict as StyleVerdict
    from mlx_tools.backends.verdicts import Verdict as Verdict
    from mlx_tools.backends.verdicts import VerdictStore as VerdictStore
    from mlx_tools.backends.verdicts import decide as decide
    from mlx_tools.backends.verdicts import find_verdict as find_verdict

_NAMES: Final = {
    "adapters": "CompleteFunction FunctionBackend Guarded as_backend",
    "capabilities": "has_logprobs honours_stop obeys_grammar reports_cache single_tokens",
    "choose": "Chosen choose_backend look_at native_markers",
    "completions": "CompletionsBackend Health",
    "interface": "Backend Chunk CompletionRequest GrammarText TokenScore",
    "local": "LocalBackend",
    "models.download": "PullProgress Report fetch_wheel file_sha256",
    "models.embedded": "DEFAULT_MODEL",
    "models.files": "ModelFiles read_model_files",
    "models.hub": "ListedModel",
    "models.listing": (
        "ModelMissing find_model list_models memory_bytes model_identity "
        "model_path pull_model suggest_model"
    ),
    "models.tokens": "TokenCounter",
    "openblas": "find_openblas",
    "router": (
        "context_of decide_for find_chat_format find_served_format folder_of format_of "
        "found_within model_of speakable takes_grammar"
    ),
    "server": "ServerBackend",
    "transport": "parse_address",
    "verdicts": (
        "DEFAULT_STYLE STRATEGIES STYLES Decided FoundVerdict StrategyChoice "
        "StyleChoice StyleVerdict Verdict VerdictStore decide find_verdict"
    ),
}
_HOMES: Final = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]

__getattr__, __dir__ = names_of(__name__, _HOMES)
