"""What a chat template may still do while it is rendered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MAX_TEXT_CHARS: Final = 200_000
MAX_NUMBER: Final = 1_000_000
MAX_STEPS: Final = 100_000


class Budget:
    """How much a rendering may still do: a step for each call, loop and output, and for each ten
    items or four hundred characters that are handled."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def refill(self) -> None:
        """Starts anew, for the next rendering."""
        self.left = MAX_STEPS

    def step(self, count: int = 1) -> str:
        """Takes steps off the budget. Raises `OverflowError` where it is used up."""
        self.left -= count
        if self.left < 0:
            raise OverflowError(f"it takes more than {MAX_STEPS:,} steps")
        return ""

    def hold(self, value: Any) -> Any:
        """``value``, unless it is too large to go on with."""
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
        """``value`` as it is written out."""
        return str(self.hold(str(self.hold(value))))

    def join(self, *values: Any) -> str:
        """What the operator ``~`` gives."""
        return str(self.hold("".join(map(self.write, values))))

    def product(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Calls what gives a text of at most the product of its arguments' lengths."""
        product = 1
        for value in (*values, *named.values()):
            self.hold(value)
            parts = value if isinstance(value, list | tuple) else (value,)
            product *= max(1, sum(abs(p) if isinstance(p, int) else _length(p) for p in parts))
        if product > 100 * MAX_TEXT_CHARS:
            raise OverflowError(f"it makes a text of over {MAX_TEXT_CHARS:,} characters")
        return self.hold(function(*values, **named))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 1
