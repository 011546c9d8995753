"""What a run and an approval are bound to: the access list of a run, and keyed digests.

A run writes down the policy, the tools and the configuration that it began with. Before each call
the list is read back and held to what is so now. A list that is not there, cannot be read or says
anything else lets no call run: it can take access away, and never give it. Pure: the list is kept
by `mlx_tools.store.session_store`.

The key of the digests is kept outside the transcript, so nobody who can only write transcripts can
forge an approval, or give a session another policy.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from mlx_tools.messages import ToolSpec
from mlx_tools.policy.decision import Decision

_compact: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessList:
    """What a run began with.

    ``policy`` is the policy's digest, ``tools`` the hashes of the specs by name, ``configuration``
    a fingerprint for each place where a configuration file is, or might be.
    """

    session: str
    policy: str
    tools: Mapping[str, str]
    configuration: Mapping[str, str]

    @classmethod
    def of(
        cls,
        session: str,
        policy_hash: str,
        specs: Iterable[ToolSpec],
        configuration: Mapping[str, str],
    ) -> AccessList:
        """The list of a run that begins now."""
        tools = {spec.name: spec.digest() for spec in specs}
        return cls(
            session=session, policy=policy_hash, tools=tools, configuration=dict(configuration)
        )

    def write(self) -> bytes:
        """The list as a file holds it; `read` reads it back."""
        return _compact({"version": _VERSION, **asdict(self)}).encode() + b"\n"

    @classmethod
    def read(cls, data: bytes) -> AccessList:
        """The list that `write` wrote. Raises ValueError for anything else."""
        try:
            value = json.loads(data)
            found = cls(**{key: value[key] for key in cls.__slots__})
            texts = (
                *(found.session, found.policy),
                *(*found.tools.values(), *found.configuration.values()),
            )
            sound = all(text and isinstance(text, str) for text in texts)
            if sound and found.write() == data:
                return found
        except (TypeError, KeyError, AttributeError, RecursionError):
            pass
        raise ValueError


def refused(
    listed: AccessList,
    session: str,
    spec: ToolSpec,
    *,
    policy_hash: str,
    configuration: Mapping[str, str],
) -> Decision | None:
    """Return why a call of this tool may not run, by the list that was read back; None where it
    may.

    ``session``, ``policy_hash`` and ``configuration`` are those of now.
    """
    if listed.session != session:
        return refusal("the access list is that of another session")
    if listed.policy != policy_hash:
        return refusal("the policy is not the one that the run began with")
    if spec.name not in listed.tools:
        return refusal(f"{spec.name} was no tool of this run when it began")
    if listed.tools[spec.name] != spec.digest():
        return refusal(f"{spec.name} has changed since the run began")
    for place in sorted({*listed.configuration, *configuration}):
        if listed.configuration.get(place) != configuration.get(place):
            return refusal(f"the configuration has changed since the run began: {place}")
    return None


def refusal(reason: str) -> Decision:
    """Return what becomes of a call that the access list does not let run."""
    return Decision("deny", "access_list", reason, "not_allowed")


# --- keyed digests -------------------------------------------------------------------------------


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
    return seal(secret, "call", {**asdict(shown), "arguments": dict(shown.arguments)})


def seal(
    secret: bytes, kind: Literal["approval", "call", "header", "pause"], record: Mapping[str, Any]
) -> str:
    """Return what shows that a record, given as JSON, is as it was written; its own ``seal`` is
    left out.

    So a denial cannot be turned into an approval, nor an approval of one call into one for the
    session, and a session keeps the header that it was begun with.
    """
    plain = {key: value for key, value in record.items() if key != "seal"}
    return hmac.new(secret, _compact([kind, plain]).encode(), hashlib.sha256).hexdigest()


def same(digest: str, other: str) -> bool:
    """Return whether two digests are the same, in a time that does not tell where they differ."""
    one, two = (text.encode(errors="surrogatepass") for text in (digest, other))
    return hmac.compare_digest(one, two)
