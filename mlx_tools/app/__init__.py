"""Common parts of all applications: settings, tools, store, backend, controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.app.autostart import Autostart
    from mlx_tools.app.builtin import builtin_tools
    from mlx_tools.app.checks import (
        Check,
        check_all,
        check_native_tools,
        check_tried,
        check_verdict,
        list_control_tokens,
        make_failed_check,
    )
    from mlx_tools.app.config import Configuration
    from mlx_tools.app.config_edit import as_toml, change_user_text, edit_value, read_user_text
    from mlx_tools.app.guard import (
        LOCAL_NAMES,
        WAITING,
        AccessRules,
        Guard,
        Refusal,
        admit,
        is_loopback,
        is_own_origin,
        listen,
        read_headers,
    )
    from mlx_tools.app.hook_values import (
        BackendMaker,
        Command,
        SessionTable,
        SourceMaker,
        StoreKind,
        ToolRequest,
    )
    from mlx_tools.app.hooks import (
        Plugins,
        collect,
        find_store_kind,
        hookimpl,
        list_backend_makers,
        list_plugin_commands,
        plugins,
    )
    from mlx_tools.app.http_server import OpenConnections, ServerConfig
    from mlx_tools.app.kept_session import (
        NO_MODEL,
        SavedSession,
        call_recorded,
        find_header,
        make_options,
    )
    from mlx_tools.app.machine_checks import check_autostart, check_machine
    from mlx_tools.app.plugin_guard import tolerate, tolerate_async
    from mlx_tools.app.probe import (
        STRATEGIES,
        Cell,
        ProbeResult,
        list_styles,
        load_questions,
        make_verdict,
        measure,
    )
    from mlx_tools.app.proposal import Proposal, Proposer
    from mlx_tools.app.results import (
        Key,
        Result,
        Results,
        describe_run,
        format_table,
        make_failed_result,
        make_result,
        run_all,
        summarise,
    )
    from mlx_tools.app.setting_rows import Group, Section, Setting, SettingRow
    from mlx_tools.app.statistics import Share, mcnemar
    from mlx_tools.app.steps import (
        STYLESHEET,
        Html,
        ReportStep,
        as_json,
        build_steps,
        escape_html,
        escape_invisible,
        templates,
    )
    from mlx_tools.app.wiring import (
        RunOptions,
        approval_templates,
        build_controller,
        build_registry,
        choose,
        choose_route,
        function_files,
        list_function_files,
        list_recorded_options,
        list_reusable_options,
        list_roots,
        load_registry,
        note_left_out,
        open_controller,
        open_selected_backend,
        require_tools_enabled,
        run_settings,
        session_store,
        try_native,
        try_route,
        with_settings,
        working_directory,
    )

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "builtin": ("builtin_tools",),
        "hooks": (
            *("Plugins", "list_backend_makers", "collect", "hookimpl", "list_plugin_commands"),
            *("plugins", "find_store_kind"),
        ),
        "hook_values": (
            *("BackendMaker", "Command", "SessionTable", "SourceMaker", "StoreKind"),
            "ToolRequest",
        ),
        "autostart": ("Autostart",),
        "checks": (
            "Check",
            "check_all",
            "check_native_tools",
            "check_tried",
            "check_verdict",
            "make_failed_check",
            "list_control_tokens",
        ),
        "config": ("Configuration",),
        "config_edit": ("as_toml", "change_user_text", "read_user_text", "edit_value"),
        "guard": (
            "LOCAL_NAMES",
            "WAITING",
            "AccessRules",
            "Guard",
            "Refusal",
            "read_headers",
            "admit",
            "is_loopback",
            "is_own_origin",
            "listen",
        ),
        "http_server": ("OpenConnections", "ServerConfig"),
        "kept_session": (
            "NO_MODEL",
            "SavedSession",
            "make_options",
            "call_recorded",
            "find_header",
        ),
        "machine_checks": ("check_autostart", "check_machine"),
        "plugin_guard": ("tolerate", "tolerate_async"),
        "probe": (
            *("STRATEGIES", "Cell", "ProbeResult", "list_styles", "load_questions"),
            *("make_verdict", "measure"),
        ),
        "results": (
            *("Key", "Result", "Results", "describe_run", "make_failed_result", "format_table"),
            *("make_result", "run_all", "summarise"),
        ),
        "proposal": ("Proposal", "Proposer"),
        "setting_rows": ("Group", "Section", "Setting", "SettingRow"),
        "statistics": ("Share", "mcnemar"),
        "steps": (
            "STYLESHEET",
            "Html",
            "ReportStep",
            "as_json",
            "escape_html",
            "escape_invisible",
            "build_steps",
            "templates",
        ),
        "wiring": (
            "RunOptions",
            "approval_templates",
            "choose",
            "build_controller",
            "open_selected_backend",
            "list_reusable_options",
            "open_controller",
            "list_recorded_options",
            "require_tools_enabled",
            "build_registry",
            "function_files",
            "list_function_files",
            "list_roots",
            "note_left_out",
            "working_directory",
            "choose_route",
            "run_settings",
            "session_store",
            "load_registry",
            "try_native",
            "try_route",
            "with_settings",
        ),
    },
)
