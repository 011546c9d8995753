"""Whatever is said of a call, in whatever order, by however many, it runs at most once, and only as
it was shown."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from mlx_tools import (
    Answered,
    ApprovalAnswer,
    Controller,
    Conversation,
    Outcome,
    Paused,
    Policy,
    Tool,
    ToolSpec,
    TranscriptStore,
)
from mlx_tools.errors import MlxToolsError
from mlx_tools.store.transcript import load
from mlx_tools.testing import ScriptedBackend
from mlx_tools.tools import Preview, ToolError, current_context
from mlx_tools.transcript.records import EditRecord, PauseRecord, Record

TEXTS = st.sampled_from(["a", "b", "c"])
CALLS = st.sampled_from(["c1", "c2"])


class Approvals(RuleBasedStateMachine):
    """Two calls wait. What a person approves is a text for a target that others change too."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.folder = Path(self.home.name) / "sessions"
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.target = 0
        self.deny: tuple[str, ...] = ()
        self.ran: list[tuple[str, str, int]] = []
        """The call, its text, and what the target was: of each call that ran."""
        self.approved: list[tuple[str, str, int]] = []
        self.shown: dict[str, tuple[str, str, int]] = {}
        self.outcome: Outcome | None = None
        self.held: Conversation | None = None

    def teardown(self) -> None:
        if self.held is not None:
            self.held.close()
        self.home.cleanup()

    # --- what runs ---

    def tools(self) -> list[Tool]:
        def preview(arguments: Mapping[str, Any]) -> Preview:
            return Preview(f"{arguments['text']} on {self.target}", str(self.target))

        def put(arguments: Mapping[str, Any]) -> str:
            if current_context().expected != str(self.target):
                raise ToolError("has changed", code="not_allowed")
            self.ran.append((arguments["key"], arguments["text"], self.target))
            return "put"

        spec = ToolSpec(
            "put",
            "Puts.",
            {
                "type": "object",
                "properties": {"key": {"type": "string"}, "text": {"type": "string"}},
                "required": ["key", "text"],
            },
            frozenset({"write"}),
            needs_approval=True,
        )
        return [Tool(spec, put, preview=preview)]

    def controller(self, *lines: str) -> Controller:
        return Controller(
            ScriptedBackend(*lines),
            self.tools(),
            Policy(allow=["*"], ask_effects=(), deny=self.deny),
            store=TranscriptStore(self.folder),
            now=lambda: self.now,
        )

    @initialize()
    def ask(self) -> None:
        lines = (
            json.dumps({"type": "tool_call", "name": "put", "arguments": {"key": key, "text": "a"}})
            for key in ("c1", "c2")
        )
        self.take(self.controller("\n".join(lines)).run_sync("Do both."))

    def take(self, outcome: Outcome) -> None:
        """Notes what is shown to a person: the calls that wait, as they would run now."""
        self.outcome = outcome
        if isinstance(outcome, Paused):
            for call in outcome.pending:
                self.shown[call.call_id] = (
                    call.arguments["key"],
                    call.arguments["text"],
                    self.target,
                )

    def resume(self, said: Mapping[str, ApprovalAnswer], lines: Iterable[str] = ()) -> None:
        assert self.outcome is not None
        done = json.dumps({"type": "final_answer", "content": "done"})
        session = self.outcome.session

        async def go() -> Outcome:
            return await self.controller(done).resume(session, approvals=said or None)

        before, asked = len(self.ran), self.pauses()
        try:
            self.take(anyio.run(go))
        except MlxToolsError:
            assert len(self.ran) == before
            if len(self.pauses()) > len(asked):  # it was asked anew, as things are now
                edited = {r.call: r.arguments for r in self.records() if isinstance(r, EditRecord)}
                for call in self.pauses()[-1].calls:
                    key, text, _ = self.shown[call]
                    self.shown[call] = (key, edited.get(call, {"text": text})["text"], self.target)

    def records(self) -> list[Record]:
        assert self.outcome is not None
        return load(Path(self.outcome.transcript or ""))

    def pauses(self) -> list[PauseRecord]:
        return [record for record in self.records() if isinstance(record, PauseRecord)]

    # --- what may happen ---

    @rule(call=CALLS)
    def approve(self, call: str) -> None:
        self.approved.append(self.shown[call])
        self.resume({call: ApprovalAnswer(True)})

    @rule()
    def approve_both(self) -> None:
        self.approved += self.shown.values()
        self.resume({call: ApprovalAnswer(True) for call in self.shown})

    @rule(call=CALLS)
    def approve_with_another_digest(self, call: str) -> None:
        before = list(self.ran)
        self.resume({call: ApprovalAnswer(True, digest="f" * 64)})
        assert self.ran == before

    @rule(call=CALLS)
    def deny_it(self, call: str) -> None:
        before = list(self.ran)
        self.resume({call: ApprovalAnswer(False, "no")})
        assert self.ran == before

    @rule(call=CALLS, text=TEXTS)
    def edit(self, call: str, text: str) -> None:
        self.approved.append((call, text, self.target))
        self.resume({call: ApprovalAnswer(True, arguments={"key": call, "text": text})})

    @rule()
    def resume_only(self) -> None:
        before = list(self.ran)
        self.resume({})
        assert self.ran == before

    @rule()
    def the_target_changes(self) -> None:
        self.target += 1

    @rule(days=st.integers(1, 10))
    def time_passes(self, days: int) -> None:
        self.now += timedelta(days=days)

    @rule(days=st.integers(1, 400))
    def the_clock_is_set_back(self, days: int) -> None:
        self.now -= timedelta(days=days)

    @rule(deny=st.sampled_from([(), ("other_*",), ("put",)]))
    def the_policy_changes(self, deny: tuple[str, ...]) -> None:
        self.deny = deny

    @precondition(lambda self: self.held is None)
    @rule()
    def another_process_holds_it(self) -> None:
        assert self.outcome is not None
        with contextlib.suppress(MlxToolsError):
            self.held = self.controller().reopen(self.outcome.session)

    @precondition(lambda self: self.held is not None)
    @rule()
    def the_other_process_ends(self) -> None:
        assert self.held is not None
        self.held.close()
        self.held = None

    # --- what always holds ---

    @invariant()
    def each_call_runs_at_most_once_and_only_as_approved(self) -> None:
        keys = [key for key, _, _ in self.ran]
        assert len(keys) == len(set(keys))
        assert set(self.ran) <= set(self.approved)

    @invariant()
    def an_answer_means_that_all_calls_are_decided(self) -> None:
        if isinstance(self.outcome, Answered):
            assert all(call.status in ("ok", "denied", "error") for call in self.outcome.calls)


TestApprovals = Approvals.TestCase
TestApprovals.settings = settings(stateful_step_count=15)
