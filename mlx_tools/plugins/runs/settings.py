"""The settings of this plugin."""

import base64
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, field

from mlx_tools.app import Section, Setting, hookimpl
from mlx_tools.errors import UsageError

_Key = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,4000}\Z")]


def _webhooks(value: Mapping[str, str]) -> None:
    from mlx_tools.toolbox import UrlRefused, read_url

    try:
        if any(read_url(text).path != "/" for text in value):
            raise UsageError("an origin has no path")
    except UrlRefused as error:
        raise UsageError(str(error)) from None
    for secret in value.values():
        signing_key(secret)


def signing_key(secret: str) -> bytes:
    """Return the bytes of a key for webhooks.

    Raises:
        UsageError: it is no such key.
    """
    kind, _, text = secret.partition("_")
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if kind != "whsec" or not 24 <= len(key) <= 64:
        raise UsageError("it is no key for webhooks")
    return key


class RunsSettings(Section, frozen=True):
    webhooks: Annotated[
        dict[str, _Key],
        Setting(
            "never",
            "Origins that clients may name for webhooks about waiting and finished runs, each with "
            "the key that signs these webhooks",
            allowed='a table such as { "https://hooks.example.org" = "whsec_…" }, each key whsec_ '
            "and 24 to 64 bytes in base64",
            test=_webhooks,
            secret=True,
        ),
    ] = field(default_factory=dict)


@hookimpl
def settings() -> dict[str, type[Section]]:
    """Return the table ``runs``."""
    return {"runs": RunsSettings}
