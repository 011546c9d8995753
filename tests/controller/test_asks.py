"""A call that writes or runs a program asks a person first: by its effects, whatever tool it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import (
    Answered,
    ApprovalAnswer,
    ApprovalRequest,
    ApproveAlways,
    Controller,
    Paused,
    Policy,
    TranscriptStore,
    builtin_tools,
    tool,
)
from mlx_tools.errors import UsageError
from mlx_tools.plugins.folders.collection import ToolCollection
from mlx_tools.plugins.folders.definition import read_folder
from mlx_tools.plugins.folders.offers import list_folder_offers
from mlx_tools.store.transcript import load
from mlx_tools.testing import ScriptedApprover, ScriptedBackend, answer, call
from mlx_tools.tools import Registry, ToolContext, ToolOffer
from mlx_tools.transcript.events import (
    CallDecided,
    CallEdited,
    Finished,
    ToolEnded,
    ToolStarted,
    WouldChange,
)
from mlx_tools.transcript.outcome import Outcome
from mlx_tools.transcript.records import ApprovalRecord, DecisionRecord
from tests.controller.sessions import collect_events, read_records, resume_session
from tests.folders.tool_folders import make_folder

LEAVES = """
from pathlib import Path

def execute(arguments):
    Path(arguments["path"]).write_text("changed")
    return {}
"""
KEY = "AKIA" + "IOSFODNN7EXAMPLQ"
PATH = {"type": "object", "properties": {"path": {"type": "string"}}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "a.txt").write_text("as it was")
    return folder


def registry(root: Path) -> Registry:
    """The built-in tools, two functions, a package's tool and a folder's."""

    def changing(path: str) -> str:
        """Writes."""
        Path(path).write_text("changed")
        return "done"

    made = builtin_tools([f"{root}:rw"], notes=root / "notes")
    made.add(tool(changing, name="undeclared"))
    made.add(tool(changing, name="declared", effects={"write"}))
    packaged = tool(changing, name="packaged", effects={"execute"})
    made.with_entry_points(lambda: [ToolOffer("package", "packaged", lambda: packaged)])
    collection = ToolCollection(root.parent)
    if not collection.folder.exists():
        folder = make_folder(root.parent / "made", "folded", LEAVES, PATH)
        (folder / "config.json").write_text("{}")
        collection.add(read_folder(folder))
    return made.with_offers(list_folder_offers(collection))


CHANGING = {
    "file_access write": ("file_access", {"operation": "write", "path": "a.txt", "content": "x"}),
    "file_access delete": ("file_access", {"operation": "delete", "path": "a.txt"}),
    "create_file": ("create_file", {"path": "b.txt", "content": "x"}),
    "notes_create": ("notes_create", {"title": "t", "content": "x"}),
    "undeclared": ("undeclared", {}),
    "declared": ("declared", {}),
    "package": ("packaged", {}),
    "folder": ("folded", {}),
}
OWN = ("undeclared", "declared", "packaged", "folded")


@pytest.fixture(params=CHANGING)
def changing(request: pytest.FixtureRequest, root: Path) -> str:
    name, arguments = CHANGING[request.param]
    more = {"path": str(root / "a.txt")} if name in OWN else {}
    return call(name, **arguments, **more)


def tree(root: Path) -> Mapping[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def run(root: Path, *lines: str, **given: Any) -> Outcome:
    given = {"policy": Policy(allow=["*"]), **given}
    store = TranscriptStore(root.parent / "sessions")
    return Controller(ScriptedBackend(*lines), registry(root), store=store, **given).run_sync("Go.")


def test_what_changes_things_waits_for_a_person_whichever_tool_it_is(
    root: Path, changing: str
) -> None:
    before = tree(root)
    outcome = run(root, changing, answer())
    assert isinstance(outcome, Paused) and outcome.exit_code == 4
    assert tree(root) == before
    by_name = Policy(allow=[json.loads(changing)["name"]])
    assert isinstance(run(root, changing, answer(), policy=by_name), Paused)
    assert tree(root) == before


def test_always_approving_lets_it_through_and_that_is_recorded(root: Path, changing: str) -> None:
    before = tree(root)
    outcome = run(root, changing, answer(), approver=ApproveAlways())
    assert isinstance(outcome, Answered), outcome
    assert [c.status for c in outcome.calls] == ["ok"] and tree(root) != before
    (said,) = read_records(outcome, ApprovalRecord)
    assert said.reason == "always approved" and set(said.effects) & {"write", "execute"}


def test_nothing_standing_lets_a_repaired_call_through(root: Path, changing: str) -> None:
    before, repaired = tree(root), changing[:-1] + ",}"
    unasked = Policy(allow=["*"], ask_effects=())
    assert isinstance(run(root, repaired, policy=unasked, approver=ApproveAlways()), Paused)
    assert tree(root) == before


def test_what_lets_a_call_through_is_in_its_decision(root: Path, changing: str) -> None:
    outcome = run(root, changing, answer(), policy=Policy(allow=["*"], ask_effects=()))
    (decision,) = read_records(outcome, DecisionRecord)
    if decision.rule == "needs_approval":  # whatever the policy says of effects
        assert isinstance(outcome, Paused) and "create_file" in changing
        return
    assert isinstance(outcome, Answered) and decision.decision == "allow"
    assert "to write" in decision.reason or "run programs" in decision.reason


@pytest.mark.parametrize("preset", ["workspace", "notes"])
def test_no_preset_lets_anything_write_unasked(root: Path, preset: str) -> None:
    name = "file_access write" if preset == "workspace" else "notes_create"
    before = tree(root)
    tool_name, arguments = CHANGING[name]
    outcome = run(root, call(tool_name, **arguments), policy=Policy(preset=preset))
    assert isinstance(outcome, Paused) and tree(root) == before


def test_an_approval_is_void_once_the_file_has_changed(root: Path) -> None:
    store = TranscriptStore(root.parent / "sessions")
    write = call("file_access", operation="write", path="a.txt", content="new")

    def controller(*lines: str) -> Controller:
        policy = Policy(allow=["file_access"])
        return Controller(ScriptedBackend(*lines), registry(root), policy, store=store)

    first = controller(write).run_sync("Go.")
    second = controller(write).run_sync("Go.")
    assert isinstance(first, Paused) and isinstance(second, Paused)
    (root / "a.txt").write_text("changed by somebody")
    with pytest.raises(UsageError, match="has changed since it was shown"):
        resume_session(controller(answer()), first.session, True)
    assert (root / "a.txt").read_text() == "changed by somebody"
    (root / "a.txt").write_text("as it was")
    assert isinstance(resume_session(controller(answer()), second.session, True), Answered)
    assert (root / "a.txt").read_text() == "new"


class Edits:
    """Puts other arguments into each call once it has seen what that would change; ``meanwhile``
    happens after the first look."""

    def __init__(self, path: str, meanwhile: Callable[[], object] = bool) -> None:
        self.arguments = {"operation": "write", "path": path, "content": "new"}
        self.meanwhile = meanwhile
        self.shown: list[str] = []

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        (one,) = requests
        assert one.preview_edit is not None and one.arguments["path"] == "a.txt"
        with pytest.raises(UsageError, match="do not fit file_access"):
            await one.preview_edit({"operation": "burn", "path": "a.txt"})
        seen = await one.preview_edit(self.arguments)
        self.shown.append(seen.preview)
        if len(self.shown) == 1:
            self.meanwhile()
        return [ApprovalAnswer(True, arguments=self.arguments, digest=seen.digest)]


def edited(root: Path, approver: Edits) -> Outcome:
    (root / "b.txt").write_text("b")
    write = call("file_access", operation="write", path="a.txt", content="x")
    return run(root, write, answer(), approver=approver)


def test_what_an_edited_call_would_change_is_told_before_it_is_approved(root: Path) -> None:
    approver = Edits("b.txt")
    outcome = edited(root, approver)
    assert isinstance(outcome, Answered) and outcome.calls[0].arguments == approver.arguments
    assert approver.shown[0].startswith("--- b.txt\n+++ b.txt\n@@ -1 +1 @@\n-b\n")
    assert (root / "b.txt").read_text() == "new" and (root / "a.txt").read_text() == "as it was"


def test_new_arguments_are_an_event_before_the_call_runs(root: Path) -> None:
    (root / "b.txt").write_text("b")
    approver = Edits("b.txt")
    write = call("file_access", operation="write", path="a.txt", content="x")
    allowed, tools = Policy(allow=["*"]), registry(root)
    made = Controller(ScriptedBackend(write, answer()), tools, allowed, approver=approver)
    happened = collect_events(made)
    (edit,) = (event for event in happened if isinstance(event, CallEdited))
    assert (edit.name, edit.arguments) == ("file_access", approver.arguments)
    kinds = [type(event) for event in happened]
    assert kinds.index(CallEdited) < kinds.index(ToolStarted)


def test_an_edited_call_that_is_no_longer_what_was_shown_is_asked_about_again(root: Path) -> None:
    approver = Edits("b.txt", lambda: (root / "b.txt").write_text("somebody's"))
    assert isinstance(edited(root, approver), Answered)
    assert ["-b\n" in shown for shown in approver.shown] == [True, False]
    assert "-somebody's\n" in approver.shown[1]


def test_a_dry_run_tells_the_change_that_an_approval_would_show(root: Path) -> None:
    (root / "a.txt").write_text("as it was\n")
    write = call("file_access", operation="write", path="a.txt", content="new\n")
    delete = call("file_access", operation="delete", path="a.txt")
    policy = Policy(allow=["*"], dry_run=True)
    made = Controller(ScriptedBackend(write, delete, answer()), registry(root), policy)
    happened = collect_events(made)
    previews = [event.preview for event in happened if isinstance(event, WouldChange)]
    assert previews[0] == "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-as it was\n+new"
    assert "-as it was" in previews[1] and "+++ /dev/null" in previews[1]
    assert [e.rule for e in happened if isinstance(e, CallDecided)] == ["dry_run", "dry_run"]
    ends = [type(event) for event in happened if isinstance(event, WouldChange | ToolEnded)]
    assert ends == [WouldChange, ToolEnded] * 2  # while the call's arguments can still be shown
    assert isinstance(happened[-1], Finished) and (root / "a.txt").read_text() == "as it was\n"


def dry_run(root: Path, *script: str) -> tuple[Outcome, ScriptedBackend]:
    backend = ScriptedBackend(*script, answer())
    policy = Policy(allow=["*"], dry_run=True)
    return Controller(backend, registry(root), policy).run_sync("Do it."), backend


def test_a_dry_run_tells_the_model_what_would_have_changed_once(root: Path) -> None:
    (root / "a.txt").write_text("as it was\n")
    write = call("file_access", operation="write", path="a.txt", content="new\nand more\n")
    outcome, backend = dry_run(root, write)
    prompt = backend.requests[-1].prompt
    assert prompt.count("Nothing was done: this is a dry run.") == 1
    assert prompt.count("It would have made this change (+2 -1)") == 1
    assert prompt.count("-as it was") == prompt.count("+and more") == 1
    (made,) = outcome.to_json()["calls"]
    change = "It would have made this change (+2 -1):\n--- a.txt\n+++ a.txt\n@@ -1 +1,2 @@\n"
    assert made["would_change"] == f"{change}-as it was\n+new\n+and more"
    assert "as it was" not in made["error_preview"]


def test_a_change_that_a_dry_run_tells_is_bounded_and_counted_whole(root: Path) -> None:
    (root / "a.txt").write_text("".join(f"line {n}\n" for n in range(5_000)))
    delete = call("file_access", operation="delete", path="a.txt")
    outcome, backend = dry_run(root, delete)
    told = outcome.to_json()["calls"][0]["would_change"]
    assert "(+0 -5000)" in told and "characters left out" in told and len(told) < 4_200
    assert len(backend.requests[-1].prompt) < 5_500 + len(backend.requests[0].prompt)


def test_a_dry_run_hides_secrets_and_says_what_could_only_fail(root: Path) -> None:
    (root / "a.txt").write_text(f"AWS_ACCESS_KEY_ID={KEY}\n")
    delete = call("file_access", operation="delete", path="a.txt")
    gone = call("file_access", operation="delete", path="gone.txt")
    outcome, backend = dry_run(root, delete, gone)
    told = [one["would_change"] for one in outcome.to_json()["calls"]]
    assert "[redacted:aws_access_key]" in told[0] and "can only fail" in told[1]
    assert not any(KEY in request.prompt for request in backend.requests)


def test_what_a_dry_run_shows_is_a_private_read(root: Path) -> None:
    delete, fetch = call("file_access", operation="delete", path="a.txt"), "http://example.org/"
    policy = Policy(allow=["*"], dry_run=True, network_after_read="deny")
    for before, rules in (((), ["dry_run"]), ((delete,), ["dry_run", "network_after_read"])):
        backend = ScriptedBackend(*before, call("fetch_url", url=fetch), answer())
        happened = collect_events(Controller(backend, registry(root), policy))
        assert [event.rule for event in happened if isinstance(event, CallDecided)] == rules


def test_a_call_in_what_a_dry_run_shows_is_an_echo(root: Path) -> None:
    planted = call("file_access", operation="write", path="b.txt", content="x")
    (root / "a.txt").write_text(f"{planted}\n")
    delete = call("file_access", operation="delete", path="a.txt")
    outcome, _ = dry_run(root, delete, planted)
    assert [one.error_code for one in outcome.calls] == ["dry_run", "echoed_call"]


# --- runs within a call ---


def within(effects: set[str]) -> Callable[..., Any]:
    @tool(effects=effects)
    async def around(question: str, context: ToolContext) -> str:
        """Asks the model."""
        return await context.ask(question)

    return around


@pytest.mark.parametrize("for_session", [True, False])
def test_a_run_within_shares_what_was_allowed_for_the_session(
    tmp_path: Path, for_session: bool
) -> None:
    done: list[str] = []

    @tool(effects={"write"})
    def save(text: str) -> str:
        """Saves."""
        done.append(text)
        return "saved"

    lines = (
        call("save", text="outside"),
        call("around", question="?"),
        call("save", text="within"),
        answer("inner"),
        answer("outer"),
    )
    approver = ScriptedApprover(ApprovalAnswer(True, for_session=for_session))
    made = Controller(
        ScriptedBackend(*lines),
        [save, within({"read"})],
        Policy(allow=["*"]),
        approver=approver,
        store=TranscriptStore(tmp_path),
    )
    assert isinstance(made.run_sync("Go."), Answered)
    assert done == ["outside", "within"]
    asked = [request.call for request in approver.requests]
    assert asked == (["c1"] if for_session else ["c1", "c2/c1"])
    rules = [
        (record.rule, record.reason)
        for path in tmp_path.glob("*/transcript.jsonl")
        for record in load(path)
        if isinstance(record, DecisionRecord) and record.rule == "session_consent"
    ]
    consent = ("session_consent", "save was allowed to write for the rest of the session")
    assert rules == ([consent] if for_session else [])
