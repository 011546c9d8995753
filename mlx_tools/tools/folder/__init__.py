"""Tools that are folders of files, each run in a process of its own.

`files`, `declared` and `code` are what stands in a folder, `definition` is all of it. `process`
runs it (`child` is the other side), `tool` makes a tool of both, `shelf` keeps the user's tools
folder, with what the user said of it in `record`, `template` writes a new one.
"""

from __future__ import annotations

from typing import Final

PLUGIN: Final = "folder"
"""What a policy calls the tools of the user's folder together: ``plugin:folder``."""
