"""What an approval binds to: a keyed digest of exactly what was shown."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any


def approval_digest(
    secret: bytes,
    *,
    session: str,
    call: str,
    name: str,
    arguments: Mapping[str, Any],
    policy_hash: str,
) -> str:
    """The digest that an approval of this call must carry: 64 hexadecimal digits.

    It is keyed with ``secret``, which is kept outside the transcript, so nobody who can only write
    transcripts can forge an approval. It changes with the tool, its arguments, the policy, the
    session and the call.
    """
    shown = json.dumps(
        [session, call, name, dict(arguments), policy_hash], sort_keys=True, separators=(",", ":")
    )
    return hmac.new(secret, shown.encode(), hashlib.sha256).hexdigest()
