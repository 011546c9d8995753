"""Writes what schemathesis makes of an OpenAPI document: a line of JSON for each request.

``python openapi_values.py DOCUMENT EXAMPLES`` in an environment that has schemathesis; started by
openapi_documents.py. ``valid`` is what schemathesis says of the body, the parameters are valid.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.generation import GenerationMode


def plain(value: Any) -> Any:
    json.dumps(value)  # what is no JSON cannot be an argument
    return value


def requests(operation: Any, mode: GenerationMode, most: int) -> None:
    settings = hypothesis.settings(
        max_examples=most,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    def tell(case: Any) -> None:
        row: dict[str, Any] = {"method": operation.method.upper(), "path": operation.path}
        try:
            if mode is GenerationMode.NEGATIVE:
                kinds = {place.value: part.mode for place, part in case.meta.components.items()}
                if kinds.get("body") is not GenerationMode.NEGATIVE:
                    return
                row |= {"valid": False, "body": plain(case.body)}
            else:
                row["valid"] = True
                row["query"] = plain(dict(case.query or {}))
                row["at"] = plain(dict(case.path_parameters or {}))
                if type(case.body).__name__ != "NotSet":
                    row["body"] = plain(case.body)
            row["media"] = case.media_type
        except (TypeError, ValueError):
            return
        print(json.dumps(row))

    strategy = operation.as_strategy(generation_mode=mode)
    settings(hypothesis.given(strategy)(tell))()


def main() -> None:
    path, most = sys.argv[1], int(sys.argv[2])
    for result in schemathesis.openapi.from_path(path).get_all_operations():
        operation = result.ok()
        modes = [GenerationMode.POSITIVE]
        modes += [GenerationMode.NEGATIVE] if operation.body else []
        for mode in modes:
            try:
                requests(operation, mode, most)
            except Exception as error:
                print(f"{operation.label}: {mode.name}: {error!r}"[:300], file=sys.stderr)


if __name__ == "__main__":
    main()
