"""The access list of a run: what was so when the run began, and must be so at every call.

A run writes down the policy, the tools and the configuration that it began with. Before each call
the list is read back and held to what is so now. A list that is not there, cannot be read or says
anything else lets no call run: it can take access away, and never give it. Pure: the list is kept
by `mlx_tools.store.access_file`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.messages import ToolSpec
from mlx_tools.policy.rules import Decision

_compact: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
_VERSION: Final = 1
_KEYS: Final = frozenset(("version", "session", "policy", "tools", "configuration"))


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
        return cls(
            session=session,
            policy=policy_hash,
            tools={spec.name: spec.digest() for spec in specs},
            configuration=dict(configuration),
        )

    def write(self) -> bytes:
        """The list as a file holds it; `read` reads it back."""
        value = {
            "version": _VERSION,
            "session": self.session,
            "policy": self.policy,
            "tools": dict(self.tools),
            "configuration": dict(self.configuration),
        }
        return _compact(value).encode() + b"\n"

    @classmethod
    def read(cls, data: bytes) -> AccessList:
        """The list that `write` wrote. Raises ValueError for anything else."""
        try:
            value = json.loads(data)
        except RecursionError:
            raise ValueError from None
        if not isinstance(value, dict) or value.keys() != _KEYS or value["version"] != _VERSION:
            raise ValueError
        found = cls(
            session=_text(value["session"]),
            policy=_text(value["policy"]),
            tools=_texts(value["tools"]),
            configuration=_texts(value["configuration"]),
        )
        if found.write() != data:
            raise ValueError
        return found


def refused(
    listed: AccessList,
    session: str,
    spec: ToolSpec,
    *,
    policy_hash: str,
    configuration: Mapping[str, str],
) -> Decision | None:
    """Why a call of this tool may not run, by the list that was read back; None where it may.

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
    """What becomes of a call that the access list does not let run."""
    return Decision("deny", "access_list", reason, "not_allowed")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError
    return {name: _text(text) for name, text in value.items()}
