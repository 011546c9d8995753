"""JSON Schema: read once, validated, coerced, sampled, written as a grammar. Pure."""

from mlx_tools.schema.compilable import COMPACT, compilable, is_large
from mlx_tools.schema.lenient import LenientSchema, lenient_parameters
from mlx_tools.schema.resolve import (
    LIST,
    MAP,
    ONE,
    anchors,
    branches,
    check_parameters,
    children,
    dereferenced,
    follow,
    is_of_objects,
    matchable,
    object_schema,
    pointer,
    properties,
    required,
    resolve,
    schema_text,
    types,
    walk,
)
from mlx_tools.schema.sample import sample_arguments
from mlx_tools.schema.validator import (
    MOST_CHARS,
    CheckTooLong,
    choices_in,
    coerce,
    coercions,
    faults,
    fits,
    fits_plainly,
    hashable,
    in_other_case,
    join_faults,
    limit_steps,
    path_text,
    validator_for,
)
