"""The official checker's verdicts; agree.py runs it with the interpreter of the checker's folder.

Reads JSON lines ``{"category", "id", "calls": [{"name", "arguments"}]}`` from standard input and
prints one verdict a line: ``true``, ``false``, or the name of an exception that the checker raised.
Questions and answers are those of the installed package.

Of the table of all models, whose import needs every provider's client, the checker reads one thing:
whether a model's function names have underscores for dots. A table of one model whose names keep
their dots stands in for it.
"""

from __future__ import annotations

import json
import sys
import types
from types import SimpleNamespace

MODEL = "prompted"

table = types.ModuleType("bfcl_eval.constants.model_config")
table.MODEL_CONFIG_MAPPING = {MODEL: SimpleNamespace(underscore_to_dot=False)}
sys.modules[table.__name__] = table

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402
from bfcl_eval.utils import (  # noqa: E402
    is_empty_output,
    is_function_calling_format_output,
    is_java,
    is_js,
    is_relevance_or_irrelevance,
    load_dataset_entry,
    load_ground_truth_entry,
)


class Data:
    """The package's questions and answers, by category and id."""

    def __init__(self):
        self._categories = {}

    def item(self, category, item_id):
        if category not in self._categories:
            entries = load_dataset_entry(category, include_language_specific_hint=False)
            answers = {}
            if not is_relevance_or_irrelevance(category):
                answers = {a["id"]: a["ground_truth"] for a in load_ground_truth_entry(category)}
            self._categories[category] = {
                entry["id"]: (entry["function"], answers.get(entry["id"])) for entry in entries
            }
        return self._categories[category][item_id]


def verdict(data, category, item_id, calls):
    """The official runner's verdict on calls that a model's handler has decoded."""
    functions, answers = data.item(category, item_id)
    decoded = [{call["name"]: call["arguments"]} for call in calls]
    if is_relevance_or_irrelevance(category):
        called = not is_empty_output(decoded)
        return not called if "irrelevance" in category else called
    if not is_function_calling_format_output(decoded):
        return False
    language = Language.PYTHON
    if is_java(category):
        language = Language.JAVA
    elif is_js(category):
        language = Language.JAVASCRIPT
    return ast_checker(functions, decoded, answers, language, category, MODEL)["valid"]


def main():
    data, out = Data(), sys.stdout
    sys.stdout = sys.stderr  # the converters print what they cannot read
    for line in sys.stdin:
        case = json.loads(line)
        try:
            said = verdict(data, case["category"], case["id"], case["calls"])
        except Exception as error:  # a checker that fails has no verdict
            said = type(error).__name__
        print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    main()
