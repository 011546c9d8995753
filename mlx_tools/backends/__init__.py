"""Backends, which complete text; their models; and verdicts on models.

Each name is imported when it is first used, because the clients of servers take long to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.backends.adapters import (
        CompleteFunction,
        ErrorMappingBackend,
        FunctionBackend,
        as_backend,
        complete_one,
        start_backend,
    )
    from mlx_tools.backends.address import Address, parse_address
    from mlx_tools.backends.capabilities import (
        find_single_tokens,
        has_logprobs,
        honours_stop,
        probe_native,
        reports_cache,
    )
    from mlx_tools.backends.chat_wire import TurnText, arguments_text
    from mlx_tools.backends.choose import LOCAL, check_interface, choose_backend
    from mlx_tools.backends.completions import CompletionsBackend, Health
    from mlx_tools.backends.deadlines import Deadlines
    from mlx_tools.backends.grammar_option import obeys_grammar
    from mlx_tools.backends.grammars import repeated_end, turn_grammar
    from mlx_tools.backends.inspection import (
        LocalModel,
        NativeBackend,
        SelectedBackend,
        ServerPool,
        find_forbidden_markers,
        inspect_server,
    )
    from mlx_tools.backends.interface import (
        MODEL_FOLDER,
        Backend,
        BackendKind,
        BackendTraits,
        Chunk,
        CompletionRequest,
        GrammarText,
        RequestCancelled,
        RouteChoice,
        TokenScore,
        read_traits,
    )
    from mlx_tools.backends.listener import listening_command
    from mlx_tools.backends.local_servers import DEFAULT_ADDRESSES
    from mlx_tools.backends.models.download import PullProgress, Report, fetch_wheel, file_sha256
    from mlx_tools.backends.models.embedded import DEFAULT_MODEL, folder_bytes
    from mlx_tools.backends.models.files import ModelFiles, TokenCounter, read_model_files
    from mlx_tools.backends.models.hub import ListedModel, list_cached_snapshots
    from mlx_tools.backends.models.listing import (
        ModelMissing,
        find_model,
        list_models,
        memory_bytes,
        model_identity,
        model_path,
        pull_model,
        suggest_model,
    )
    from mlx_tools.backends.openblas import find_openblas, load_openblas
    from mlx_tools.backends.pool import UpstreamPool
    from mlx_tools.backends.router import (
        ModelSetup,
        Route,
        find_chat_format,
        find_context_size,
        find_model_folder,
        find_model_name,
        find_route,
        find_served_format,
        find_servers,
        find_setup,
        limit_discovery,
        shows_tools,
        takes_grammar,
    )
    from mlx_tools.backends.scores import MAX_SCORES, decode_spelling
    from mlx_tools.backends.server import ServerBackend, foreground_command
    from mlx_tools.backends.server_errors import LOG_HINT, as_refusal, translate
    from mlx_tools.backends.server_options import GPU_SHARE, HEADROOM, check_options
    from mlx_tools.backends.transport import client_options, map_proxy_errors
    from mlx_tools.backends.verdicts import (
        DEFAULT_STYLE,
        STRATEGIES,
        STYLES,
        NativeVerdict,
        PromptChoice,
        StrategyChoice,
        StyleChoice,
        StyleVerdict,
        Verdict,
        VerdictChoice,
        VerdictStore,
        decide,
        find_verdict,
    )
    from mlx_tools.backends.waits import WaitTimer
    from mlx_tools.backends.wire import check_request, check_size, without_surrogates

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "adapters": (
            "CompleteFunction",
            "FunctionBackend",
            "ErrorMappingBackend",
            "as_backend",
            "complete_one",
            "start_backend",
        ),
        "capabilities": (
            "has_logprobs",
            "honours_stop",
            "probe_native",
            "reports_cache",
            "find_single_tokens",
        ),
        "choose": ("LOCAL", "check_interface", "choose_backend"),
        "inspection": (
            *("LocalModel", "NativeBackend", "SelectedBackend", "ServerPool"),
            *("inspect_server", "find_forbidden_markers"),
        ),
        "chat_wire": ("TurnText", "arguments_text"),
        "completions": ("CompletionsBackend", "Health"),
        "grammar_option": ("obeys_grammar",),
        "interface": (
            *("MODEL_FOLDER", "BackendTraits", "RequestCancelled"),
            "Backend",
            "BackendKind",
            "Chunk",
            "CompletionRequest",
            "GrammarText",
            "RouteChoice",
            "TokenScore",
            "read_traits",
        ),
        "listener": ("listening_command",),
        "local_servers": ("DEFAULT_ADDRESSES",),
        "models.download": ("PullProgress", "Report", "fetch_wheel", "file_sha256"),
        "models.embedded": ("DEFAULT_MODEL", "folder_bytes"),
        "models.files": ("ModelFiles", "TokenCounter", "read_model_files"),
        "models.hub": ("ListedModel", "list_cached_snapshots"),
        "models.listing": (
            "ModelMissing",
            "find_model",
            "list_models",
            "memory_bytes",
            "model_identity",
            "model_path",
            "pull_model",
            "suggest_model",
        ),
        "openblas": ("find_openblas", "load_openblas"),
        "pool": ("UpstreamPool",),
        "router": (
            "ModelSetup",
            "Route",
            "find_context_size",
            "find_chat_format",
            "find_route",
            "find_served_format",
            "find_setup",
            "find_model_folder",
            "limit_discovery",
            "find_model_name",
            "find_servers",
            "takes_grammar",
            "shows_tools",
        ),
        "scores": ("MAX_SCORES", "decode_spelling"),
        "server": ("ServerBackend", "foreground_command"),
        "server_options": ("GPU_SHARE", "HEADROOM", "check_options"),
        "address": ("Address", "parse_address"),
        "deadlines": ("Deadlines",),
        "server_errors": ("LOG_HINT", "as_refusal", "translate"),
        "transport": ("client_options", "map_proxy_errors"),
        "waits": ("WaitTimer",),
        "wire": ("check_request", "check_size", "without_surrogates"),
        "grammars": ("repeated_end", "turn_grammar"),
        "verdicts": (
            "DEFAULT_STYLE",
            "STRATEGIES",
            "STYLES",
            "PromptChoice",
            "VerdictChoice",
            "NativeVerdict",
            "StrategyChoice",
            "StyleChoice",
            "StyleVerdict",
            "Verdict",
            "VerdictStore",
            "decide",
            "find_verdict",
        ),
    },
)
