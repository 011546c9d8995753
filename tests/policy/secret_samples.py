"""Secrets made by rule: the right prefix, alphabet and length, drawn by a seeded generator.

None stands in the repository as it is, so that no scanner takes a test for a leak.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from random import Random
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import Any, Final

from mlx_tools.policy.secret_kinds import TABLE

ALNUM: Final = ascii_letters + digits
HEX: Final = digits + "abcdef"
URL: Final = ALNUM + "-_"
UPPER: Final = ascii_uppercase + digits
LOWER: Final = ascii_lowercase + digits

UNLIKE: Final = {"azure_client_secret", "azure_service_key", "sentry_token", "typeform_token"}
"""Kinds whose drawn lines may end in what no such token ends in."""

ALPHABETS: Final = {
    "digit": digits,
    "hex": HEX,
    "upper": UPPER,
    "lower": LOWER,
    "alnum": ALNUM,
    "url": URL,
    "base64": ALNUM + "+/",
}
"""Those that a line of the table names."""

Make = Callable[[Random], str]


def drawn(random: Random, alphabet: str, size: int) -> str:
    return "".join(random.choices(alphabet, k=size))


def filled(line: str, random: Random) -> str:
    """A line of the table, with drawn characters where it names an alphabet."""
    return re.sub(
        r"\{([a-z0-9]+):([0-9]+)\}",
        lambda found: drawn(random, ALPHABETS[found[1]], int(found[2])),
        line.replace("{uuid}", "{hex:8}-{hex:4}-{hex:4}-{hex:4}-{hex:12}"),
    )


def pem(random: Random, name: str = "RSA PRIVATE KEY", lines: int = 12) -> str:
    """A block as of a private key, with random lines."""
    body = "\n".join(drawn(random, ALNUM + "+/", 64) for _ in range(lines))
    dashes = "-" * 5
    last = f"{drawn(random, ALNUM, 22)}==\n{dashes}END {name}{dashes}"
    return f"{dashes}BEGIN {name}{dashes}\n{body}\n{last}"


def _bare(entry: dict[str, Any]) -> str:
    """The first line of an entry of the table that is the secret and nothing else."""
    held: str | list[str] = entry["finds"]
    return next((one for one in ([held] if isinstance(held, str) else held) if " " not in one), "")


TOKENS: Final[dict[str, Make]] = {
    entry["kind"]: partial(filled, line)
    for entry in reversed(TABLE["tokens"])
    if (line := _bare(entry)) and entry["kind"] not in UNLIKE
}
"""By the kind that each is to be found as."""


ASSIGNED: Final[tuple[str, ...]] = (
    *('password = "{}"', "DB_PASSWORD={}", "export API_KEY={}", '{{"client_secret": "{}"}}'),
    *("api_key: '{}'", "Authorization: Bearer {}", "curl -H 'X-Api-Key: {}' example.com"),
    *("https://example.com/?token={}&page=2", "postgres://app:{}@db.internal:5432/app"),
    *("Server=db;User Id=app;Password={};", "--access-token {}", "<secret>{}</secret>"),
    *("Cookie: theme=dark; sessionid={}", "GITLAB_CREDENTIALS := {}"),
)
"""Places of a value that only its surroundings show to be secret."""


def value(random: Random) -> str:
    """A text of letters and digits, which no shape betrays."""
    return drawn(random, ALNUM, 20) + drawn(random, digits, 2) + drawn(random, ALNUM, 8)


SURROUNDINGS: Final = (
    *("{}", "x {} y", '"{}"', "a={},", "({})", "\x1b[31m{}\x1b[0m", "see {}.\n", "`{}`"),
)
