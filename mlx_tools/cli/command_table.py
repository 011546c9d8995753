"""The commands, and the line that each has in ``mlx-tools --help``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMPLETION_VARIABLE: Final = "_MLX_TOOLS_COMPLETE"
"""The environment variable by which a shell asks what can follow."""

COMMANDS: Final[Mapping[str, str]] = {
    "ask": "Ask one question; the model may call tools.",
    "chat": "Talk with the model, with tools, line by line.",
    "parse": "Show how one completion's text is read; runs nothing.",
    "propose": "Show what the model would write in one turn; runs nothing.",
    "prompts": "Keep questions under a name, with blanks, for ask -p.",
    "tools": "List, show, search and call tools; add your own, switch any on and off.",
    "mcp": "Add servers of the Model Context Protocol, whose tools are then as any other.",
    "sessions": "List and show the sessions that are kept, go on with one, remove old ones.",
    "store": "Copy all that is kept, between files and a database.",
    "serve": "Serve the interfaces that clients and agents speak.",
    "connect": "Have an agent or editor use the gateway: print or write its settings.",
    "worker": "Do the runs that gateways are asked for, where sessions are in PostgreSQL.",
    "approvals": "List, add and revoke standing yeses for calls of some shape.",
    "undo": "Bring back what a session's calls replaced, deleted and made.",
    "stats": "Count what was asked, what the tools did, and how it ended.",
    "golden": "Record runs, replay them, and check them on real models.",
    "kb": "Add files to the knowledge base, search it, list and remove what is in it.",
    "schedule": "List, add and remove tasks for later, and run those that are due.",
    "models": "List, fetch, find and serve models.",
    "doctor": "Check the server, the model and what both can do.",
    "eval": "Measure how well a model calls tools.",
    "config": "Show, check and change the settings.",
}
