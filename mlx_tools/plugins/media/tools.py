"""The tools of this plugin."""

from __future__ import annotations

from mlx_tools.app import ToolRequest, hookimpl
from mlx_tools.plugins.media.media import (
    describe_image,
    find_speech_obstacle,
    find_vision_obstacle,
    transcribe_audio,
    translate,
)
from mlx_tools.tools import Tool, disable_tool


@hookimpl
def tools(request: ToolRequest) -> list[Tool]:
    """Return ``translate``, ``describe_image`` and ``transcribe_audio``."""
    roots, no_files = request.roots, request.no_files
    return [
        translate(),
        disable_tool(describe_image(roots), lambda: no_files or find_vision_obstacle()),
        disable_tool(transcribe_audio(roots), lambda: no_files or find_speech_obstacle()),
    ]
