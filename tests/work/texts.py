"""Programs, documents and tables that tasks are about."""

from __future__ import annotations

from typing import Final

READ: Final = {"operation": "read"}
LIST: Final = {"operation": "list"}


def program(lines: int, name: str = "part") -> str:
    """A program of so many lines, no two of them alike."""
    body = (f"    total += {number} * factor  # {name} {number}\n" for number in range(lines - 3))
    return f"def {name}(factor):\n    total = 0\n{''.join(body)}    return total\n"


def pages(count: int) -> str:
    """A document of pages of 40 lines."""
    return "".join(
        f"Page {page}\n"
        + "".join(f"Paragraph {page}.{line} is about item {page * line}.\n" for line in range(39))
        for page in range(1, count + 1)
    )


DOCUMENT: Final = pages(100)
MODULES: Final = {
    f"shop/m{n}.py": f"from shop import old_name\n\nprint(old_name({n}))\n" for n in range(5)
}
SETTINGS: Final = "host = local\r\nport = 80\r\ndebug = no\r\n"
SALES: Final = "".join(f"2026-{month:02},{month * 10}\n" for month in range(1, 13))
ORDERS: Final = "order,amount\n" + "".join(f"{n},{n * 3 % 97}\n" for n in range(2_000))
ORDERS_SUM: Final = sum(n * 3 % 97 for n in range(2_000))
