"""What an approval binds to: a keyed digest of exactly what was shown.

The key is kept outside the transcript, so nobody who can only write transcripts can forge an
approval, or give a session another policy.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSubject:
    """All that an approval of a call binds to.

    ``call`` is the call's key in the transcript of ``session``, ``tool`` the digest of the tool's
    spec, ``policy`` that of the policy in force. ``state`` identifies what the call would act on,
    such as the present content of a file; empty where the tool cannot tell. ``expires_at`` is until
    when the approval can be given.
    """

    session: str
    call: str
    name: str
    arguments: Mapping[str, Any]
    tool: str
    policy: str
    state: str = ""
    expires_at: str = ""


def approval_digest(secret: bytes, shown: ApprovalSubject) -> str:
    """The digest that an approval must carry: 64 hexadecimal digits, keyed with ``secret``. It
    changes with anything in ``shown``."""
    return _keyed(secret, "call", {**asdict(shown), "arguments": dict(shown.arguments)})


def approval_seal(secret: bytes, record: Mapping[str, Any]) -> str:
    """What shows that a person said so, of an approval's record as JSON without its own ``seal``: a
    denial cannot be turned into an approval, nor an approval of one call into one for the
    session."""
    return _keyed(secret, "approval", dict(record))


def pause_seal(secret: bytes, record: Mapping[str, Any]) -> str:
    """What shows that a pause, given as JSON without its own ``seal``, is as it was written."""
    return _keyed(secret, "pause", dict(record))


def header_seal(secret: bytes, header: Mapping[str, Any]) -> str:
    """What shows that a session's header, given as JSON, is the one it was begun with. The header's
    own ``seal`` is left out."""
    return _keyed(secret, "header", {k: v for k, v in header.items() if k != "seal"})


def same(digest: str, other: str) -> bool:
    """Whether two digests are the same, in a time that does not tell where they differ."""
    one, two = (text.encode(errors="surrogatepass") for text in (digest, other))
    return hmac.compare_digest(one, two)


def _keyed(secret: bytes, kind: str, value: Any) -> str:
    text = json.dumps([kind, value], sort_keys=True, separators=(",", ":"))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
