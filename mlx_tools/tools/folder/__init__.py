"""Tools that are folders of files, each run in a process of its own.

`definition` is what stands in a folder, `folder_tool` makes a tool of it and runs it
(`child_process` is the other side), `collection` is the user's tools folder, with what the user
said of it.
"""

from __future__ import annotations

from typing import Final

PLUGIN: Final = "folder"
"""The plugin that the tools of the user's folder are to a policy: ``plugin:folder``."""
