"""The files of a model's folder: tokenizer, chat template and context."""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from mlx_tools.errors import ModelError
from mlx_tools.paths import read_regular

_log = logging.getLogger(__name__)
_TOKEN_SETTINGS: Final = tuple(
    f"{name}_token" for name in ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
)
"""Settings with one special token each."""
_LISTS: Final = ("additional_special_tokens", "extra_special_tokens")
"""Settings with several special tokens."""
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
"""Settings for the size of the context, by families of models."""
MAX_CONTEXT: Final = 100_000_000
"""The limit of a context in tokens. A larger number means no limit: tokenizers write 10 ** 30."""


class ModelFiles(Struct, frozen=True, kw_only=True):
    """The content of a model's folder."""

    path: Path
    name: str
    chat_template: str | None = None
    """Jinja source, None if the model has none."""
    bos_token: str | None = None
    eos_token: str | None = None
    adds_bos: bool = False
    """True if the tokenizer itself puts ``bos_token`` before every text."""
    special_tokens: tuple[str, ...] = ()
    """The tokens that the tokenizer flags as special."""
    added_tokens: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The ids of all texts that are always one token, special or not."""
    end_tokens: tuple[str, ...] = ()
    """The tokens that end a completion."""
    context: int | None = None
    """The size of the context in tokens, None if unknown."""


def read_model_files(path: Path, name: str | None = None) -> ModelFiles:
    """Read a model's folder; ``name`` is by default the folder's name.

    The order is that of the transformers library, which mlx-lm uses. ``chat_template.jinja`` comes
    before the template in ``tokenizer_config.json``. End tokens in ``generation_config.json`` come
    before those in ``config.json``. If ``tokenizer.json`` exists, its post-processor decides if BOS
    is added, and ``add_bos_token`` does not count.

    Raises:
        ModelError: the folder has no model, or a file in it cannot be read.
    """
    config = _load(path / "config.json")
    if config is None:
        raise ModelError(
            f"{path} holds no model: there is no config.json",
            hint="mlx-tools models list shows what is here",
        )
    settings = _load(path / "tokenizer_config.json") or {}
    tokenizer = _tokenizer_members(path / "tokenizer.json")
    added = _added_tokens(settings, tokenizer or {})
    bos, eos = _text(settings.get("bos_token")), _text(settings.get("eos_token"))
    named_tokens = (
        *_named_tokens(settings),
        *_named_tokens(_load(path / "special_tokens_map.json") or {}),
    )
    special = (*(text for text, flagged in added.values() if flagged), *named_tokens)
    if tokenizer is None:  # only a sentencepiece model: then the rule of the Llama family
        adds_bos = bool(settings.get("add_bos_token", bos is not None))
    else:
        try:
            adds_bos = any(token == bos for token in _leading(tokenizer.get("post_processor")))
        except (AttributeError, TypeError) as error:
            unknown = ValueError("its post_processor has an unknown form")
            raise _unreadable(path / "tokenizer.json", unknown) from error
    generation = _load(path / "generation_config.json") or {}
    ends = generation.get("eos_token_id") or config.get("eos_token_id")
    numbers = ends if isinstance(ends, list) else [ends]
    ending = (eos, *(added[n][0] for n in numbers if isinstance(n, int) and n in added))
    return ModelFiles(
        path=path,
        name=name or path.name,
        chat_template=_template(path, settings),
        bos_token=bos,
        eos_token=eos,
        adds_bos=adds_bos,
        special_tokens=tuple(dict.fromkeys(filter(None, special))),
        added_tokens={text: number for number, (text, _) in added.items() if text},
        end_tokens=tuple(dict.fromkeys(filter(None, ending))),
        context=_context(config, settings),
    )


def read_context(path: Path) -> int | None:
    """Return the size of the model's context in tokens, None if unknown.

    Raises:
        ModelError: a file cannot be read.
    """
    settings = _load(path / "tokenizer_config.json") or {}
    return _context(_load(path / "config.json") or {}, settings)


def _template(path: Path, settings: Mapping[str, Any]) -> str | None:
    jinja = path / "chat_template.jinja"
    if jinja.is_file():
        return _read(jinja)
    for source in (settings, _load(path / "chat_template.json") or {}):
        value = source.get("chat_template")
        if isinstance(value, str) and value:
            return value
        items = (
            [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
        )
        named = {  # several templates, by name
            item["name"]: str(item["template"])
            for item in items
            if isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
        }
        if named:
            return named.get("default") or next(iter(named.values()))
    return None


def _added_tokens(
    settings: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> dict[int, tuple[str, bool]]:
    """Return the tokens outside the plain vocabulary by id: text, and a special flag."""
    decoder, listed = settings.get("added_tokens_decoder"), tokenizer.get("added_tokens")
    pairs = list(decoder.items()) if isinstance(decoder, dict) else []
    items = listed if isinstance(listed, list) else []
    pairs += [(token.get("id"), token) for token in items if isinstance(token, dict)]
    tokens = {}
    for number, token in pairs:
        if isinstance(token, dict) and re.fullmatch(r"[0-9]{1,10}", str(number)):
            tokens[int(number)] = (_text(token) or "", bool(token.get("special")))
    return dict(sorted(tokens.items()))


def _named_tokens(settings: Mapping[str, Any]) -> list[str | None]:
    named = [_text(settings.get(key)) for key in _TOKEN_SETTINGS]
    for key in _LISTS:
        value = settings.get(key)
        if isinstance(value, dict):  # by role: {"image_token": …}
            value = list(value.values())
        if isinstance(value, list):
            named += [_text(item) for item in value]
    return named


def _leading(processor: Any) -> Iterator[str]:
    """Yield the special tokens that a post-processor writes before a single text."""
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
            entry = tokens.get(name) if isinstance(tokens, dict) else None
            yield from (entry or {}).get("tokens") or [name]
    elif isinstance(processor.get("cls"), list) and processor["cls"]:
        yield str(processor["cls"][0])


def _context(config: Mapping[str, Any], settings: Mapping[str, Any]) -> int | None:
    inner = config.get("text_config")
    sources = (config, inner if isinstance(inner, dict) else {})
    sizes = [source.get(key) for source in sources for key in _POSITIONS]
    for value in (*sizes, settings.get("model_max_length")):
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_CONTEXT:
            return value
    return None


def _tokenizer_members(path: Path) -> dict[str, Any] | None:
    """Return ``added_tokens`` and ``post_processor`` of a ``tokenizer.json``, or None.

    The rest is not parsed, because the vocabulary has up to 30 MB. It is safe to search for a key
    with its quotes, because JSON escapes quotes within a text.
    """
    if not path.is_file():
        return None
    text, members = _read(path), {}
    try:
        if not (text.lstrip().startswith("{") and text.rstrip().endswith("}")):
            raise ValueError("it holds no whole JSON object")
        for key in ("added_tokens", "post_processor"):
            if match := re.search(rf'"{key}"\s*:\s*', text):
                members[key], _ = json.JSONDecoder().raw_decode(text, match.end())
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    return members


def _load(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if there is no such file."""
    if not path.is_file():
        return None
    try:
        value = json.loads(_read(path))
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    return value


def _read(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} cannot be read: {error}", hint="fetch the model again")


def _text(token: Any) -> str | None:
    """Return a token's text: the value itself, or in an object with flags."""
    return _string(token.get("content") if isinstance(token, dict) else token)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# --- counting tokens ------------------------------------------------------------------------------


_STEP: Final = 512
"""Tokens between two positions at which a text can be cut. A choice: with a larger number, fewer
positions are stored, but more text is counted again."""
# Compiled late: most programs do not need them, and compiling takes a while.
_WORD: Final = r"[0-9A-Za-z]+"
_SINGLE: Final = r"[^0-9A-Za-z\s\x80-\U0010ffff]|[^\S ]| {2,16}"


def estimate_tokens(text: str) -> int:
    """Return an upper estimate of the tokens of a text, for an unknown tokenizer.

    A word counts one token for three letters, a number one for each digit, a mix of both three for
    four characters. Each mark, each line break and each run of spaces counts one. A character that
    is not ASCII counts one less than its bytes. For English the result is a third to a half too
    large for a tokenizer of 50,000 entries; for random text (keys, base64) it is about right.
    """
    words = sum(map(_estimate_word, re.findall(_WORD, text)))
    extra_bytes = len(text.encode("utf-8", "surrogatepass")) - len(text)
    return words + len(re.findall(_SINGLE, text)) + extra_bytes


def _estimate_word(word: str) -> int:
    if word.isalpha():
        return -(-len(word) // 3)
    return len(word) if word.isdecimal() else -(-3 * len(word) // 4)


@dataclass(slots=True)
class TokenCounter:
    """Counts the tokens of prompts.

    The count is exact, with the tokens that the tokenizer adds at the beginning, if the model's
    files are on this machine and the package ``tokenizers`` is installed. Otherwise it is an
    estimate (`estimate_tokens`).

    If a text begins like the text before it, only the rest is counted: from the last added token
    in the common beginning, because the tokenizer always splits a text there. If a long text has no
    added tokens, it is counted from the end of the earlier text.
    """

    folder: Callable[[], Path | None] = lambda: None
    """Returns the folder of the model's files, None if not on this machine. It is called at the
    first count."""
    _tokenizer: _Tokenizer | None = field(default=None, init=False)
    _is_resolved: bool = field(default=False, init=False)
    _text: str = field(default="", init=False)
    _marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)], init=False)
    """Positions at which the last text can be cut, each with the tokens before it."""

    def count_known(self, text: str) -> int:
        """Return the number of characters of ``text`` that are counted already."""
        return _common_length(self._text, text)

    def count(self, text: str) -> int:
        """Return the number of tokens of ``text``."""
        if not self._is_resolved:
            folder = self.folder()
            self._tokenizer = None if folder is None else _load_tokenizer(folder)
            self._is_resolved = True
        common = _common_length(self._text, text)
        # Marks beyond the common beginning belong to the earlier text.
        while self._marks[-1][0] > common:
            self._marks.pop()
        start, tokens = self._marks[-1]
        self._text = text
        if self._tokenizer is None:
            tokens += estimate_tokens(text[start:])
            self._marks.append((len(text), tokens))
            return tokens
        new_tokens, cuts = self._tokenizer.measure(text[start:])
        self._marks += [(start + place, tokens + count_before) for place, count_before in cuts]
        return tokens + new_tokens + self._tokenizer.added_tokens


def count_exact_tokens(folder: Path, text: str) -> int | None:
    """Return the number of a text's tokens by a model's tokenizer, None without one.

    The tokens that the tokenizer adds itself are included.
    """
    tokenizer = _load_tokenizer(folder)
    return None if tokenizer is None else tokenizer.measure(text)[0] + tokenizer.added_tokens


class _Tokenizer:
    """A model's tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._own_vocabulary = frozenset(tokenizer.get_added_tokens_decoder())
        self.added_tokens = len(tokenizer.encode("").ids)
        """The number of tokens that it adds to each text."""

    def measure(self, text: str) -> tuple[int, list[tuple[int, int]]]:
        """Return the number of tokens, and some positions at which the text can be cut.

        Each position comes with the number of tokens before it.
        """
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids = encoded.ids
        positions = [number for number, token in enumerate(ids) if token in self._own_vocabulary]
        if not positions:
            return len(ids), [(len(text), len(ids))] if len(ids) >= _STEP else []
        ends = [
            position
            for position, next_position in pairwise((*positions, len(ids)))
            if next_position // _STEP > position // _STEP
        ]
        return len(ids), [
            (encoded.token_to_chars(position)[1], position + 1)
            for position in (*ends[:-1], positions[-1])
        ]


def _common_length(text: str, second: str) -> int:
    """Return the number of equal characters at the beginning of two texts.

    It compares slices by bisection, which is much faster than a loop over characters.
    """
    if second.startswith(text):
        return len(text)
    ends = range(min(len(text), len(second)) + 1)
    return bisect_left(ends, True, key=lambda end: text[:end] != second[:end]) - 1


@lru_cache(maxsize=4)
def _load_tokenizer(folder: Path) -> _Tokenizer | None:
    """Return the tokenizer in a model's folder, None if it cannot be loaded."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # A tokenizer file may cut texts at its model's context, which would make counts too small.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return _Tokenizer(tokenizer)
    except Exception as error:  # no package, or a bad file (whose errors have no own class)
        _log.debug("%s has no usable tokenizer: %s", folder.name, type(error).__name__)
        return None
