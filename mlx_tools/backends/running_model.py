"""The model that mlx-lm's server runs, found by measurement.

The server lists every model of the Hugging Face cache, and does not say which one it runs. Three
things show it: the ``--model`` of the server's process, the server's token count of a text, and its
token count of a conversation in its own chat template.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from mlx_tools.backends.capabilities import count_chat_tokens, find_single_tokens
from mlx_tools.backends.completions import CompletionsBackend, list_names
from mlx_tools.backends.interface import CompletionRequest
from mlx_tools.backends.listener import find_started_model, listening_command
from mlx_tools.backends.models.files import ModelFiles, count_exact_tokens, read_model_files
from mlx_tools.backends.models.listing import find_model, list_models
from mlx_tools.errors import BackendError, ChatFormatError, ModelError, UsageError

Pick = Callable[[str, Sequence[str]], Awaitable[str | None]]
"""Asks a person a question with given answers; returns None if the person does not know."""

_TEXT: Final = (
    "In 1789 the naïve owner of a café paid 3,141.59 € for 北京烤鸭 and said: Привет, "
    "antidisestablishmentarianism!\n\tdef f(x):\n        return  x**2 != 0xFF\n"
)
"""A text with words, digits, spaces, marks and scripts that tokenizers split differently."""

_BASE: Final = 6
"""The base of the numbers of control tokens.

Up to 36 control tokens have a number of two digits. Two texts repeat each token, once more than its
first or its second digit. So the two counts together belong to one token only.
"""

_MAX_SINGLE: Final = 8
"""Control tokens that are tried one by one if no tokenizer can be loaded. Each takes a request."""

_TIMEOUT: Final = 30.0
"""Seconds for a request. A choice: the server may answer other clients first."""

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
"""Conversations that chat templates write differently: a system text, a first turn, a thought."""


class RunningModel(Struct, frozen=True, kw_only=True):
    """The model that a server runs."""

    name: str | None = None
    """The model's name, None if unknown."""
    files: ModelFiles | None = None
    """The files of a model with the same chat template, None if not on this machine."""
    alike: tuple[str, ...] = ()
    """The possible models, if they have the same chat template."""
    doubt: str = ""
    """One line for a person if the model is in doubt, otherwise empty."""


async def find_running_model(
    backend: CompletionsBackend,
    model_names: Sequence[str],
    *,
    pick: Pick | None = None,
    command_on: Callable[[int], str | None] = listening_command,
) -> RunningModel:
    """Find the model in use among those that mlx-lm's server lists.

    Args:
        backend: the server.
        model_names: the models that it lists.
        pick: asks a person, if the possible models have different chat templates.
        command_on: returns the command line of the program that listens on a port.

    Raises:
        UsageError: the model cannot be found out, and nobody can be asked.
    """
    started = await find_started_model(backend.address, model_names, command_on=command_on)
    if started is not None:
        return RunningModel(name=started)
    loopback = backend.address.loopback
    candidates = _candidates(model_names, is_local=loopback)
    if len({files.chat_template for files in candidates.values()} - {None}) == 0:
        return _unmeasured(model_names)
    matching = await _match_by_counts(backend, candidates) or candidates
    measured = len(matching) < len(candidates) or len(candidates) == 1
    if len(_templates(matching)) > 1 or not measured:
        matching = await _match_by_chat(backend, matching)
    return await _settle(
        backend, matching, [name for name in model_names if name not in candidates], pick
    )


def _candidates(model_names: Sequence[str], *, is_local: bool) -> dict[str, ModelFiles]:
    """Return the possible models, with their files.

    For a server on this machine these are all models in the cache, because the server does not list
    models without an index of their weights.
    """
    folders = {name: find_model(name) for name in model_names}
    if is_local and model_names:
        folders |= {
            model.name: model.path for model in list_models() if model.source == "huggingface"
        }
    candidates = {}
    for name, folder in folders.items():
        try:
            if folder is not None:
                candidates[name] = read_model_files(folder, name)
        except ModelError:
            continue  # if the server runs this model, the run reports the error
    return candidates


def _unmeasured(model_names: Sequence[str]) -> RunningModel:
    """Return the model by the list alone, if no chat template is known."""
    if len(model_names) < 2:
        return RunningModel(name=model_names[0] if model_names else None)
    return RunningModel(
        doubt=f"the server lists {len(model_names)} models and not which it runs: "
        "name it with --model, for its chat format"
    )


def _templates(candidates: Mapping[str, ModelFiles]) -> set[str | None]:
    return {files.chat_template for files in candidates.values()}


async def _settle(
    backend: CompletionsBackend,
    matching: Mapping[str, ModelFiles],
    unknown: Sequence[str],
    pick: Pick | None,
) -> RunningModel:
    """Return the only possible model, a common chat template, or a person's choice."""
    names = tuple(sorted(matching))
    if len(names) == 1 and not unknown:
        return RunningModel(name=names[0], files=matching[names[0]])
    if len(_templates(matching)) == 1:
        doubt = f"the server runs {' or '.join(names[:3])}: name it with --model"
        alike = (*names, *unknown)
        return RunningModel(files=matching[names[0]], alike=alike, doubt=doubt)
    names = (*names, *unknown)
    if pick is not None:
        name = await pick(f"Which model does the server at {backend.address} run?", names)
        return RunningModel(name=name, files=matching.get(name or ""))
    raise UsageError(
        f"the server at {backend.address} does not say which model it runs: {list_names(names)}",
        hint="name the model with --model, or its chat format with --chat-format",
    )


# --- by the token count of a text -----------------------------------------------------------------


async def _match_by_counts(
    backend: CompletionsBackend, candidates: Mapping[str, ModelFiles]
) -> dict[str, ModelFiles]:
    """Return the models whose tokenizers count two texts as the server does."""
    tokens = _telling_tokens(candidates)
    digits = [divmod(index, _BASE) for index in range(len(tokens))]
    weighted = [
        "".join(token * (pair[place] + 1) for token, pair in zip(tokens, digits, strict=True))
        for place in (0, 1)
    ]
    # A random beginning, so that the whole text is not in the server's cache.
    start = f"{secrets.token_hex(4)} "
    texts = (f"{start}{_TEXT}{weighted[0]}", f"{start}{weighted[1]}x")
    try:
        counted = [await _count(backend, text) for text in texts]
        if None in counted:
            return {}
        expected = _expected(candidates.values(), texts)
        if not any(expected.values()):
            return await _match_by_single_tokens(backend, candidates)
    except BackendError:
        return {}  # the run's own request will raise it again
    for offset in (0, 1, -1):  # the server may add a token at the beginning, or omit one
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
    """Return the token counts of the texts for each model, None without a tokenizer.

    Models of a family share a tokenizer file in the cache, which is read once.
    """
    by_file: dict[Path, tuple[int, ...] | None] = {}
    expected = {}
    for files in models:
        file = (files.path / "tokenizer.json").resolve()
        if file not in by_file:
            counts = [count_exact_tokens(files.path, text) for text in texts]
            known_counts = tuple(count for count in counts if count is not None)
            by_file[file] = known_counts if len(known_counts) == len(texts) else None
        expected[files.path] = by_file[file]
    return expected


def _telling_tokens(candidates: Mapping[str, ModelFiles]) -> list[str]:
    """Return the rarest control token of each chat template."""
    tokens = {
        files.chat_template: [
            token
            for token in files.added_tokens
            if token.strip() and token in (files.chat_template or "")
        ]
        for files in candidates.values()
    }
    frequency = Counter(token for template_tokens in tokens.values() for token in template_tokens)
    rarest = [
        min(template_tokens, key=lambda token: (frequency[token], token))
        for template_tokens in tokens.values()
        if template_tokens
    ]
    return list(dict.fromkeys(rarest))[: _BASE * _BASE]


async def _match_by_single_tokens(
    backend: CompletionsBackend, candidates: Mapping[str, ModelFiles]
) -> dict[str, ModelFiles]:
    """Return the models with exactly the control tokens that the server knows.

    The server knows a control token if it reads it as one token.
    """
    telling = _telling_tokens(candidates)[:_MAX_SINGLE]
    single = await find_single_tokens(backend, telling)
    return {
        name: files
        for name, files in candidates.items()
        if single and all(single[token] == (token in files.added_tokens) for token in telling)
    }


async def _count(backend: CompletionsBackend, text: str) -> int | None:
    request = CompletionRequest(prompt=text, max_tokens=1, timeout=_TIMEOUT)
    return (await backend.ask_whole(request)).usage.prompt_tokens


# --- by the token count of a conversation ---------------------------------------------------------


async def _match_by_chat(
    backend: CompletionsBackend, candidates: dict[str, ModelFiles]
) -> dict[str, ModelFiles]:
    """Return the models whose chat templates write the same tokens as the server."""
    remaining = candidates
    for messages in _CONVERSATIONS:
        if len(remaining) == 1 and remaining is not candidates:
            break
        by_template = {files.chat_template: files for files in remaining.values()}
        same = set()
        for template, files in by_template.items():
            expected = await count_chat_tokens(backend, messages)
            if expected is None:  # the server refuses this conversation: it shows nothing
                same = set(by_template)
                break
            if await _writes_alike(backend, files, messages, expected):
                same.add(template)
        if same:
            remaining = {
                name: files for name, files in remaining.items() if files.chat_template in same
            }
    return remaining


async def _writes_alike(
    backend: CompletionsBackend,
    files: ModelFiles,
    messages: Sequence[Mapping[str, Any]],
    expected: int,
) -> bool:
    """Return True if a model's template writes a conversation as the server's does.

    The prompt must have ``expected`` tokens. And all of them must be in the server's cache, because
    the server has just read the same conversation.
    """
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
    if "strftime" in files.chat_template:  # the server may have another date
        cached = None
    return usage.prompt_tokens == expected and (cached is None or cached >= expected - 1)
