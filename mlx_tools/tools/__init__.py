"""Tools: how they are declared, which there are, and what runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of
from mlx_tools.tools.bound import BoundSource, BoundSources, BoundTool, MakeTool, SourceKind
from mlx_tools.tools.context import (
    MAX_ERROR_CHARS,
    MAX_LONG_ERROR_CHARS,
    OnProgress,
    Progress,
    ToolContext,
    ToolError,
    current_context,
)
from mlx_tools.tools.executor import (
    MAX_OUTPUT_CHARS,
    SCOPES,
    CacheScope,
    NestedReadCallCache,
    ReadCallCache,
    ToolResult,
    execute,
    to_text,
    whole_characters,
)
from mlx_tools.tools.exports import FORMATS, export, to_mcp, to_openai
from mlx_tools.tools.folder.collection import OFF, ToolCollection, exposed_by, write_template
from mlx_tools.tools.folder.definition import FOLDER, ToolFolder, folders_in, read_folder, renamed
from mlx_tools.tools.folder.folder_tool import load_tool
from mlx_tools.tools.functions import tools_of_file
from mlx_tools.tools.host_tools import (
    DEFAULT_LIMIT,
    ToolSearch,
    Words,
    find_tools,
    read_artifact,
    tool_search,
    why_off,
    words_of,
)
from mlx_tools.tools.registry import NO_SUCH, EntryPointTools, Registry
from mlx_tools.tools.signature import InvalidArguments
from mlx_tools.tools.threads import submit
from mlx_tools.tools.tool import EffectsBy, Preview, Tool, ToolLike, preview_of, tool

if TYPE_CHECKING:
    from mlx_tools.tools.mcp.client import (
        McpClients,
        ServerOffer,
        log_file,
        look,
        mcp_read,
        prompt_text,
    )
    from mlx_tools.tools.mcp.places import known_files, masked, place_of, plain_json, servers_in
    from mlx_tools.tools.mcp.sign_in import tokens_file
    from mlx_tools.tools.openapi.address import server_fault
    from mlx_tools.tools.openapi.document import (
        OpenApiDocument,
        OperationRefused,
        read_document,
        with_effects,
    )
    from mlx_tools.tools.openapi.request import PLACE_FORM, bound_operation, parse_secret

__getattr__, __dir__ = names_of(
    globals(),
    {
        "mcp.client": ("McpClients", "ServerOffer", "log_file", "look", "mcp_read", "prompt_text"),
        "mcp.places": ("known_files", "masked", "place_of", "plain_json", "servers_in"),
        "mcp.sign_in": ("tokens_file",),
        "openapi.address": ("server_fault",),
        "openapi.document": (
            "OpenApiDocument",
            "OperationRefused",
            "read_document",
            "with_effects",
        ),
        "openapi.request": ("PLACE_FORM", "bound_operation", "parse_secret"),
    },
)
