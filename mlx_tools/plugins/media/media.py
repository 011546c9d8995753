"""``describe_image``, ``transcribe_audio`` and ``translate``.

The first two use other models on this machine, each in a separate process. The third uses the model
that called it.
"""

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
from mlx_tools.toolbox import Bounds, WorkerFailed, open_below, run_in_worker
from mlx_tools.tools import Tool, ToolError, current_context, load_words

MAX_BYTES: Final = 500_000_000
"""Bytes of a file: an hour of video, or days of speech."""
MAX_TOKENS: Final = 1_000
"""Tokens of a description."""
MAX_SECONDS_OF_SOUND: Final = 4 * 3600
"""Seconds of sound that are transcribed."""

_READ: Final[Effects] = frozenset(("read",))
_MEMORY_MB: Final = 256_000
"""Megabytes, most of which are only reserved: a model's weights are mapped into memory."""
_MARGIN: Final = 0.9
"""The share of a call's time that a model may take."""
_SECONDS: Final = 600.0
"""Seconds for a call without a time limit."""

Fits = Callable[[Path], bool]
"""Returns whether a folder holds a model for the task."""


def describe_image(roots: Sequence[Root]) -> Tool:
    """Return the tool for pictures below these roots."""
    words = load_words("describe_image")

    async def run(arguments: Mapping[str, Any]) -> str:
        question = str(arguments.get("question") or words.notices["question"])
        request = {"question": question, "max_tokens": MAX_TOKENS}
        return await _ask_media_model(
            roots, arguments["path"], "describe", "mlx_vlm", _is_vision_model, request
        )

    return Tool(words.spec(_READ, private=True), run)


def transcribe_audio(roots: Sequence[Root]) -> Tool:
    """Return the tool for sound below these roots."""
    words = load_words("transcribe_audio")

    async def run(arguments: Mapping[str, Any]) -> str:
        request = {
            "language": arguments.get("language"),
            "ffmpeg": shutil.which("ffmpeg"),
            "max_seconds": MAX_SECONDS_OF_SOUND,
        }
        return await _ask_media_model(
            roots, arguments["path"], "transcribe", "mlx_whisper", _is_speech_model, request
        )

    return Tool(words.spec(_READ, private=True), run)


def translate() -> Tool:
    """Return the tool. The model gets only the task, and cannot call tools."""
    words = load_words("translate")

    async def run(arguments: Mapping[str, Any]) -> str:
        question = words.notices["question"].format(
            language=arguments["language"], text=arguments["text"]
        )
        return await current_context().ask(question, tools=())

    return Tool(words.spec(_READ), run)


def find_vision_obstacle() -> str | None:
    """Return the reason why pictures cannot be described here, or None."""
    return _find_obstacle(
        "mlx_vlm", "vision", _is_vision_model, "mlx-community/Qwen2.5-VL-3B-Instruct-4bit"
    )


def find_speech_obstacle() -> str | None:
    """Return the reason why speech cannot be transcribed here, or None."""
    if why := _find_obstacle(
        "mlx_whisper", "speech", _is_speech_model, "mlx-community/whisper-large-v3-turbo"
    ):
        return why
    return None if shutil.which("ffmpeg") else "the program ffmpeg is missing (brew install ffmpeg)"


def _find_obstacle(package: str, extra: str, fits: Fits, example: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return f"the package {package.replace('_', '-')} is not installed ({to_install(extra)})"
    if _find_model(fits) is None:
        return f"no model for it is in the Hugging Face cache (hf download {example})"
    return None


def _find_model(fits: Fits) -> str | None:
    """Return the most recently downloaded model that fits."""
    from mlx_tools.backends import list_cached_snapshots  # needed only with the package

    folders = [path for _, path in list_cached_snapshots() if fits(path)]
    return str(max(folders, key=lambda path: path.stat().st_mtime)) if folders else None


def _is_vision_model(folder: Path) -> bool:
    weights = any(path.is_file() for path in folder.glob("model*.safetensors"))
    return weights and isinstance(_read_config(folder).get("vision_config"), dict)


def _is_speech_model(folder: Path) -> bool:
    weights = any((folder / f"weights.{kind}").is_file() for kind in ("safetensors", "npz"))
    return weights and _read_config(folder).get("model_type") == "whisper"


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_regular(folder / "config.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


async def _ask_media_model(
    roots: Sequence[Root], path: str, work: str, package: str, fits: Fits, request: dict[str, Any]
) -> str:
    """Return a model's text about a file. Raises ToolError."""
    model = _find_model(fits)
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
        function = f"plugins.media.work.{work}"
        answer = await run_in_worker(function, package, question, bounds, (file,))
    except WorkerFailed as error:
        if error.problem:
            raise ToolError(f"{path} cannot be read: {error.problem}") from None
        reason = f"took more than {seconds:g} s" if error.over_limit else "failed"
        code: ErrorCode = "timeout" if error.over_limit else "tool_error"
        raise ToolError(f"the model {reason}", code=code) from None
    finally:
        os.close(file)
    return visible(str(answer["text"]))
