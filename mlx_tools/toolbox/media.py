"""``describe_image``, ``transcribe_audio`` and ``translate``: what models do with pictures, with
speech and with languages. The first two ask models of their own on this machine, each in a process
of its own; the third asks the model that called it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import Effects
from mlx_tools.paths import read_regular, to_install
from mlx_tools.process import visible
from mlx_tools.store import Root
from mlx_tools.toolbox.file_reading import open_below
from mlx_tools.toolbox.worker import Bounds, WorkerFailed, ask_apart
from mlx_tools.tools import Tool, ToolError, current_context, words_of

MAX_BYTES: Final = 500_000_000
MAX_TOKENS: Final = 1_000
"""Of a description."""
MAX_SECONDS_OF_SOUND: Final = 4 * 3600

_READ: Final[Effects] = frozenset(("read",))
_MEMORY_MB: Final = 256_000
"""Reserved rather than used: a model's weights are mapped into memory."""
_MARGIN: Final = 0.9
_SECONDS: Final = 600.0
"""Where the call has no limit of its own."""

Fits = Callable[[Path], bool]
"""Whether what a folder holds is a model for the task."""


def describe_image(roots: Sequence[Root]) -> Tool:
    """The tool for pictures below these roots."""
    words = words_of("describe_image")

    async def run(arguments: Mapping[str, Any]) -> str:
        question = str(arguments.get("question") or words.notices["question"])
        asked = {"question": question, "most": MAX_TOKENS}
        return await _told_of(roots, arguments["path"], "describe", "mlx_vlm", _sees, asked)

    return Tool(words.spec(_READ, private=True), run)


def transcribe_audio(roots: Sequence[Root]) -> Tool:
    """The tool for sound below these roots."""
    words = words_of("transcribe_audio")

    async def run(arguments: Mapping[str, Any]) -> str:
        asked = {
            "language": arguments.get("language"),
            "ffmpeg": shutil.which("ffmpeg"),
            "most": MAX_SECONDS_OF_SOUND,
        }
        return await _told_of(roots, arguments["path"], "transcribe", "mlx_whisper", _hears, asked)

    return Tool(words.spec(_READ, private=True), run)


def translate() -> Tool:
    """The tool: the model that calls it is asked for nothing else, and may call nothing."""
    words = words_of("translate")

    async def run(arguments: Mapping[str, Any]) -> str:
        question = words.notices["question"].format(
            language=arguments["language"], text=arguments["text"]
        )
        return await current_context().ask(question, tools=())

    return Tool(words.spec(_READ), run)


def no_vision() -> str | None:
    """The reason why no picture can be described here, None where one can be."""
    return _missing("mlx_vlm", "vision", _sees, "mlx-community/Qwen2.5-VL-3B-Instruct-4bit")


def no_speech() -> str | None:
    """The reason why no speech can be written down here, None where it can be."""
    if why := _missing("mlx_whisper", "speech", _hears, "mlx-community/whisper-large-v3-turbo"):
        return why
    return None if shutil.which("ffmpeg") else "the program ffmpeg is missing (brew install ffmpeg)"


def _missing(package: str, extra: str, fits: Fits, example: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return f"the package {package.replace('_', '-')} is not installed ({to_install(extra)})"
    if _model(fits) is None:
        return f"no model for it is in the Hugging Face cache (hf download {example})"
    return None


def _model(fits: Fits) -> str | None:
    """The model that was fetched last of those that fit."""
    from mlx_tools.backends import cached_snapshots  # only where what asks such models is installed

    here = [path for _, path in cached_snapshots() if fits(path)]
    return str(max(here, key=lambda path: path.stat().st_mtime)) if here else None


def _sees(folder: Path) -> bool:
    weights = any(path.is_file() for path in folder.glob("model*.safetensors"))
    return weights and isinstance(_config(folder).get("vision_config"), dict)


def _hears(folder: Path) -> bool:
    weights = any((folder / f"weights.{kind}").is_file() for kind in ("safetensors", "npz"))
    return weights and _config(folder).get("model_type") == "whisper"


def _config(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_regular(folder / "config.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


async def _told_of(
    roots: Sequence[Root], path: str, work: str, package: str, fits: Fits, request: dict[str, Any]
) -> str:
    """What a model tells of a file. Raises ToolError."""
    model = _model(fits)
    if model is None:
        raise ToolError("its model is not here any more", code="disabled")
    limit = current_context().timeout
    seconds = _SECONDS if limit is None else limit * _MARGIN
    bounds = Bounds(seconds, int(seconds * (os.cpu_count() or 1)) + 1, _MEMORY_MB)
    file = open_below(roots, path)
    try:
        if os.fstat(file).st_size > MAX_BYTES:
            raise ToolError(f"{path} has more than {MAX_BYTES // 1_000_000} MB")
        question = {**request, "model": model, "file": file}
        told = await ask_apart(f"isolated.{work}", package, question, bounds, (file,))
    except WorkerFailed as error:
        if error.problem:
            raise ToolError(f"{path} cannot be read: {error.problem}") from None
        why = f"took more than {seconds:g} s" if error.beyond else "failed"
        code: ErrorCode = "timeout" if error.beyond else "tool_error"
        raise ToolError(f"the model {why}", code=code) from None
    finally:
        os.close(file)
    return visible(str(told["text"]))
