"""Bounded rendering of chat templates as transformers renders them.

A template comes with a model and is not to be trusted. It runs in jinja2's sandbox, which keeps it
from Python; here its loops, its macros and the sizes of its values are bounded too, so that it ends
soon whatever it holds. Any failure is a `ChatFormatError`.

The environment is transformers': blocks trimmed, ``break`` and ``continue``, the ``generation``
tag, a ``tojson`` that does not escape for HTML, ``raise_exception``. ``strftime_now`` stands for a
fixed day: nothing that changes from day to day may stand in a prompt.

Import this only to read a template: jinja2 takes a while.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final

from jinja2 import Environment, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from mlx_tools.errors import ChatFormatError
from mlx_tools.prompt.chat_format import HINT, TemplateRefused

MAX_TEMPLATE_CHARS: Final = 1_000_000
MAX_TEXT_CHARS: Final = 200_000
MAX_NUMBER: Final = 1_000_000
MAX_STEPS: Final = 100_000
FIXED_DAY: Final = date(2024, 7, 26)
"""The day that Llama's templates write if there is no clock."""

_UNBOUNDED_FILTERS: Final = (
    *("batch", "center", "filesizeformat", "format", "pprint", "random", "slice", "urlize"),
    *("wordwrap", "xmlattr"),
)
_UNBOUNDED_METHODS: Final = frozenset(
    ("center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill")
)
_WIDTH: Final = re.compile(r"\*|\d{3}")
_STEP: Final = "__mlx_tools_step"
_WRITE: Final = "__mlx_tools_write"
_HOLD: Final = "__mlx_tools_hold"
_JOIN: Final = "__mlx_tools_join"


class ChatTemplate:
    """A compiled template. Raises `ChatFormatError` if it is not valid.

    ``literals`` are all texts that it can write by itself: its data and its string constants.
    """

    def __init__(self, text: str, *, bos_token: str, eos_token: str) -> None:
        if len(text) > MAX_TEMPLATE_CHARS:
            raise ChatFormatError(
                f"the chat template has {len(text):,} characters, more than {MAX_TEMPLATE_CHARS:,}",
                hint=HINT,
            )
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._budget = Budget()
        try:
            environment = _Sandbox(self._budget)
            tree = environment.parse(text)
            constants = [one.value for one in tree.find_all(nodes.Const)]
            data = [one.data for one in tree.find_all(nodes.TemplateData)]
            self.literals = (*data, *(one for one in constants if isinstance(one, str)))
            self._compiled_template = environment.from_string(_count_steps(tree, environment))
        except Exception as error:  # jinja2's own errors, RecursionError, MemoryError
            raise _fault("cannot be read", error) from None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, ask: bool = False, **options: Any
    ) -> str:
        """Return the text for messages and the template's own options.

        ``ask`` adds the generation prompt.

        Raises:
            TemplateRefused: the template calls ``raise_exception``.
            ChatFormatError: the template fails in any other way.
        """
        self._budget.remaining_steps = MAX_STEPS
        options |= {"messages": [dict(message) for message in messages], **self._tokens}
        try:
            return str(self._compiled_template.render(add_generation_prompt=ask, **options))
        except TemplateRefused:
            raise
        except Exception as error:
            raise _fault("cannot be rendered", error) from None


def _fault(problem: str, error: Exception) -> ChatFormatError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ChatFormatError(f"the model's chat template {problem}: {reason}", hint=HINT)


def _raise(message: object = "") -> None:
    raise TemplateRefused(str(message)[:200])


class _Generation(Extension):
    """The tag ``{% generation %}``, which marks a model's text for training.

    Only its body counts.
    """

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """A namespace that is not written out: one may hold another many times over."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, which draws on a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.budget = budget
        for name in _UNBOUNDED_FILTERS:
            self.filters.pop(name, None)
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name, None)
        for name in ("join", "replace", "indent"):
            self.filters[name] = _limit_filter(budget, self.filters[name])
        self.filters |= {"tojson": _tojson, _HOLD: budget.hold}
        self.globals |= {
            _STEP: budget.step,
            _WRITE: budget.write,
            _HOLD: budget.hold,
            _JOIN: budget.join,
            "namespace": _Namespace,
            "raise_exception": _raise,
            "strftime_now": lambda form="%Y-%m-%d": FIXED_DAY.strftime(str(form)[:64]),
        }

    def call_binop(self, context: Any, operator: str, first: Any, second: Any) -> Any:
        self.budget.hold(first)
        self.budget.hold(second)
        wide = operator == "%" and isinstance(first, str) and _WIDTH.search(first)
        if operator == "**" or wide:
            raise OverflowError(f"it uses the operator {operator}")
        if operator == "*":
            self.budget.product(first, second)
        return self.budget.hold(super().call_binop(context, operator, first, second))

    def call(self, context: Any, called: Any, /, *values: Any, **name: Any) -> Any:
        self.budget.step()
        if getattr(called, "__name__", "") in _UNBOUNDED_METHODS:
            raise OverflowError(f"it calls {called.__name__}")
        owner = getattr(called, "__self__", None)
        if isinstance(owner, str):
            self.budget.product(owner, *values, *name.values())
        return self.budget.hold(super().call(context, called, *values, **name))


def _limit_filter(budget: Budget, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter within the budget; jinja2 passes some filters its context first."""
    passed = getattr(function, "jinja_pass_arg", None)

    def limited(*values: Any, **name: Any) -> Any:
        own = values[:1] if passed is not None else ()
        rest = [list(v) if hasattr(v, "__next__") else v for v in values[len(own) :]]
        budget.product(*rest, *name.values())
        return budget.hold(function(*own, *rest, **name))

    if passed is not None:
        limited.jinja_pass_arg = passed  # type: ignore[attr-defined]
    return limited


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=min(indent, 16) if isinstance(indent, int) else None,
        separators=separators,
        sort_keys=sort_keys,
    )


def _count_steps(tree: nodes.Template, environment: Environment) -> nodes.Template:
    """Make every loop, macro, output, list and ``~`` of a template use the budget."""
    counted: nodes.Template = _StepCounter().visit(tree)
    counted.set_environment(environment)
    for node in counted.find_all(nodes.Node):
        if node.lineno is None:
            node.lineno = 1
    return counted


def _call(name: str, *values: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load"), list(values), [], None, None)


class _StepCounter(NodeTransformer):
    """Puts calls of the budget's functions into a template."""

    def visit(self, node: Any, *values: Any, **name: Any) -> Any:
        node = self.generic_visit(node)
        match node:
            case nodes.For() | nodes.Macro() | nodes.CallBlock():
                node.body.insert(0, nodes.ExprStmt(_call(_STEP)))
            case nodes.List() | nodes.Tuple() | nodes.Dict():
                return node if getattr(node, "ctx", "load") != "load" else _call(_HOLD, node)
            case nodes.Filter() if _has_value(node):
                return _call(_HOLD, node)
            case nodes.AssignBlock():
                node.filter = nodes.Filter(node.filter, _HOLD, [], [], None, None)
            case nodes.Concat():
                return _call(_JOIN, *node.nodes)
            case nodes.Output():
                data = nodes.TemplateData
                texts = (nodes.Const(n.data) if isinstance(n, data) else n for n in node.nodes)
                node.nodes = [_call(_WRITE, text) for text in texts]
        return node


def _has_value(node: Any) -> bool:
    """Return True if a chain of filters ends in a value; that of a block does not."""
    while isinstance(node, nodes.Filter):
        node = node.node
    return node is not None


class Budget:
    """The steps that a rendering may still take.

    A call, a loop and an output take one each, and so do each ten items or four hundred characters
    that are handled.
    """

    remaining_steps = MAX_STEPS

    def step(self, count: int = 1) -> str:
        """Take steps off the budget. Raise `OverflowError` if it is used up."""
        self.remaining_steps -= count
        if self.remaining_steps < 0:
            raise OverflowError(f"it takes more than {MAX_STEPS:,} steps")
        return ""

    def hold(self, value: Any) -> Any:
        """Return ``value``, unless it is too large to go on with."""
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise OverflowError(f"it uses a number above {MAX_NUMBER:,}")
        self.step(self._weight(value) // 10)
        return value

    def _weight(self, value: Any) -> int:
        weight, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            weight += 1
            if isinstance(item, str):
                if len(item) > MAX_TEXT_CHARS:
                    raise OverflowError(f"it makes a text of over {MAX_TEXT_CHARS:,} characters")
                weight += len(item) // 40
            elif isinstance(item, dict):
                waiting += (*item.keys(), *item.values())
            elif isinstance(item, list | tuple):
                waiting += item
            if weight + len(waiting) > 10 * MAX_STEPS:
                raise OverflowError("it makes a list that is too long")
        return weight

    def write(self, value: Any) -> str:
        """Return ``value`` as it is written out."""
        return str(self.hold(str(self.hold(value))))

    def join(self, *values: Any) -> str:
        """Return the result of the operator ``~``."""
        return str(self.hold("".join(map(self.write, values))))

    def product(self, *values: Any) -> None:
        """Check the size of a text that is the product of these arguments' lengths."""
        product = 1
        for value in values:
            self.hold(value)
            parts = value if isinstance(value, list | tuple) else (value,)
            product *= max(1, sum(abs(p) if isinstance(p, int) else _length(p) for p in parts))
        if product > 100 * MAX_TEXT_CHARS:
            raise OverflowError(f"it makes a text of over {MAX_TEXT_CHARS:,} characters")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 1
