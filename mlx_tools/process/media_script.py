"""Describes a picture or writes down speech with a local model, in a process of its own.

The question has ``task`` (``describe`` or ``transcribe``), ``model``, a folder, and ``file``, the
number of an open file; to describe, ``question`` and ``most`` tokens; to transcribe, ``language``
or null, ``ffmpeg``, a program, and ``most`` seconds of sound. The answer has ``text``, or
``problem``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

from mlx_tools.process.isolated import Problem, or_problem, serve

_HERTZ = 16_000
_CONTAINERS = "aac,ac3,aiff,asf,caf,flac,matroska,mov,mp3,ogg,wav"
"""Those that hold sound alone or beside pictures. None is a playlist, which names other files."""


def look_or_listen(asked: dict[str, Any]) -> dict[str, Any]:
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"  # a model is here whole
    if sys.platform == "linux":  # where MLX compiles by way of files, and there may be none
        os.environ["MLX_DISABLE_COMPILE"] = "1"
    task = _describe if asked["task"] == "describe" else _transcribe
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no answer
        return {"text": task(asked).strip()}


def _describe(asked: dict[str, Any]) -> str:
    from mlx_vlm import generate, load
    from mlx_vlm.prompt_utils import apply_chat_template

    model, processor = load(asked["model"], trust_remote_code=False)
    prompt = apply_chat_template(processor, model.config, asked["question"], num_images=1)
    picture, most = f"/dev/fd/{asked['file']}", asked["most"]
    made = generate(model, processor, prompt, image=[picture], max_tokens=most, temperature=0.0)
    return str(made.text)


def _transcribe(asked: dict[str, Any]) -> str:
    import numpy
    from mlx_whisper import transcribe

    sound = subprocess.run(  # noqa: S603 - a list, no shell
        [
            *(asked["ffmpeg"], "-nostdin", "-v", "error"),
            *("-format_whitelist", _CONTAINERS, "-protocol_whitelist", "file"),
            *("-i", f"/dev/fd/{asked['file']}", "-vn", "-t", str(asked["most"])),
            *("-f", "s16le", "-ac", "1", "-ar", str(_HERTZ), "-"),
        ],
        capture_output=True,
        pass_fds=(asked["file"],),
        check=False,
    )
    if sound.returncode or not sound.stdout:
        said = sound.stderr.decode("utf-8", "replace").strip()
        raise Problem(said.splitlines()[-1][:300] if said else "there is no sound in it")
    samples = numpy.frombuffer(sound.stdout, numpy.int16).astype(numpy.float32) / 32_768.0
    made = transcribe(samples, path_or_hf_repo=asked["model"], language=asked["language"])
    return str(made["text"])


if __name__ == "__main__":
    serve(or_problem(look_or_listen))
