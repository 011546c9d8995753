"""Compact JSON is what `json` writes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given

from mlx_tools.protocol.strict import compact, writer
from tests.protocol.texts import json_values


@given(json_values)
def test_compact_json_is_that_of_the_standard_library(value: Any) -> None:
    for sort_keys in (False, True):
        written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
        assert writer(sort_keys=sort_keys)(value) == written
    assert compact(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_what_json_has_no_form_for_is_refused() -> None:
    assert compact([math.inf]) == "[Infinity]"
    with pytest.raises(ValueError, match="JSON compliant"):
        writer(allow_nan=False)([math.inf])
    with pytest.raises(TypeError):
        compact({"a": {1}})
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    with pytest.raises(RecursionError):
        compact(round_and_round)
