"""The wire protocol: text to messages, and back. Pure: nothing here does I/O.

`read` and `Reader` tell what a completion holds; `judge` says of each call whether it is valid and
what reading alone demands before it may run; the writers give the host's own lines. The rules are
in docs/protocol.md.
"""

from __future__ import annotations

from mlx_tools.protocol.dialects import (
    DIALECT_MARKS,
    DIALECTS,
    Dialect,
    call_mark_begins,
    find_call_mark,
)
from mlx_tools.protocol.echo import calls_in
from mlx_tools.protocol.reading import (
    DEFAULT_REASONING_MARKERS,
    AnswerDelta,
    ArgumentsDelta,
    CallStarted,
    Delta,
    Reading,
    ReadingRules,
    Style,
    with_mended,
)
from mlx_tools.protocol.scan import REPAIRS
from mlx_tools.protocol.stream import Reader, read
from mlx_tools.protocol.strict import canonical
from mlx_tools.protocol.styles import (
    forcing_prefix,
    opening,
    write_answer,
    write_call,
    write_observation,
)
from mlx_tools.protocol.validate import (
    JudgedCall,
    judge,
    resolve,
    unknown_tool,
    validate_arguments,
)
from mlx_tools.schema.validator import COERCIONS

__all__ = [
    "COERCIONS",
    "DEFAULT_REASONING_MARKERS",
    "DIALECTS",
    "DIALECT_MARKS",
    "REPAIRS",
    "AnswerDelta",
    "ArgumentsDelta",
    "CallStarted",
    "Delta",
    "Dialect",
    "JudgedCall",
    "Reader",
    "Reading",
    "ReadingRules",
    "Style",
    "call_mark_begins",
    "calls_in",
    "canonical",
    "find_call_mark",
    "forcing_prefix",
    "judge",
    "opening",
    "read",
    "resolve",
    "unknown_tool",
    "validate_arguments",
    "with_mended",
    "write_answer",
    "write_call",
    "write_observation",
]
