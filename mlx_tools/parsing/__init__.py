"""Text to values: strict JSON, JSON with repairs, Python literals, fences.

Pure, and without knowledge of tools. An object is read while it is written (`ObjectScanner`), and a
text as it comes (`TextSource`). `mlx_tools.protocol` makes messages of them.
"""

from __future__ import annotations

from mlx_tools.parsing.literals import keywords, literal, literal_object
from mlx_tools.parsing.quoting import fences, last_fence, only_fence, without_quoted
from mlx_tools.parsing.scan import (
    CLOSED,
    CONTROL_ESCAPE,
    FAULT,
    HEADS,
    INCOMPLETE,
    NO_OBJECT,
    ObjectScanner,
    find_objects,
)
from mlx_tools.parsing.source import (
    SPACE,
    WHITE,
    CutOff,
    Fault,
    Steps,
    TextSource,
    finished,
    match_any,
    match_any_beginning,
)
from mlx_tools.parsing.strict import (
    HOOKS,
    MAX_DEPTH,
    Unreadable,
    arguments_span,
    canonical_json,
    compact,
    decode,
    encodable,
    iter_values,
    loads,
    writable,
)
