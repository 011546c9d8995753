"""What a model's folder says about its tokenizer and chat template, as a plain value."""

from __future__ import annotations

import json
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

_NAMED: Final = tuple(
    f"{name}_token" for name in ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
)
_LISTS: Final = ("additional_special_tokens", "extra_special_tokens")
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
MAX_CONTEXT: Final = 100_000_000
"""More tokens than this are no size: tokenizers without a bound write 10 ** 30."""


class ModelFiles(Struct, frozen=True, kw_only=True):
    """A model's folder, read.

    ``special_tokens`` are the tokens that the tokenizer flags as special, ``added_tokens`` all that
    it treats as one token wherever they stand (with their ids), special or not. ``end_tokens`` end
    a completion. ``adds_bos``: the tokenizer itself puts ``bos_token`` before every text.
    ``chat_template`` is Jinja source, None where the model has none. ``context`` is in tokens.
    """

    path: Path
    name: str
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    adds_bos: bool = False
    special_tokens: tuple[str, ...] = ()
    added_tokens: Mapping[str, int] = msgspec.field(default_factory=dict)
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
    added = _added_tokens(settings, tokenizer or {})
    bos, eos = _text(settings.get("bos_token")), _text(settings.get("eos_token"))
    named = (
        *_named_tokens(settings),
        *_named_tokens(_load(path / "special_tokens_map.json") or {}),
    )
    special = (*(text for text, flagged in added.values() if flagged), *named)
    if tokenizer is None:  # a sentencepiece model alone: the Llama family's rule
        adds_bos = bool(settings.get("add_bos_token", bos is not None))
    else:
        adds_bos = any(token == bos for token in _leading(tokenizer.get("post_processor")))
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
    for source in (settings, _load(path / "chat_template.json") or {}):
        value = source.get("chat_template")
        if isinstance(value, str) and value:
            return value
        items = (
            [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
        )
        named = {  # several, by name
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
    """By its id the text of each token outside the plain vocabulary, and whether it is special."""
    decoder, listed = settings.get("added_tokens_decoder"), tokenizer.get("added_tokens")
    pairs = list(decoder.items()) if isinstance(decoder, dict) else []
    items = listed if isinstance(listed, list) else []
    pairs += [(token.get("id"), token) for token in items if isinstance(token, dict)]
    found = {}
    for number, token in pairs:
        if isinstance(token, dict) and re.fullmatch(r"[0-9]+", str(number)):
            found[int(number)] = (_text(token) or "", bool(token.get("special")))
    return dict(sorted(found.items()))


def _named_tokens(settings: Mapping[str, Any]) -> list[str | None]:
    named = [_text(settings.get(key)) for key in _NAMED]
    for key in _LISTS:
        value = settings.get(key)
        if isinstance(value, dict):  # by role: {"image_token": …}
            value = list(value.values())
        if isinstance(value, list):
            named += [_text(item) for item in value]
    return named


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
    sources = (config, inner if isinstance(inner, dict) else {})
    said = [source.get(key) for source in sources for key in _POSITIONS]
    for value in (*said, settings.get("model_max_length")):
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_CONTEXT:
            return value
    return None


def _tokenizer_members(path: Path) -> dict[str, Any] | None:
    """``added_tokens`` and ``post_processor`` of a ``tokenizer.json``; None where there is none.

    Each is read where it stands: the vocabulary, which comes after them, is up to 30 MB. A key with
    its quotes can stand in no text of JSON's.
    """
    if not path.is_file():
        return None
    text, members = _read(path), {}
    try:
        if not (text.lstrip().startswith("{") and text.rstrip().endswith("}")):
            raise ValueError("it holds no whole JSON object")
        for key in ("added_tokens", "post_processor"):
            if found := re.search(rf'"{key}"\s*:\s*', text):
                members[key], _ = json.JSONDecoder().raw_decode(text, found.end())
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    return members


def _load(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``; None where there is no such file."""
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
    """A token's text: given as such, or in an object with its flags."""
    return _string(token.get("content") if isinstance(token, dict) else token)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# --- counting tokens ------------------------------------------------------------------------------


_STEP: Final = 512
"""Tokens after which a place is noted where a text can be cut."""
_WORD = re.compile(r"[0-9A-Za-z]+")
_SINGLE = re.compile(r"[^0-9A-Za-z\s\x80-\U0010ffff]|[^\S ]| {2,16}")


def bound(text: str) -> int:
    """About how many tokens ``text`` has at most, for a tokenizer that nobody knows.

    A word counts one for three letters, a number one a digit, what is of both three for four; a
    mark and a line break one; blanks in a row one; a character that is not ASCII one less than it
    takes bytes. English comes out at a third to a half more than a tokenizer of 50,000 entries
    makes of it; what is random (keys, base64) about right.
    """
    words = sum(map(_of_word, _WORD.findall(text)))
    beyond = len(text.encode("utf-8", "surrogatepass")) - len(text)
    return words + len(_SINGLE.findall(text)) + beyond


def _of_word(word: str) -> int:
    if word.isalpha():
        return -(-len(word) // 3)
    return len(word) if word.isdecimal() else -(-3 * len(word) // 4)


@dataclass(slots=True)
class TokenCounter:
    """Counts the tokens of prompts.

    ``folder`` gives the folder of the model's files, None where they are not on this machine; it is
    asked at the first count. Where they are, and the package ``tokenizers`` is installed, the count
    is the tokenizer's own, the beginning of text included that it adds; else it is a `bound`.

    A text that begins like the one before is counted from where they part: from the last token
    before that which the tokenizer takes out of any text first, or, where there is none in many,
    from the end of the other one.
    """

    folder: Callable[[], Path | None] = lambda: None
    _tokenizer: _Tokenizer | None = field(default=None, init=False)
    _is_resolved: bool = field(default=False, init=False)
    _text: str = field(default="", init=False)
    # places in that text where it can be cut, and the tokens before
    _marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)], init=False)

    def count_known(self, text: str) -> int:
        """How many characters of ``text`` are counted already."""
        return _alike(self._text, text)

    def count(self, text: str) -> int:
        """How many tokens ``text`` has."""
        if not self._is_resolved:
            folder = self.folder()
            self._tokenizer = None if folder is None else _tokenizer_in(folder)
            self._is_resolved = True
        alike = _alike(self._text, text)
        while self._marks[-1][0] > alike:
            self._marks.pop()
        at, tokens = self._marks[-1]
        self._text = text
        if self._tokenizer is None:
            tokens += bound(text[at:])
            self._marks.append((len(text), tokens))
            return tokens
        more, cuts = self._tokenizer.measure(text[at:])
        self._marks += [(at + place, tokens + before) for place, before in cuts]
        return tokens + more + self._tokenizer.added_tokens


def exact_token_count(folder: Path, text: str) -> int | None:
    """Return how many tokens the tokenizer in a model's folder makes of a text, those that it adds
    included; None if it cannot be loaded."""
    tokenizer = _tokenizer_in(folder)
    return None if tokenizer is None else tokenizer.measure(text)[0] + tokenizer.added_tokens


class _Tokenizer:
    """A model's tokenizer. ``added_tokens`` is how many tokens it puts around any text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._own_vocabulary = frozenset(tokenizer.get_added_tokens_decoder())
        self.added_tokens = len(tokenizer.encode("").ids)

    def measure(self, text: str) -> tuple[int, list[tuple[int, int]]]:
        """The tokens in ``text``, and some places where it can be cut, with the tokens before."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids = encoded.ids
        own = [number for number, token in enumerate(ids) if token in self._own_vocabulary]
        if not own:
            return len(ids), [(len(text), len(ids))] if len(ids) >= _STEP else []
        ends = [n for n, last in pairwise((*own, len(ids))) if last // _STEP > n // _STEP]
        return len(ids), [(encoded.token_to_chars(n)[1], n + 1) for n in (*ends[:-1], own[-1])]


def _alike(text: str, second: str) -> int:
    """How many characters two texts begin with that are the same."""
    if second.startswith(text):
        return len(text)
    ends = range(min(len(text), len(second)) + 1)
    return bisect_left(ends, True, key=lambda end: text[:end] != second[:end]) - 1


@lru_cache(maxsize=4)
def _tokenizer_in(folder: Path) -> _Tokenizer | None:
    """The tokenizer in a model's folder, None where it cannot be had."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return _Tokenizer(tokenizer)
    except Exception:  # the package is not here, or the file is none (its errors have no class)
        return None
