"""Tools: how they are declared, which there are, and what runs them."""

from __future__ import annotations

from mlx_tools.tools.context import OnProgress as OnProgress
from mlx_tools.tools.context import Progress as Progress
from mlx_tools.tools.context import ToolContext as ToolContext
from mlx_tools.tools.context import ToolError as ToolError
from mlx_tools.tools.context import current_context as current_context
from mlx_tools.tools.executor import MAX_ERROR_CHARS as MAX_ERROR_CHARS
from mlx_tools.tools.executor import ToolResult as ToolResult
from mlx_tools.tools.executor import execute as execute
from mlx_tools.tools.folder.folder_tool import load_tool as load_tool
from mlx_tools.tools.host_tools import DEFAULT_LIMIT as DEFAULT_LIMIT
from mlx_tools.tools.host_tools import FoundTools as FoundTools
from mlx_tools.tools.host_tools import Words as Words
from mlx_tools.tools.host_tools import find_tools as find_tools
from mlx_tools.tools.host_tools import read_artifact as read_artifact
from mlx_tools.tools.host_tools import tool_search as tool_search
from mlx_tools.tools.host_tools import why_off as why_off
from mlx_tools.tools.host_tools import words_of as words_of
from mlx_tools.tools.reads import SCOPES as SCOPES
from mlx_tools.tools.reads import CacheScope as CacheScope
from mlx_tools.tools.reads import Reads as Reads
from mlx_tools.tools.registry import NO_SUCH as NO_SUCH
from mlx_tools.tools.registry import Offer as Offer
from mlx_tools.tools.registry import Registry as Registry
from mlx_tools.tools.signature import InvalidArguments as InvalidArguments
from mlx_tools.tools.threads import submit as submit
from mlx_tools.tools.tool import Callee as Callee
from mlx_tools.tools.tool import EffectsBy as EffectsBy
from mlx_tools.tools.tool import Preview as Preview
from mlx_tools.tools.tool import Tool as Tool
from mlx_tools.tools.tool import preview_of as preview_of
from mlx_tools.tools.tool import tool as tool
