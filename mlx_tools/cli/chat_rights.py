"""The commands of a chat for its tools, folders, programs and functions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mlx_tools.app import Configuration, config, function_files, list_function_files
from mlx_tools.cli.call_text import escape_line, escape_name, home_path
from mlx_tools.cli.completion import complete_path
from mlx_tools.cli.output import cut, first_sentence, print_padded_row, print_prose
from mlx_tools.cli.talk import ChatSession, folders
from mlx_tools.errors import UsageError, did_you_mean
from mlx_tools.messages import ToolSpec, replace
from mlx_tools.policy import FUNCTIONS, always_asks, find_denial
from mlx_tools.store import RootName


class Permission(Struct, frozen=True):
    """The permission of a tool, by the effects of its calls.

    If the effects do not depend on the arguments, all of them are together in one group.
    """

    name: str
    runs: tuple[str, ...] = ()
    """Effects of calls that run."""
    asks: tuple[str, ...] = ()
    """Effects of calls that ask first."""
    denied: tuple[str, ...] = ()
    """Effects of calls that are denied."""
    off_reason: str = ""
    """The reason why it cannot run at all."""
    forbidden: str = ""
    """The reason why the denied calls cannot be allowed here."""

    @property
    def brief(self) -> str:
        """Its name if a call may run, with the effects that ask first."""
        if not self.asks:
            return self.name if self.runs else ""
        return f"{self.name} ({', '.join(self.asks) if self.runs else 'each'} asks first)"

    def __str__(self) -> str:
        if self.off_reason:
            return f"off: {self.off_reason}"
        parts = []
        if self.runs:
            parts.append(f"runs ({', '.join(self.runs)})")
        if self.asks:
            parts.append(f"asks first ({', '.join(self.asks)})")
        if self.denied:
            effects = f"({', '.join(self.denied)})"
            needs = f"needs /allow {self.name} {effects}"
            parts.append(f"forbidden {effects}: {self.forbidden}" if self.forbidden else needs)
        return ", ".join(parts)


def permissions(talk: ChatSession) -> list[Permission]:
    """Return the permissions of all tools.

    First those that run, last those that are off.
    """
    policy, registry, rows = talk.policy, talk.controller.registry, []
    disabled, specs = registry.disabled, registry.all_specs()
    wider = talk.configuration.with_options({"policy.deny": ""}, allow=list(specs))
    is_unasked = talk.configuration.settings.policy.approve == "always"
    for name, spec in specs.items():
        if (off_reason := disabled.get(name)) is not None:
            rows.append(Permission(name, off_reason=_to_chat_hint(off_reason)))
            continue
        runs: list[str] = []
        asking: list[str] = []
        denied: list[str] = []
        possible = spec.possible_effects
        # effect by effect if the arguments decide which effects a call has
        kinds = (
            [{variant} for variant in sorted(possible)] if callable(spec.effects) else [possible]
        )
        for effects in kinds:
            variant = replace(spec, effects=frozenset(effects))
            target = runs if is_unasked or not always_asks(policy, variant) else asking
            target = target if find_denial(policy, variant) is None else denied
            target += sorted(effects) or ["nothing"]
        reason = _forbidden(wider, spec) if denied else ""
        rows.append(Permission(name, tuple(runs), tuple(asking), tuple(denied), forbidden=reason))
    rows += [Permission(key, off_reason=reason) for key, reason in disabled.items() if "/" in key]
    return sorted(rows, key=lambda row: (bool(row.off_reason), not row.runs, not row.asks))


def _forbidden(configuration: Configuration, spec: ToolSpec) -> str:
    """Return what forbids a tool that the chat would allow, and why; else empty."""
    denied = find_denial(configuration.policy(), spec)
    if denied is None:
        return ""
    word = denied.rule.partition(" ")[0]
    if word in ("deny", "local_only"):
        return f"{denied.reason} ({configuration.describe_origin(f'policy.{word}')})"
    files = [
        layer.source for layer in configuration.layers if layer.kind == "project" and layer.chooses
    ]
    return f"{denied.reason} ({', '.join(files)})"


def _to_chat_hint(reason: str) -> str:
    """Return a reason with the chat's command in place of the option."""
    return reason.replace("--root DIR", "/root DIR")


def show_tools(talk: ChatSession, _: str) -> None:
    """Print what each tool may do."""
    rows = permissions(talk)
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        print_padded_row(escape_name(row.name), str(row), width)


def allow_tools(talk: ChatSession, words: str) -> None:
    """Allow tools, as far as no setting above the chat forbids them."""
    registry, configuration = talk.controller.registry, talk.configuration
    names = _tools_named(talk, words)
    denied = [
        denied_name for denied_name in _denied_here(configuration) if denied_name not in names
    ]
    wider = configuration.with_options({"policy.deny": ",".join(denied)}, allow=names)
    for name in names:
        if (off_reason := registry.disabled.get(name)) is not None:
            raise UsageError(f"{name} is off: {_to_chat_hint(off_reason)}")
        if reason := _forbidden(wider, registry.all_specs()[name]):
            raise UsageError(f"{name} cannot be allowed here: {reason}")
    talk.switch_settings(wider)
    _tell_permissions(talk, names)


def deny_tools(talk: ChatSession, words: str) -> None:
    """Deny tools for the rest of the chat."""
    names = _tools_named(talk, words)
    denied = dict.fromkeys([*_denied_here(talk.configuration), *names])
    talk.switch_settings(talk.configuration.with_options({"policy.deny": ",".join(denied)}))
    _tell_permissions(talk, names)


def _denied_here(configuration: Configuration) -> Sequence[str]:
    """Return the tools that this chat denies."""
    denied: Sequence[str] = configuration.layers[-1].values.get("policy.deny", ())
    return denied


def _tools_named(talk: ChatSession, words: str) -> list[str]:
    """Return the names of typed tools.

    Raises:
        UsageError: there is no such tool, or none is named.
    """
    registry = talk.controller.registry
    specs = registry.all_specs()
    tools = [registry.resolve_name(name) for name in words.replace(",", " ").split()]
    for name in tools:
        if name not in specs:
            hint = did_you_mean(name, specs, "/tools lists them")
            raise UsageError(f"there is no tool {cut(escape_line(name), 40)}", hint=hint)
    if not tools:
        raise UsageError("no tool is named", hint="/tools lists them")
    return tools


def _tell_permissions(talk: ChatSession, names: Sequence[str]) -> None:
    for row in permissions(talk):
        if row.name in names:
            print_padded_row(row.name, str(row))


def allowable_tools(talk: ChatSession, _: str) -> dict[str, str]:
    """Return the tools that `allow_tools` would change, with their meanings."""
    rows = permissions(talk)
    return _with_meanings(talk, [row.name for row in rows if row.denied and not row.forbidden])


def deniable_tools(talk: ChatSession, _: str) -> dict[str, str]:
    """Return the tools that `deny_tools` would change, with their meanings."""
    return _with_meanings(talk, [row.name for row in permissions(talk) if row.runs or row.asks])


def _with_meanings(talk: ChatSession, names: Sequence[str]) -> dict[str, str]:
    """Return tools, each with the first sentence of its description."""
    specs = talk.controller.registry.all_specs()
    return {name: first_sentence(specs[name].description) for name in names}


def roots(talk: ChatSession) -> list[str]:
    """Return the folders that tools may see, with their rights."""
    root_names = map(RootName.parse, talk.configuration.settings.tools.roots)
    return [
        f"{home_path(root.path)} ({'read, write' if root.writable else 'read'})"
        + escape_line("".join(f" {pattern}" for pattern in root.patterns))
        for root in root_names
    ]


def change_roots(talk: ChatSession, words: str) -> str:
    """Add a folder, or remove one after ``-``; return all of them."""
    if words:
        root, roots_by_path = RootName.parse(words.removeprefix("-")), folders(talk.configuration)
        path = RootName(root.path).absolute()
        if not words.startswith("-"):
            roots_by_path[path] = root.absolute()
        elif roots_by_path.pop(path, None) is None:
            raise UsageError(f"tools do not see the folder {escape_line(root.path)}")
        talk.switch_settings(
            talk.configuration.with_options({"tools.roots": list(roots_by_path.values())})
        )
    return "\n".join(roots(talk)) or "no folder: /root DIR names one, /root DIR:rw to write in"


def change_programs(talk: ChatSession, words: str) -> None:
    """Add programs that run_command may run, or remove those after ``-``."""
    programs = [*talk.configuration.settings.tools.commands]
    names = words.replace(",", " ").split()
    for name in names:
        if not name.startswith("-"):
            programs = [*dict.fromkeys((*programs, name))]
        elif name[1:] in programs:
            programs.remove(name[1:])
        else:
            shown = cut(escape_line(name[1:]), 40)
            raise UsageError(f"the program {shown} was not added", hint="/commands lists these")
    if names:
        talk.switch_settings(talk.configuration.with_options({"tools.commands": programs}))
    shown = escape_line(", ".join(programs))
    print_prose(shown or "no program besides run_command's own: /commands A,B adds some")
    if programs:
        _tell_permissions(talk, [config.RUN_COMMAND])


def change_functions(talk: ChatSession, words: str) -> None:
    """Add a file's functions as tools, or remove those of one after ``-``."""
    files = [*list_function_files(talk.configuration)]
    if words:
        (file,) = function_files([words.removeprefix("-")])
        if not words.startswith("-"):
            files = [*dict.fromkeys((*files, file))]
        elif file in files:
            files.remove(file)
        else:
            shown = cut(escape_line(words[1:]), 80)
            raise UsageError(f"{shown} was not added", hint="/functions lists these")
        talk.switch_settings(talk.configuration.with_options({"tools.functions": files}))
    shown = "\n".join(map(home_path, files))
    print_prose(shown or "no file: /functions FILE.py adds its functions as tools")
    specs = talk.controller.registry.all_specs().values()
    _tell_permissions(talk, [spec.name for spec in specs if spec.plugin == FUNCTIONS])


def removable_programs(talk: ChatSession, _: str) -> list[str]:
    """Return the added programs, each after ``-``."""
    return [f"-{name}" for name in talk.configuration.settings.tools.commands]


def complete_functions(talk: ChatSession, beginning: str) -> list[str]:
    """Return files of functions that could be added or removed."""
    removals = [f"-{file}" for file in list_function_files(talk.configuration)]
    return [
        path for path in complete_paths(talk, beginning) if path.endswith(("/", ".py"))
    ] + removals


def complete_paths(_: ChatSession, beginning: str) -> list[str]:
    """Return the completions of a path; folders end with a slash."""
    return complete_path(beginning)


def complete_folders(talk: ChatSession, beginning: str) -> list[str]:
    """Return folders that could be added or removed."""
    removals = [f"-{root_path}" for root_path in folders(talk.configuration)]
    return [path for path in complete_paths(talk, beginning) if path.endswith("/")] + removals
