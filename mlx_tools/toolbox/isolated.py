"""The process that works on untrusted input, shut off from the environment.

``python -I isolated.py MODULE FUNCTION PACKAGE FOLDER``. With ``-I`` neither ``PYTHONPATH`` nor the
working directory counts. So mlx_tools is loaded from the place of this file, and nothing else is
loaded from there. Further packages are looked for last in ``FOLDER``. The function's arguments are
read from standard input, a JSON object, and its result is printed as JSON.
`mlx_tools.toolbox.worker` starts it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

OUT_OF_MEMORY = 70
"""The exit code of a process that needs more memory than it may have."""

_EXHAUSTED = (MemoryError, RecursionError, SystemError)
"""Exceptions of Python if memory is short; SystemError if it cannot even make an exception."""

_MEMORY_INTERVAL = 0.02
"""Seconds between two looks at the used memory."""


class Problem(Exception):
    """The request cannot be done; the message says why."""


def main(module: str, function: str, package: str, folder: str) -> None:
    """Print what the function returns, or the ``problem`` that it met.

    A stranger's file can raise anything. The package that the function needs is imported while
    files may still be written: compiled, it loads faster.
    """
    package_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    spec = importlib.machinery.PathFinder.find_spec("mlx_tools", [os.path.dirname(package_folder)])  # noqa: PTH120
    assert spec is not None and spec.loader is not None
    sys.modules["mlx_tools"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["mlx_tools"])
    sys.modules["mlx_tools.toolbox.isolated"] = sys.modules["__main__"]
    sys.path.append(folder)
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    if sys.platform == "linux":  # where MLX compiles by way of files, and there may be none
        os.environ["MLX_DISABLE_COMPILE"] = "1"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no answer
            work = getattr(importlib.import_module(module), function)
            importlib.import_module(package)
            request = json.load(sys.stdin.buffer)
            _set_limits(**request.pop("limits"))
            answer = _answer(work, request)
        text = json.dumps(answer, ensure_ascii=False)
    except _EXHAUSTED:
        os._exit(OUT_OF_MEMORY)
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def _answer(work: Callable[..., dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return work(**request)
    except _EXHAUSTED:
        raise
    except Problem as problem:
        return {"problem": str(problem)}
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}"[:300]}


def _set_limits(cpu_seconds: int, memory_mb: int) -> None:
    """Limit this process, and forbid it to write files.

    A process beyond its limits ends by a signal, by MemoryError, or at once.
    """
    max_bytes = memory_mb * 1_000_000
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        # The soft limit sends SIGXCPU, which a library may catch; the hard one, a second later,
        # kills.
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
        return
    max_bytes += _peak_memory()  # macOS does not hold a process to that limit

    def watch() -> None:
        while _peak_memory() < max_bytes:
            time.sleep(_MEMORY_INTERVAL)
        os._exit(OUT_OF_MEMORY)

    threading.Thread(target=watch, daemon=True).start()


def _peak_memory() -> int:
    """Return the most memory used so far, in bytes (macOS counts it so)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- work that is small -------------------------------------------------------------------------


def search(query: str, engine: str, max_results: int, seconds: float) -> dict[str, Any]:
    """Return at most ``max_results`` ``hits`` of a search engine.

    Each has ``title``, ``url`` and ``text``.
    """
    from ddgs import DDGS
    from ddgs.engines import ENGINES
    from ddgs.exceptions import DDGSException

    if engine not in ENGINES.get("text", {}):  # else all engines would be asked
        raise Problem(f"the installed ddgs knows no engine {engine}")
    try:
        with DDGS(timeout=max(1, int(seconds))) as client:
            results = client.text(query, backend=engine, max_results=max_results)
    except DDGSException as error:
        if "No results" in str(error):
            return {"hits": []}
        raise Problem(str(error)[:1000]) from None
    return {
        "hits": [
            {"title": hit.get("title"), "url": hit.get("href"), "text": hit.get("body")}
            for hit in results
        ]
    }


def describe(model: str, file: int, question: str, max_tokens: int) -> dict[str, Any]:
    """Return the description of a picture, an open file, by the model in this folder."""
    from mlx_vlm import generate, load
    from mlx_vlm.prompt_utils import apply_chat_template

    loaded, processor = load(model, trust_remote_code=False)
    prompt = apply_chat_template(processor, loaded.config, question, num_images=1)
    picture = [f"/dev/fd/{file}"]
    result = generate(
        loaded, processor, prompt, image=picture, max_tokens=max_tokens, temperature=0.0
    )
    return {"text": str(result.text).strip()}


_HERTZ = 16_000
_CONTAINERS = "aac,ac3,aiff,asf,caf,flac,matroska,mov,mp3,ogg,wav"
"""Formats that hold sound, alone or with pictures. None is a playlist, which names other files."""


def transcribe(
    model: str, file: int, language: str | None, ffmpeg: str, max_seconds: int
) -> dict[str, Any]:
    """Return the speech in an open file, by the model in this folder.

    At most ``max_seconds`` of sound are used, which the program ``ffmpeg`` extracts.
    """
    import mlx_whisper
    import numpy

    sound = subprocess.run(  # noqa: S603 - a list, no shell
        [
            *(ffmpeg, "-nostdin", "-v", "error"),
            *("-format_whitelist", _CONTAINERS, "-protocol_whitelist", "file"),
            *("-i", f"/dev/fd/{file}", "-vn", "-t", str(max_seconds)),
            *("-f", "s16le", "-ac", "1", "-ar", str(_HERTZ), "-"),
        ],
        capture_output=True,
        pass_fds=(file,),
        check=False,
    )
    if sound.returncode or not sound.stdout:
        messages = sound.stderr.decode("utf-8", "replace").strip()
        raise Problem(messages.splitlines()[-1][:300] if messages else "there is no sound in it")
    samples = numpy.frombuffer(sound.stdout, numpy.int16).astype(numpy.float32) / 32_768.0
    result = mlx_whisper.transcribe(samples, path_or_hf_repo=model, language=language)
    return {"text": str(result["text"]).strip()}


if __name__ == "__main__":
    main(*sys.argv[1:])
