"""Asks what a file of results does not hold yet, one item after the other, and writes down each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, Protocol

from mlx_tools.app.proposal import Proposal
from mlx_tools.backends import DEFAULT_STYLE, FoundVerdict
from mlx_tools.controller.run_settings import RunSettings
from mlx_tools.errors import BackendError, BackendRefused, BackendTimeout
from mlx_tools.evaluate.bfcl_data import BfclItem
from mlx_tools.evaluate.bfcl_score import score
from mlx_tools.evaluate.results_file import Key, Results
from mlx_tools.messages import ToolCall, ToolSpec
from mlx_tools.policy import Limits
from mlx_tools.store import words_digest

REFUSALS: Final = 3
"""So many refusals in a row are the server's state, and no longer the items'."""

Ask = Callable[[], Awaitable[Mapping[str, Any]]]


class Propose(Protocol):
    """What is measured: anything that says what a model would do, as `Proposer` does."""

    async def __call__(
        self,
        question: str,
        tools: Mapping[str, ToolSpec],
        *,
        history: Sequence[Mapping[str, str]] = (),
        context: str = "",
    ) -> Proposal: ...


async def run_all(
    todo: Sequence[tuple[Key, Ask]],
    results: Results,
    step: Callable[[], None] = lambda: None,
) -> list[Mapping[str, Any]]:
    """The results of all keys, in order: those that are there, and the others asked for.

    A completion that takes too long is a result without calls, and so is one that the server
    refuses (a prompt too long for it, say) while it takes others. Any other failure of the backend
    is raised, with everything before it written down.
    """
    found: dict[Key, Mapping[str, Any]] = {}
    refused: list[tuple[Key, BackendError]] = []

    def take_refused() -> None:
        for key, error in refused:
            found[key] = results.add(key, failed("refused", str(error)))
        refused.clear()

    for key, ask in todo:
        known = results.get(key)
        if known is None:
            try:
                known = results.add(key, await ask())
            except BackendTimeout as error:
                known = results.add(key, failed("timeout", str(error)))
            except BackendRefused as error:
                refused.append((key, error))
                if len(refused) >= REFUSALS:
                    raise
        if known is not None:
            found[key] = known
            take_refused()
        step()
    if refused and not found:
        raise refused[-1][1]
    take_refused()
    return [found[key] for key, _ in todo]


def failed(error: str, message: str) -> dict[str, Any]:
    """The result of an item that the backend failed: no calls, no answer."""
    return {"correct": False, "valid": False, "error": error, "message": message, "calls": []}


def described(settings: RunSettings, limits: Limits, **more: Any) -> dict[str, Any]:
    """All that results depend on besides question and strategy, as JSON: a file of results is of
    these settings. ``prompts`` is a digest of the words that the model reads."""
    given = {one.name: getattr(settings, one.name) for one in fields(settings)}
    kind = settings.backend.get("kind")
    for name in ("backend", "roots", "strategy", "require_tools", "verdict"):
        given.pop(name, None)
    if settings.chat_format is not None:
        given["chat_format"] = settings.chat_format.to_json()
    if settings.style == "auto":
        known = settings.verdict or FoundVerdict()
        given["style"] = known.verdict.style if known.verdict is not None else DEFAULT_STYLE
    digest = words_digest()
    return given | {"backend": kind, "limits": limits.to_json(), "prompts": digest} | more


# --- BFCL -------------------------------------------------------------------------------------


async def run_bfcl(
    items: Sequence[BfclItem],
    proposers: Mapping[str, Propose],
    results: Results,
    step: Callable[[], None] = lambda: None,
) -> list[Mapping[str, Any]]:
    """The results of all items by all proposers, which are named by their strategy.

    One strategy after the other, so that none finds prompts in the server's cache that another
    left there a moment ago.
    """
    todo = [
        (Key(item.category, item.id, strategy), _asking(item, propose))
        for strategy, propose in proposers.items()
        for item in items
    ]
    return await run_all(todo, results, step)


def _asking(item: BfclItem, propose: Propose) -> Ask:
    async def ask() -> Mapping[str, Any]:
        return await ask_bfcl(item, propose)

    return ask


async def ask_bfcl(item: BfclItem, propose: Propose) -> dict[str, Any]:
    """One item's result.

    ``correct`` is by BFCL's rules. ``valid`` is the proposal's, and where a call is due one must be
    there.
    """
    proposal = await propose(item.question, item.tools, history=item.history, context=item.context)
    verdict = score(item.category, item.functions, proposal.calls, item.answers)
    due = "irrelevance" not in item.category
    return {
        "correct": verdict.correct,
        "valid": proposal.valid and (bool(proposal.calls) or not due),
        "fault": verdict.fault,
        "where": verdict.where,
        "answered": proposal.answered,
        "error": proposal.error,
        "used": proposal.strategy,
        "calls": [_call(call) for call in proposal.calls],
        "completion": proposal.completion,
        "requests": proposal.requests,
        "prompt_tokens": proposal.usage.prompt_tokens,
        "cached_tokens": proposal.usage.cached_tokens,
        "completion_tokens": proposal.usage.completion_tokens,
        "pieces": proposal.pieces,
        "seconds": round(proposal.seconds, 3),
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": dict(call.arguments), "repairs": list(call.repairs)}
