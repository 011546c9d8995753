"""The part of the media tools that runs in a separate process."""

from __future__ import annotations

import subprocess
from typing import Any

from mlx_tools.toolbox import Problem


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
"""Formats with sound, with or without pictures. None is a playlist, which names other files."""


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
