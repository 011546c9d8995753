"""Keyed digests, which show that a record is as it was written.

The key is kept outside the transcript, so nobody who can only write transcripts can forge an
approval, or give a session another policy. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final, Literal

_compact: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def seal(
    secret: bytes, kind: Literal["approval", "call", "header", "pause"], record: Mapping[str, Any]
) -> str:
    """The keyed digest of a record, given as JSON: 64 hexadecimal digits; its own ``seal`` is left
    out.

    So a denial cannot be turned into an approval, nor an approval of one call into one for the
    session, and a session keeps the header that it was begun with.
    """
    plain = {key: value for key, value in record.items() if key != "seal"}
    return hmac.new(secret, _compact([kind, plain]).encode(), hashlib.sha256).hexdigest()


def same(digest: str, other: str) -> bool:
    """Return whether two digests are the same, in a time that does not tell where they differ."""
    one, two = (text.encode(errors="surrogatepass") for text in (digest, other))
    return hmac.compare_digest(one, two)
