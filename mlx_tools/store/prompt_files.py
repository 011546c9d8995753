"""The words that a model reads: the files of ``prompts/``, or of a folder in their place."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

from mlx_tools.errors import ConfigError
from mlx_tools.paths import read_data, read_text
from mlx_tools.prompt.words import FILES, PromptWords, parse_words


def words_digest() -> str:
    """A digest of the words that the model reads, as they come with mlx-tools: 16 digits."""
    words = "\0".join(read_data(f"prompts/{name}") for name in sorted(FILES))
    return hashlib.sha256(words.encode()).hexdigest()[:16]


@functools.cache
def word_files() -> Mapping[str, str]:
    """A digest of each file with words that the model reads: 16 digits."""
    return {
        name: hashlib.sha256(read_data(f"prompts/{name}").encode()).hexdigest()[:16]
        for name in FILES
    }


def load_words(folder: Path | None = None) -> PromptWords:
    """The words that a model reads, from ``folder`` or from the files that come with mlx-tools.

    A file that ``folder`` does not have is taken from those that come with mlx-tools. Raises
    `ConfigError` where a file or key is missing, or a placeholder is not right.
    """
    if folder is None:
        return _own_words()
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder")
    texts = {
        name: read_text(folder / name)
        if (folder / name).is_file()
        else read_data(f"prompts/{name}")
        for name in FILES
    }
    return parse_words(texts)


@functools.cache
def _own_words() -> PromptWords:
    return parse_words({name: read_data(f"prompts/{name}") for name in FILES})
