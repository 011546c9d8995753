"""JSON Schemas of arguments: checks, validation, coercion and examples. Pure."""

from mlx_tools.schema.compilable import COMPACT, is_large, make_compilable
from mlx_tools.schema.lenient import LenientSchema, read_lenient_schema
from mlx_tools.schema.resolve import (
    JSON_TYPES,
    ONE_SCHEMA,
    SCHEMA_LIST,
    SCHEMA_MAP,
    cache_by_identity,
    check_parameters,
    dereference,
    drop_unmatchable,
    find_anchors,
    follow,
    is_of_objects,
    iter_children,
    list_branches,
    list_types,
    object_schema,
    possible_types,
    read_properties,
    read_required,
    resolve,
    schema_text,
    to_pointer,
    walk,
)
from mlx_tools.schema.sample import sample_arguments
from mlx_tools.schema.validator import (
    MAX_MESSAGE_CHARS,
    CheckTooLong,
    check_arguments,
    coerce,
    find_faults,
    find_other_case,
    fits,
    fits_plainly,
    format_path,
    join_faults,
    limit_steps,
    list_choices,
    list_coercions,
    make_validator,
    to_hashable,
)
