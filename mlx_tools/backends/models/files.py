"""What a model's folder says about its tokenizer and chat template, as a plain value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import ModelError

_NAMED: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_LISTS: Final = ("additional_special_tokens", "extra_special_tokens")
_WANTED: Final = frozenset(("added_tokens", "post_processor"))
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
MAX_CONTEXT: Final = 100_000_000
"""More tokens than this are no size: tokenizers without a bound write 10 ** 30."""
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model's folder, read.

    ``special_tokens`` are the tokens that the tokenizer flags as special, ``added_tokens`` all that
    it treats as one token wherever they stand (with their ids), special or not. ``end_tokens`` end
    a completion. ``adds_bos``: the tokenizer itself puts ``bos_token`` before every text.
    ``chat_template`` is Jinja source, None where the model has none. ``context`` is in tokens.
    """

    path: Path
    name: str
    model_type: str | None = None
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    adds_bos: bool = False
    special_tokens: tuple[str, ...] = ()
    added_tokens: Mapping[str, int] = field(default_factory=dict)
    end_tokens: tuple[str, ...] = ()
    context: int | None = None


def read_model_files(path: Path, name: str | None = None) -> ModelFiles:
    """Read the folder ``path``; ``name`` is by default the folder's own.

    Follows the order of the transformers library, which mlx-lm uses: ``chat_template.jinja`` before
    the template in ``tokenizer_config.json``; end tokens of ``generation_config.json`` before those
    of ``config.json``; whether BOS is added stands in ``tokenizer.json``'s post-processor, whatever
    ``add_bos_token`` says, where there is such a file.

    Raises:
        ModelError: it is no model's folder, or a file in it cannot be read.
    """
    config = _load(path / "config.json")
    if config is None:
        raise ModelError(
            f"{path} holds no model: there is no config.json",
            hint="mlx-tools models list shows what is here",
        )
    settings = _load(path / "tokenizer_config.json") or {}
    tokenizer = _tokenizer_members(path / "tokenizer.json")
    added = _added_tokens(settings, tokenizer)
    bos, eos = _text(settings.get("bos_token")), _text(settings.get("eos_token"))
    special = [token for token, _, is_special in added if is_special]
    special += _named_tokens(settings)
    special += _named_tokens(_load(path / "special_tokens_map.json") or {})
    ids = {number: token for token, number, _ in added}
    return ModelFiles(
        path=path,
        name=name or path.name,
        model_type=_string(config.get("model_type")),
        chat_template=_template(path, settings),
        bos_token=bos,
        eos_token=eos,
        adds_bos=_adds_bos(settings, tokenizer, bos),
        special_tokens=tuple(dict.fromkeys(token for token in special if token)),
        added_tokens={token: number for token, number, _ in added if token},
        end_tokens=_end_tokens(path, config, eos, ids),
        context=_context(config, settings),
    )


def read_context(path: Path) -> int | None:
    """The size of the model's context in tokens, None where the files in ``path`` do not say.

    Raises:
        ModelError: a file cannot be read.
    """
    settings = _load(path / "tokenizer_config.json") or {}
    return _context(_load(path / "config.json") or {}, settings)


def _template(path: Path, settings: Mapping[str, Any]) -> str | None:
    jinja = path / "chat_template.jinja"
    if jinja.is_file():
        return _read(jinja)
    for value in (
        settings.get("chat_template"),
        (_load(path / "chat_template.json") or {}).get("chat_template"),
    ):
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list):  # several, by name
            named: dict[str, str] = {
                item["name"]: item["template"]
                for item in value
                if isinstance(item, dict)
                and isinstance(item.get("template"), str)
                and isinstance(item.get("name"), str)
            }
            if named:
                return named.get("default") or next(iter(named.values()))
    return None


def _added_tokens(
    settings: Mapping[str, Any], tokenizer: Mapping[str, Any] | None
) -> list[tuple[str, int, bool]]:
    """Text, id and whether it is special, of each token outside the plain vocabulary."""
    found: dict[int, tuple[str, int, bool]] = {}
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        for number, token in decoder.items():
            if isinstance(token, dict) and str(number).isascii() and str(number).isdecimal():
                found[int(number)] = (_text(token) or "", int(number), bool(token.get("special")))
    listed = (tokenizer or {}).get("added_tokens")
    for token in listed if isinstance(listed, list) else ():
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            number = token["id"]
            found[number] = (_text(token) or "", number, bool(token.get("special")))
    return [found[number] for number in sorted(found)]


def _named_tokens(settings: Mapping[str, Any]) -> list[str]:
    named = [_text(settings.get(key)) for key in _NAMED]
    for key in _LISTS:
        value = settings.get(key)
        if isinstance(value, dict):  # by role: {"image_token": …}
            value = list(value.values())
        if isinstance(value, list):
            named += [_text(item) for item in value]
    return [token for token in named if token]


def _end_tokens(
    path: Path, config: Mapping[str, Any], eos: str | None, ids: Mapping[int, str]
) -> tuple[str, ...]:
    generation = _load(path / "generation_config.json") or {}
    value = generation.get("eos_token_id") or config.get("eos_token_id")
    numbers = value if isinstance(value, list) else [value]
    named = [ids.get(number) for number in numbers if isinstance(number, int)]
    return tuple(dict.fromkeys(token for token in (eos, *named) if token))


def _adds_bos(
    settings: Mapping[str, Any], tokenizer: Mapping[str, Any] | None, bos: str | None
) -> bool:
    if tokenizer is None:  # a sentencepiece model alone: the Llama family's rule
        return bool(settings.get("add_bos_token", bos is not None))
    return any(token == bos for token in _leading(tokenizer.get("post_processor")))


def _leading(processor: Any) -> Iterator[str]:
    """The special tokens that a post-processor writes before a single text."""
    if not isinstance(processor, dict):
        return
    if processor.get("type") == "Sequence":
        for inner in processor.get("processors") or ():
            yield from _leading(inner)
    elif processor.get("type") == "TemplateProcessing":
        tokens = processor.get("special_tokens") or {}
        for piece in processor.get("single") or ():
            if not isinstance(piece, dict) or "SpecialToken" not in piece:
                return
            name = piece["SpecialToken"].get("id", "")
            written = tokens.get(name) if isinstance(tokens, dict) else None
            yield from (written or {}).get("tokens") or [name]
    elif isinstance(processor.get("cls"), list) and processor["cls"]:
        yield str(processor["cls"][0])


def _context(config: Mapping[str, Any], settings: Mapping[str, Any]) -> int | None:
    inner = config.get("text_config")
    said = [
        source.get(key)
        for source in (config, inner if isinstance(inner, dict) else {})
        for key in _POSITIONS
    ]
    for value in (*said, settings.get("model_max_length")):
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_CONTEXT:
            return value
    return None


def _tokenizer_members(path: Path) -> dict[str, Any] | None:
    """``added_tokens`` and ``post_processor`` of a ``tokenizer.json``; None where there is none.

    Reads member by member and stops when it has both: the vocabulary, which comes after them, is
    up to 30 MB.
    """
    if not path.is_file():
        return None
    members: dict[str, Any] = {}
    try:
        for key, value in _members(_read(path)):
            if key in _WANTED:
                members[key] = value
            if len(members) == len(_WANTED):
                break
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    return members


def _members(text: str) -> Iterator[tuple[str, Any]]:
    """The members of the JSON object in ``text``, each decoded when it is asked for."""
    mark, at = _mark(text, 0, "{")
    if text[at : at + 1] == "}":
        return
    while mark != "}":
        key, at = _DECODER.raw_decode(text, at)
        _, at = _mark(text, at, ":")
        value, at = _DECODER.raw_decode(text, at)
        yield key, value
        mark, at = _mark(text, at, ",}")


def _mark(text: str, at: int, marks: str) -> tuple[str, int]:
    """The next character, which must be one of ``marks``, and the place of what follows it."""
    found = re.compile(rf"[ \t\n\r]*([{re.escape(marks)}])[ \t\n\r]*").match(text, at)
    if found is None:
        raise ValueError(f"{marks!r} expected at character {at}")
    return found[1], found.end()


def _load(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``; None where there is no such file."""
    if not path.is_file():
        return None
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(value, dict):
        raise _unreadable(path, ValueError("it holds no JSON object"))
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} cannot be read: {error}", hint="fetch the model again")


def _text(token: Any) -> str | None:
    """A token's text: given as such, or in an object with its flags."""
    if isinstance(token, dict):
        token = token.get("content")
    return _string(token)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
