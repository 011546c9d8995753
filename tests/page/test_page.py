"""The page: opened by a person's key alone, and nothing that it shows is obeyed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from justhtml import JustHTML

from mlx_tools.app import AccessRules
from mlx_tools.plugins.page.page import COOKIE, HOLDS, Person
from mlx_tools.plugins.page.shown import MAX_ROWS, RECORDS, search_sessions
from mlx_tools.store import TranscriptStore, to_json
from mlx_tools.testing import ScriptedServer, answer, call
from mlx_tools.toolbox.text_diff import unified_diff
from mlx_tools.tools import Preview, Tool, ToolContext, tool
from mlx_tools.transcript import AnswerRecord, Header, ObservationRecord, UserRecord
from tests.forked import forks
from tests.runs.conftest import KEY, ask, wait_for_rest
from tests.waiting import until

pytestmark = pytest.mark.anyio

HOME = "http://127.0.0.1"
KEEP = call("keep", text="a")
SESSION = "/page/sessions/{id}"
SEEN = ("/", "/page/sessions", SESSION, SESSION + "/transcript", SESSION + "/live", "/page/tools")
POSTED = ("/page/ask", *(f"{SESSION}/{name}" for name in ("decide", "continue", "cancel")))


async def post(one: Any, path: str, origin: str = HOME, **fields: str) -> httpx.Response:
    """The answer to a form."""
    headers = {"origin": origin} if origin else {}
    got: httpx.Response = await one.client.post(path, data=fields, headers=headers)
    return got


def person_key(one: Any) -> str:
    """The person's key for the page of a gateway."""
    return Person(one.runs.sessions.secret, one.gateway.now).key


async def opened(one: Any) -> None:
    """Give the person's key to the page."""
    one.client.headers.pop("authorization")
    got = await post(one, "/page/key", key=person_key(one))
    assert (got.status_code, got.headers["location"]) == (303, "/")


async def waiting(begin: Any, *more: Any) -> tuple[Any, dict[str, Any], str]:
    """An open page, a run of a client that waits for a person, and the path of its session."""
    one = begin(KEEP, *more)
    made = await ask(one)
    assert made["status"] == "paused"
    await opened(one)
    return one, made, SESSION.format(id=made["id"])


@pytest.mark.parametrize("cookie", ["", "9.f", "forged", "old", "key"])
async def test_without_the_persons_key_nothing_is_shown_and_nothing_taken(
    begin: Any, cookie: str
) -> None:
    one = begin(KEEP, door=AccessRules(key="one"))  # a client has a key, and sends it
    made = await ask(one)
    other, late = Person(b"x", lambda: 1_700_000_000.0), [0.0]
    seals = {
        "forged": _cookie_of(other),
        "old": _cookie_of(Person(one.runs.sessions.secret, lambda: late[0])),
        "key": person_key(one),
    }
    one.client.cookies.set(COOKIE, seals.get(cookie, cookie))
    for path in SEEN:
        got = await one.client.get(path.format(id=made["id"]))
        assert (got.status_code, made["id"] in got.text) == (401, False), path
    digest = made["pending"][0]["digest"]
    for path in POSTED:
        fields = {"call": "c1", "digest": digest, "decision": "approve", "question": "x"}
        got = await post(one, path.format(id=made["id"]), **fields)
        assert got.status_code == 401, path
    assert (await post(one, "/page/key", key="one")).status_code == 401
    assert (await wait_for_rest(one, made["id"]))["status"] == "paused"
    assert one.tools.written == []


def _cookie_of(person: Person) -> str:
    from starlette.responses import Response

    response = Response()
    person.admit(response, https=False)
    return re.search(f"{COOKIE}=([^;]+)", response.headers["set-cookie"])[1]  # type: ignore[index]


async def test_the_cookie_is_for_this_page_alone_and_the_persons_key_opens_nothing_of_a_clients(
    begin: Any,
) -> None:
    one = begin(door=AccessRules(key="one"))
    one.client.headers.pop("authorization")
    got = await post(one, "/page/key", key=person_key(one))
    said = got.headers["set-cookie"].lower()
    for part in ("httponly", "samesite=strict", f"max-age={HOLDS}", "path=/"):
        assert part in said
    assert (await one.client.get("/")).status_code == 200
    assert (await one.client.get("/v1/runs")).status_code == 401
    bearer = {"authorization": f"Bearer {person_key(one)}"}
    assert (await one.client.get("/v1/runs", headers=bearer)).status_code == 401


@pytest.mark.parametrize("origin", ["", "null", "http://127.0.0.1:9", "http://evil.example"])
async def test_a_form_of_another_page_is_not_taken(begin: Any, origin: str) -> None:
    one, made, path = await waiting(begin)
    fields = {"call": "c1", "digest": made["pending"][0]["digest"], "decision": "approve"}
    for form in (f"{path}/decide", f"{path}/cancel", "/page/ask", "/page/key"):
        assert (await post(one, form, origin, **fields)).status_code == 403, form
    one.client.headers.update(KEY)
    assert (await wait_for_rest(one, made["id"]))["status"] == "paused"
    rebound = await one.client.get("/", headers={"host": "evil.example"})
    assert rebound.status_code == 403


@pytest.mark.parametrize(
    ("fields", "written", "told"),
    [
        ({"decision": "approve"}, ["a", "b"], "approved"),
        ({"decision": "session"}, ["a", "b"], "for the session"),
        ({"decision": "deny", "reason": "not <b>now</b>"}, ["b"], "not &lt;b&gt;now&lt;/b&gt;"),
        ({"decision": "look", "arguments": '{"text": "z"}'}, ["z", "b"], "edited the call"),
    ],
)
async def test_a_person_decides_about_the_calls_of_any_client(
    begin: Any, fields: dict[str, str], written: list[str], told: str
) -> None:
    asks_again = fields["decision"] != "session"
    one, made, path = await waiting(begin, call("keep", text="b"), answer("done"))
    await decide(one, path, **fields)
    one.client.headers.update(KEY)
    stands = await wait_for_rest(one, made["id"])
    assert (stands["status"] == "paused") == asks_again
    if asks_again:
        await decide(one, path, decision="approve")
        stands = await wait_for_rest(one, made["id"])
    assert (stands["status"], one.tools.written) == ("answered", written)
    assert told in (await one.client.get(path)).text


async def test_a_page_says_what_an_approval_for_the_session_is_bound_to(begin: Any) -> None:
    one = begin(KEEP, call("keep", text="a", more=True), call("keep", text="b"), answer("done"))

    @tool(effects={"write"}, consent_argument="text")
    def keep(text: str, more: bool = False) -> str:
        """Keeps a text."""
        one.tools.written.append(text)
        return "kept"

    one.tools.made = lambda: [keep]
    made = await ask(one)
    await opened(one)
    path = SESSION.format(id=made["id"])
    assert "Approve this text for the session" in (await one.client.get(path)).text
    await decide(one, path, decision="session")
    one.client.headers.update(KEY)
    stands = await wait_for_rest(one, made["id"])
    assert (stands["status"], one.tools.written) == ("paused", ["a", "a"])
    assert stands["pending"][0]["arguments"] == {"text": "b"}


async def decide(one: Any, path: str, **fields: str) -> None:
    """Decide about the call that a page shows."""
    shown = await one.client.get(path)
    if fields["decision"] == "look":
        shown = await post(one, f"{path}/decide", call="c1", **fields)
        assert "with your arguments" in shown.text
        fields = {"decision": "approve"}
    assert (await post(one, f"{path}/decide", **fields, **_hidden(shown.text))).status_code == 303


def _hidden(text: str) -> dict[str, str]:
    """The hidden fields of the first form that decides."""
    form = JustHTML(text, sanitize=False).query('form[action$="/decide"]')[0]
    fields = {one.attrs["name"]: one.attrs.get("value", "") for one in form.query("input")}
    return fields | {one.attrs["name"]: one.to_text() for one in form.query("textarea")}


def previewing(one: Any, preview: Preview | Callable[[Any], Preview]) -> None:
    """Tell this to the tool that keeps a text, for each call."""
    area, keep = one.tools.made()
    preview_of = preview if callable(preview) else lambda arguments: preview
    told = Tool(keep.spec, keep.call, preview=preview_of)
    one.tools.made = lambda: [area, told]


async def test_a_page_shows_all_lines_of_a_change_and_counts_them(begin: Any) -> None:
    one = begin(KEEP)
    gone = "".join(f"line {n}\n" for n in range(3_000))
    diff = unified_diff(gone, "new\n", "a.txt", "a.txt")
    previewing(one, Preview(diff.text, "", counts=diff.counts))
    made = await ask(one)
    assert made["pending"][0]["preview_counts"] == "+1 -3000"
    await opened(one)
    text = (await one.client.get(SESSION.format(id=made["id"]))).text
    assert "The whole change: +1 -3000" in text
    assert all(f"<del>-line {n}</del>" in text for n in range(3_000))
    assert "typed" not in text


CUT = Preview("@@ @@\n-a", "", omitted="80000 lines are not shown")


@pytest.mark.parametrize("decision", ["approve", "session"])
async def test_a_page_wants_yes_typed_out_for_a_change_that_it_does_not_show_whole(
    begin: Any, decision: str
) -> None:
    one = begin(KEEP, call("keep", text="b"), answer("done"))
    previewing(one, CUT)
    made = await ask(one)
    assert made["pending"][0]["preview_omitted"] == "80000 lines are not shown"
    await opened(one)
    path = SESSION.format(id=made["id"])
    text = (await one.client.get(path)).text
    assert "Not all of the change is shown: 80000 lines are not shown." in text
    assert "Approve for the session" not in text
    fields = {"decision": decision, **_hidden(text)}
    del fields["typed"]
    for typed in ({}, {"typed": ""}, {"typed": "no"}):
        got = await post(one, f"{path}/decide", **fields, **typed)
        assert (got.status_code, "Type yes" in got.text) == (409, True), typed
    assert one.tools.written == []
    await post(one, f"{path}/decide", **fields, typed=" Yes ")
    one.client.headers.update(KEY)
    assert (await wait_for_rest(one, made["id"]))[
        "status"
    ] == "paused"  # nothing stands for the second
    assert one.tools.written == ["a"]


async def test_a_page_wants_yes_typed_out_for_edited_arguments_too(begin: Any) -> None:
    one = begin(KEEP, answer("done"))
    previewing(one, lambda arguments: CUT if arguments["text"] == "z" else Preview("-a", ""))
    made = await ask(one)
    await opened(one)
    path = SESSION.format(id=made["id"])
    look = {"decision": "look", "call": "c1", "arguments": '{"text": "z"}'}
    fields = _hidden((await post(one, f"{path}/decide", **look)).text) | {"decision": "approve"}
    del fields["typed"]
    got = await post(one, f"{path}/decide", **fields)
    assert (got.status_code, "Type yes" in got.text) == (409, True)
    assert (await post(one, f"{path}/decide", **fields, typed="yes")).status_code == 303
    one.client.headers.update(KEY)
    await wait_for_rest(one, made["id"])
    assert one.tools.written == ["z"]


async def asking_within(begin: Any, preview: Any) -> tuple[Any, dict[str, Any], str]:
    """A gateway with a run in which a call within a call waits, the run, and its address."""

    @tool(effects={"read"})
    async def research(question: str, context: ToolContext) -> str:
        """Finds something out."""
        return await context.ask(question, ["keep"])

    lines = call("research", question="x"), KEEP, answer("kept"), answer("done")
    one = begin(*lines, policy__allow="research,keep")
    previewing(one, preview)
    inner = one.tools.made()
    one.tools.made = lambda: [*inner, research]
    made = await ask(one)
    assert [row["call_id"] for row in made["pending"]] == ["c1/c1"]
    await opened(one)
    return one, made, SESSION.format(id=made["id"])


async def test_a_page_shows_what_a_call_within_a_call_would_change(begin: Any) -> None:
    one, made, path = await asking_within(begin, Preview("-old text\n+new text", "s"))
    pending = (await one.client.get(f"/v1/runs/{made['id']}", headers=KEY)).json()["pending"]
    assert [call["preview"] for call in pending] == ["-old text\n+new text"]
    text = (await one.client.get(path)).text
    assert "-old text" in text and "+new text" in text and "Not all" not in text
    fields = _hidden(text) | {"decision": "approve"}
    assert (await post(one, f"{path}/decide", **fields)).status_code == 303
    one.client.headers.update(KEY)
    assert (await wait_for_rest(one, made["id"]))["status"] == "answered"
    assert one.tools.written == ["a"]


async def test_a_page_wants_yes_typed_out_for_a_call_within_a_call_that_it_cannot_show(
    begin: Any,
) -> None:
    state = ["s"]
    one, made, path = await asking_within(begin, lambda arguments: Preview("-a", state[0]))
    state[0] = "t"  # so it is no longer what was asked about
    pending = (await one.client.get(f"/v1/runs/{made['id']}", headers=KEY)).json()["pending"]
    assert not any("preview" in call for call in pending)
    text = (await one.client.get(path)).text
    assert "Not all of the change is shown: it is made within another call" in text
    fields = _hidden(text) | {"decision": "approve"}
    del fields["typed"]
    got = await post(one, f"{path}/decide", **fields)
    assert (got.status_code, "Type yes" in got.text) == (409, True)
    state[0] = "s"
    assert (await post(one, f"{path}/decide", **fields, typed="yes")).status_code == 303
    one.client.headers.update(KEY)
    assert (await wait_for_rest(one, made["id"]))["status"] == "answered"
    assert one.tools.written == ["a"]


async def test_a_page_wants_yes_typed_out_for_a_call_within_a_call_that_it_shows_in_part(
    begin: Any,
) -> None:
    one, made, path = await asking_within(begin, CUT)
    text = (await one.client.get(path)).text
    assert "Not all of the change is shown" in text
    fields = _hidden(text) | {"decision": "approve"}
    del fields["typed"]
    got = await post(one, f"{path}/decide", **fields)
    assert (got.status_code, "Type yes" in got.text) == (409, True)
    assert (await post(one, f"{path}/decide", **fields, typed="yes")).status_code == 303
    one.client.headers.update(KEY)
    assert (await wait_for_rest(one, made["id"]))["status"] == "answered"
    assert one.tools.written == ["a"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"decision": "approve", "digest": "0" * 64}, "not the digest"),
        ({"decision": "approve", "call": "c7", "digest": "0"}, "not a call that waits"),
        ({"decision": "approve"}, "decision: "),
        ({"decision": "look", "arguments": "{"}, "no JSON"),
        ({"decision": "look", "arguments": "[]"}, "no JSON object"),
        ({"decision": "look", "arguments": '{"txt": 1}'}, "do not fit keep"),
        ({"decision": "approve", "digest": "0", "arguments": "[]"}, "no JSON object"),
    ],
)
async def test_a_decision_that_does_not_hold_is_told_and_the_run_still_waits(
    begin: Any, fields: dict[str, str], problem: str
) -> None:
    one, made, path = await waiting(begin)
    got = await post(one, f"{path}/decide", **{"call": "c1", **fields})
    assert 400 <= got.status_code < 500
    assert problem in got.text
    one.client.headers.update(KEY)
    assert (await wait_for_rest(one, made["id"]))["status"] == "paused"
    assert one.tools.written == []


async def test_a_question_begins_a_run_whose_steps_come_as_they_happen(begin: Any) -> None:
    one = begin(call("area", width=2, height=3), answer("6"), answer("7"))
    await opened(one)
    path = (await post(one, "/page/ask", question="How\r\nlarge?")).headers["location"]
    live = (await one.client.get(f"{path}/live?after=0")).text
    assert live.index("event: steps") < live.index("event: rest")
    assert (await post(one, f"{path}/continue", question="Sure?")).status_code == 303
    await wait_for_rest(one, path.rpartition("/")[2])
    shown = (await one.client.get(path)).text
    assert all(text in shown for text in ("How\nlarge?", "Sure?", "answered", "area"))
    assert "no question" in (await post(one, f"{path}/continue", question=" ")).text
    wrong = await post(one, "/page/ask", question="x", model="other")
    assert "There are: scripted" in wrong.text


async def test_a_run_that_came_to_rest_while_its_page_was_made_is_told_to_rest(begin: Any) -> None:
    one = begin(KEEP)
    await opened(one)
    path = (await post(one, "/page/ask", question="Keep it?")).headers["location"]
    await one.client.get(f"{path}/live?after=0")
    live = (await one.client.get(f"{path}/live?after=99")).text
    assert "event: rest" in live and "event: steps" not in live


async def test_tools_are_told_with_why_they_may_not_run_and_models_with_how_they_are_asked(
    begin: Any,
) -> None:
    one = begin(policy__allow="area")
    await opened(one)
    told = (await one.client.get("/page/tools")).text
    allowed, _, denied = told.partition("May not run")
    assert "<code>area</code>" in allowed
    assert "keep is not among the allowed tools" in denied
    models = (await one.client.get("/page/models")).text
    assert all(one in models for one in ("scripted", "chatml", "jsonl", "Nobody asked it"))


# --- what others wrote ----------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\"'>&\x1b[31m\u202eabc\u2028\x00\ufeff"
)


def kept(folder: Path, *records: Any) -> str:
    """A session of a person's with these records."""
    store = TranscriptStore(folder / "state" / "sessions")
    files = store.create()
    files.transcript.close()
    path = store.folder / files.session / "transcript.jsonl"
    header = Header(session=files.session, created="2026-01-01T00:00:00+00:00")
    path.write_text("".join(f"{json.dumps(to_json(one))}\n" for one in (header, *records)))
    return files.session


async def test_nothing_that_others_wrote_is_markup_or_turns_the_text(begin: Any) -> None:
    one = begin(call("keep", text=HOSTILE), answer(HOSTILE))
    made = await ask(one, question=HOSTILE)
    await opened(one)
    pages = ["/", f"/page/sessions?q={HOSTILE[:8]}", SESSION.format(id=made["id"])]
    for path in pages:
        got = await one.client.get(path)
        policy = got.headers["content-security-policy"]
        assert "unsafe" not in policy and "default-src 'none'" in policy
        for node in JustHTML(got.text, sanitize=False).query("*"):
            tag, own = node.name, node.attrs
            assert tag != "img" and not any(name.startswith("on") for name in own), own
            assert tag != "script" or own == {"type": "module", "src": "/page/page.js"}
            assert "style" not in own and tag != "style"
            for name in {"src", "href", "action"} & own.keys():
                assert re.match(r"[/#](?!/)", own[name] or ""), own
        assert not set("\x1b\u202e\u2028\x00\ufeff") & set(got.text), path


@pytest.mark.parametrize("size", [5_000_000, pytest.param(50_000_000, marks=pytest.mark.slow)])
async def test_a_long_transcript_is_shown_in_parts(begin: Any, tmp_path: Path, size: int) -> None:
    one = begin()
    await opened(one)
    many = 500
    text = (HOSTILE * 2000)[: size // many]
    outputs = [ObservationRecord(call=f"c{n}", name="t", content=text) for n in range(many)]
    session = kept(tmp_path, UserRecord(content="Big?"), *outputs)
    for query, first in (("", 2 + many - RECORDS), ("?from=0", 0)):
        got = await one.client.get(SESSION.format(id=session) + query)
        assert f"records {first + 1} to {first + RECORDS} of {many + 2}" in got.text
        questions = 1 if query else 0
        assert got.text.count('<li class="step') == RECORDS - questions, query
        assert len(got.content) < 5_000_000


async def test_a_damaged_session_and_one_that_is_not_there_are_told_of(
    begin: Any, tmp_path: Path
) -> None:
    one = begin()
    await opened(one)
    session = kept(tmp_path, UserRecord(content="x"))
    (tmp_path / "state/sessions" / session / "transcript.jsonl").write_text("{}\n{]\n{}\n")
    shown = await one.client.get(SESSION.format(id=session))
    assert (shown.status_code, "damaged" in shown.text) == (200, True)
    for name in ("nothing", "..", "%2e%2e", "a%2Fb"):
        assert (await one.client.get(SESSION.format(id=name))).status_code == 404
    for query in ("from=x", "from=99999999999", "from=" + "9" * 5000):
        got = await one.client.get(f"{SESSION.format(id=session)}?{query}")
        assert got.status_code == 200


def test_sessions_are_found_by_what_was_said_and_looked_through_a_part_at_a_time(
    tmp_path: Path,
) -> None:
    folder = TranscriptStore(tmp_path / "state" / "sessions")
    for number in range(2 * MAX_ROWS):
        said = "About Tea" if number % 2 else "About bread"
        kept(tmp_path, UserRecord(content="x"), AnswerRecord(turn=1, content=said))
    first = search_sessions(folder, "", "", lambda: 0.0)
    rest = search_sessions(folder, "", first.last_session, lambda: 0.0)
    assert len({one.session for one in (*first.rows, *rest.rows)}) == 2 * MAX_ROWS
    assert rest.last_session == ""
    assert len(search_sessions(folder, " tea ", "", lambda: 0.0).rows) == MAX_ROWS
    hurried = count(0.0, 1.5)
    part = search_sessions(folder, "tea", "", lambda: next(hurried))
    parts = [part]
    while part.last_session:
        part = search_sessions(folder, "tea", part.last_session, lambda: next(hurried))
        parts.append(part)
    assert len(parts) == MAX_ROWS
    assert sum(len(one.rows) for one in parts) == MAX_ROWS


# --- sessions that are no runs of the gateway -----------------------------------------------------

WRITES = call("file_access", operation="write", path="a.txt", content="new\n")


@pytest.fixture
def asked(begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ask in a terminal, of a model that writes these completions, and have the call wait; give its
    server, an open page, and the path of the session there."""
    servers: list[ScriptedServer] = []
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("old\n")

    async def made(*scripts: str, **options: Any) -> tuple[ScriptedServer, Any, str]:
        for kind in ("config", "data", "state"):
            folder = tmp_path if kind == "config" else tmp_path / kind
            monkeypatch.setenv(f"MLX_TOOLS_{kind.upper()}_DIR", str(folder))
        servers.append(ScriptedServer(*scripts).__enter__())
        how = ["--root", f"{tmp_path / 'files'}:rw", "--preset", "workspace", "--json"]
        process = forks().start("ask", "--url", servers[-1].url, *how, "Write it.")
        process.communicate()
        assert process.returncode == 4
        one = begin(policy__allow="calculator", **options)
        await opened(one)
        (session,) = one.runs.sessions.ids()
        return servers[-1], one, SESSION.format(id=session)

    yield made
    for server in servers:
        server.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"decision": "approve"}, "new\n"),
        ({"decision": "deny", "reason": "no"}, "old\n"),
        (
            {
                "decision": "look",
                "arguments": '{"operation": "write", "path": "a.txt", "content": "mine\\n"}',
            },
            "mine\n",
        ),
    ],
)
@pytest.mark.heavy
async def test_a_person_decides_about_what_was_asked_in_a_terminal(
    asked: Any, tmp_path: Path, fields: dict[str, str], text: str
) -> None:
    server, one, path = await asked(WRITES, answer("Done."))
    shown = await one.client.get(path)
    assert len(server.bodies) == 1  # to look asks no model
    assert "-old" in shown.text and "+new" in shown.text
    await decide(one, path, **fields)

    async def answered() -> Any:
        shown = await one.client.get(path)
        return "answered" in shown.text and shown

    shown = await until(answered)
    assert (tmp_path / "files" / "a.txt").read_text() == text and "Done." in shown.text
    assert one.runs.rows.page(one.runs.owner("one"), 9, None) == []  # it is no client's run


@pytest.mark.heavy
async def test_what_does_not_hold_of_such_a_session_is_told_and_it_still_waits(
    asked: Any, tmp_path: Path
) -> None:
    _, one, path = await asked(WRITES)
    shown = await one.client.get(path)
    digest = _hidden(shown.text)["digest"]
    for fields, problem in (
        ({"call": "c1", "decision": "approve", "digest": "0" * 64}, "not the digest"),
        ({"call": "c9", "decision": "approve", "digest": digest}, "c9"),
        ({"call": "c9", "decision": "look", "arguments": "{}"}, "not a call that waits"),
        ({"call": "c1", "decision": "look", "arguments": '{"path": 1}'}, "do not fit"),
    ):
        got = await post(one, f"{path}/decide", **fields)
        assert 400 <= got.status_code < 500 and problem in got.text, got.text
    (tmp_path / "files" / "a.txt").write_text("changed\n")
    shown = await one.client.get(path)
    assert "has changed since it was asked about" in shown.text
    assert (await post(one, f"{path}/look_again", call="c1")).status_code == 303
    shown = await one.client.get(path)
    assert "-changed" in shown.text and _hidden(shown.text)["digest"] != digest
    assert (tmp_path / "files" / "a.txt").read_text() == "changed\n"


@pytest.mark.heavy
async def test_where_the_model_of_such_a_session_is_not_reached_nothing_is_decided(
    asked: Any, tmp_path: Path
) -> None:
    server, one, path = await asked(WRITES)
    fields = _hidden((await one.client.get(path)).text)
    server.__exit__(None, None, None)
    got = await post(one, f"{path}/decide", decision="approve", **fields)
    assert got.status_code == 409 and "no server answers" in got.text
    assert _hidden((await one.client.get(path)).text) == fields
    assert (tmp_path / "files" / "a.txt").read_text() == "old\n"


@pytest.mark.heavy
async def test_a_gateway_that_only_tries_things_out_changes_nothing_for_such_a_session(
    asked: Any, tmp_path: Path
) -> None:
    _, one, path = await asked(WRITES, answer("Done."), policy__dry_run=True)
    shown = await one.client.get(path)
    await post(one, f"{path}/decide", decision="approve", **_hidden(shown.text))
    assert (tmp_path / "files" / "a.txt").read_text() == "old\n"


async def test_a_form_with_a_key_is_small_and_no_more_of_it_is_read(begin: Any) -> None:
    one, read = begin(), list[int]()

    async def endless() -> Any:
        while True:
            read.append(100)
            yield b"k" * 100

    headers = {"origin": HOME, "content-type": "application/x-www-form-urlencoded"}
    got = await one.client.post("/page/key", content=endless(), headers=headers)
    assert (got.status_code, sum(read)) == (413, 1100)
    announced = headers | {"content-length": "1001"}
    got = await one.client.post("/page/key", content=b"key=a", headers=announced)
    assert got.status_code == 413
    await opened(one)
    assert (await post(one, "/page/ask", question="?" * 2000)).status_code != 413
