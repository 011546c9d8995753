"""The model that mlx-lm's server runs, measured.

The server lists every model of the Hugging Face cache, and not the one that it runs. What tells it:
the ``--model`` of the process that listens, how many tokens the server counts in a text, and how
many in a conversation that its own chat template writes.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

from msgspec import Struct

from mlx_tools.backends.capabilities import chat_tokens, single_tokens
from mlx_tools.backends.completions import CompletionsBackend, some
from mlx_tools.backends.interface import CompletionRequest
from mlx_tools.backends.listener import listening_command, model_argument
from mlx_tools.backends.models.files import ModelFiles, exact_token_count, read_model_files
from mlx_tools.backends.models.hub import REPOSITORY
from mlx_tools.backends.models.listing import find_model, list_models
from mlx_tools.errors import BackendError, ChatFormatError, ModelError, UsageError

Pick = Callable[[str, Sequence[str]], str | None]
"""Asks a person a question with some answers; None if the person does not know."""

_TEXT: Final = (
    "In 1789 the naïve owner of a café paid 3,141.59 € for 北京烤鸭 and said: Привет, "
    "antidisestablishmentarianism!\n\tdef f(x):\n        return  x**2 != 0xFF\n"
)
"""Words, digits, blanks, marks and scripts on which tokenizers differ."""

_BASE: Final = 6
"""Each of up to 36 control tokens is written so often into two texts that the two counts are those
of no other token: its number's digits to this base, and once more."""

_MAX_SINGLE: Final = 8
"""Control tokens that are tried one by one where no tokenizer can be loaded: a request each."""

_TIMEOUT: Final = 30.0

_THOUGHT: Final = "<think>\nNo.\n</think>\n\nYes."
_CONVERSATIONS: Final = (
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is water wet?"}),
    ({"role": "user", "content": "Is water wet?"},),
    (
        {"role": "user", "content": "Is water wet?"},
        {"role": "assistant", "content": _THOUGHT},
        {"role": "user", "content": "Why?"},
    ),
)
"""What chat templates write differently: a system text, a first turn, an earlier thought."""


class RunningModel(Struct, frozen=True, kw_only=True):
    """The model that a server runs.

    Attributes:
        name: its name, None if it is not known.
        files: the files of a model with the same chat template. None if they are not here.
        alike: the models that it may be, if their chat templates are the same.
        doubt: one line for a person, empty if there is nothing to say.
    """

    name: str | None = None
    files: ModelFiles | None = None
    alike: tuple[str, ...] = ()
    doubt: str = ""


def is_path(name: str) -> bool:
    """Return whether a model's name is an absolute path, of any system."""
    return PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()


async def find_running_model(
    backend: CompletionsBackend,
    listed: Sequence[str],
    *,
    pick: Pick | None = None,
    command_on: Callable[[int], str | None] = listening_command,
) -> RunningModel:
    """Find out which of the models that mlx-lm's server lists is the one in use.

    Args:
        backend: the server.
        listed: the models that it lists.
        pick: asks a person, where the models that it may be have different chat templates.
        command_on: returns the command line of the program that listens on a port.

    Raises:
        UsageError: nothing tells which model it is, and nobody can be asked.
    """
    if listed and is_path(listed[-1]):  # it was started with this folder
        return RunningModel(name=listed[-1])
    loopback = backend.address.loopback
    if loopback:
        import anyio

        command = await anyio.to_thread.run_sync(command_on, backend.address.port)
        name = model_argument(command)
        if name is not None and (REPOSITORY.fullmatch(name) or is_path(name)):
            return RunningModel(name=name)
    candidates = _candidates(listed, here=loopback)
    if len({files.chat_template for files in candidates.values()} - {None}) == 0:
        return _unmeasured(listed)
    matching = await _by_counts(backend, candidates) or candidates
    measured = len(matching) < len(candidates) or len(candidates) == 1
    if len(_templates(matching)) > 1 or not measured:
        matching = await _by_chat(backend, matching)
    return _settle(backend, matching, [name for name in listed if name not in candidates], pick)


def _candidates(listed: Sequence[str], *, here: bool) -> dict[str, ModelFiles]:
    """The models that it can be, with their files; on this machine every one of the cache, since
    the server does not list those without an index of their weights."""
    folders = {name: find_model(name) for name in listed}
    if here and listed:
        folders |= {
            model.name: model.path for model in list_models() if model.source == "huggingface"
        }
    candidates = {}
    for name, folder in folders.items():
        try:
            if folder is not None:
                candidates[name] = read_model_files(folder, name)
        except ModelError:
            continue  # the run says so, if it is this one
    return candidates


def _unmeasured(listed: Sequence[str]) -> RunningModel:
    """What the list alone says, where no chat template is here to be mistaken for another."""
    if len(listed) < 2:
        return RunningModel(name=listed[0] if listed else None)
    return RunningModel(
        doubt=f"the server lists {len(listed)} models and not which it runs: "
        "name it with --model, for its chat format"
    )


def _templates(candidates: Mapping[str, ModelFiles]) -> set[str | None]:
    return {files.chat_template for files in candidates.values()}


def _settle(
    backend: CompletionsBackend,
    matching: Mapping[str, ModelFiles],
    unknown: Sequence[str],
    pick: Pick | None,
) -> RunningModel:
    """The model, if one is left, or a person says which it is; else the template they share."""
    names = tuple(sorted(matching))
    if len(names) == 1 and not unknown:
        return RunningModel(name=names[0], files=matching[names[0]])
    if len(_templates(matching)) == 1:
        doubt = f"the server runs {' or '.join(names[:3])}: name it with --model"
        alike = (*names, *unknown)
        return RunningModel(files=matching[names[0]], alike=alike, doubt=doubt)
    names = (*names, *unknown)
    if pick is not None:
        name = pick(f"Which model does the server at {backend.address} run?", names)
        return RunningModel(name=name, files=matching.get(name or ""))
    raise UsageError(
        f"the server at {backend.address} does not say which model it runs: {some(names)}",
        hint="name the model with --model, or its chat format with --chat-format",
    )


# --- by how it counts tokens ----------------------------------------------------------------------


async def _by_counts(
    backend: CompletionsBackend, candidates: Mapping[str, ModelFiles]
) -> dict[str, ModelFiles]:
    """Those whose tokenizer counts two texts as the server does; empty if none does."""
    tokens = _telling_tokens(candidates)
    digits = [divmod(index, _BASE) for index in range(len(tokens))]
    weighted = [
        "".join(token * (both[place] + 1) for token, both in zip(tokens, digits, strict=True))
        for place in (0, 1)
    ]
    start = f"{secrets.token_hex(4)} "
    texts = (f"{start}{_TEXT}{weighted[0]}", f"{start}{weighted[1]}x")
    try:
        counted = [await _count(backend, text) for text in texts]
        if None in counted:
            return {}
        expected = _expected(candidates.values(), texts)
        if not any(expected.values()):
            return await _by_single_tokens(backend, candidates)
    except BackendError:
        return {}  # the run's own request says what is wrong
    for offset in (0, 1, -1):  # the server may add a token at the beginning, or leave it out
        shifted = tuple((count or 0) - offset for count in counted)
        same = {
            name: files for name, files in candidates.items() if expected[files.path] == shifted
        }
        if same:
            return same
    return {}


def _expected(
    models: Iterable[ModelFiles], texts: Sequence[str]
) -> dict[Path, tuple[int, ...] | None]:
    """The tokens of the texts by each model's tokenizer; None if it cannot be loaded. Models of a
    family share a file of the cache, which is read once."""
    by_file: dict[Path, tuple[int, ...] | None] = {}
    expected = {}
    for files in models:
        file = (files.path / "tokenizer.json").resolve()
        if file not in by_file:
            counts = [exact_token_count(files.path, text) for text in texts]
            whole = tuple(count for count in counts if count is not None)
            by_file[file] = whole if len(whole) == len(texts) else None
        expected[files.path] = by_file[file]
    return expected


def _telling_tokens(candidates: Mapping[str, ModelFiles]) -> list[str]:
    """For each chat template the control token in it that the fewest others have."""
    tokens = {
        files.chat_template: [
            token
            for token in files.added_tokens
            if token.strip() and token in (files.chat_template or "")
        ]
        for files in candidates.values()
    }
    frequency = Counter(token for several in tokens.values() for token in several)
    rarest = [
        min(several, key=lambda token: (frequency[token], token))
        for several in tokens.values()
        if several
    ]
    return list(dict.fromkeys(rarest))[: _BASE * _BASE]


async def _by_single_tokens(
    backend: CompletionsBackend, candidates: Mapping[str, ModelFiles]
) -> dict[str, ModelFiles]:
    """Those whose control tokens the server reads as one token each, and no others."""
    telling = _telling_tokens(candidates)[:_MAX_SINGLE]
    single = await single_tokens(backend, telling)
    return {
        name: files
        for name, files in candidates.items()
        if single and all(single[token] == (token in files.added_tokens) for token in telling)
    }


async def _count(backend: CompletionsBackend, text: str) -> int | None:
    request = CompletionRequest(prompt=text, max_tokens=1, timeout=_TIMEOUT)
    return (await backend.ask_whole(request)).usage.prompt_tokens


# --- by what its chat template writes -------------------------------------------------------------


async def _by_chat(
    backend: CompletionsBackend, candidates: dict[str, ModelFiles]
) -> dict[str, ModelFiles]:
    """Those whose chat template writes a conversation as the server does, by its tokens."""
    left = candidates
    for messages in _CONVERSATIONS:
        if len(left) == 1 and left is not candidates:
            break
        by_template = {files.chat_template: files for files in left.values()}
        same = set()
        for template, files in by_template.items():
            wanted = await chat_tokens(backend, messages)
            if wanted is None:  # it refuses such a conversation, which says nothing
                same = set(by_template)
                break
            if await _writes_alike(backend, files, messages, wanted):
                same.add(template)
        if same:
            left = {name: files for name, files in left.items() if files.chat_template in same}
    return left


async def _writes_alike(
    backend: CompletionsBackend,
    files: ModelFiles,
    messages: Sequence[Mapping[str, Any]],
    wanted: int,
) -> bool:
    """Return whether a model's template writes a conversation in so many tokens, which are those
    that the server's cache holds since it wrote the same."""
    from mlx_tools.prompt import render_template

    if files.chat_template is None:
        return False
    try:
        prompt = render_template(
            files.chat_template,
            messages,
            bos_token=files.bos_token or "",
            eos_token=files.eos_token or "",
        )
    except ChatFormatError:
        return False
    if files.adds_bos and files.bos_token:
        prompt = prompt.removeprefix(files.bos_token)
    request = CompletionRequest(prompt=prompt or " ", max_tokens=1, timeout=_TIMEOUT)
    try:
        usage = (await backend.ask_whole(request)).usage
    except BackendError:
        return False
    cached = usage.cached_tokens
    if "strftime" in files.chat_template:  # the day is another where it was rendered here
        cached = None
    return usage.prompt_tokens == wanted and (cached is None or cached >= wanted - 1)
