"""The wire protocol: text to messages, and back. Pure: nothing here does I/O.

`read` and `Reader` return the messages of a completion. `judge` says whether each call is valid,
and what reading alone requires before the call may run. The writers return the host's own lines.
The rules are in docs/protocol.md.
"""

from __future__ import annotations

from mlx_tools.protocol.call_like import fitting_calls
from mlx_tools.protocol.catalog import ToolCatalog
from mlx_tools.protocol.delimiters import (
    ANSWER_END,
    ANSWER_TAG,
    CALL_TAG,
    forcing_prefix,
    opening,
    write_answer,
    write_call,
    write_observation,
)
from mlx_tools.protocol.dialects import DIALECTS, Dialect
from mlx_tools.protocol.echo import call_sequences, canonical, find_call_keys
from mlx_tools.protocol.objects import possible_calls
from mlx_tools.protocol.reading import (
    DEFAULT_REASONING_MARKERS,
    AnswerDelta,
    ArgumentsDelta,
    CallStarted,
    Delta,
    Place,
    Reading,
    ReadingRules,
    Style,
    ThoughtDelta,
    as_repetition,
    with_mended,
)
from mlx_tools.protocol.stream import Reader, line_deltas, read, read_line
from mlx_tools.protocol.validate import (
    JudgedCall,
    closest_tool,
    judge,
    resolve,
    unknown_tool,
    validate_arguments,
)
