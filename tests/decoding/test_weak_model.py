"""What guided decoding does for a weak model with the built-in tools: by the words alone."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from mlx_tools.decoding import Asker, AskerLimits, Guide, Task, guidance
from mlx_tools.decoding.arguments import About
from mlx_tools.decoding.opening import call_odds
from mlx_tools.due import Observed
from mlx_tools.lexical import stems
from mlx_tools.messages import FinalAnswer, ToolCall
from mlx_tools.protocol import ReadingRules, read
from mlx_tools.tools import Registry
from tests.decoding.test_evidence import Mute

READING = ("calculator", "clock", "file_access")
WRITING = (*READING, "create_file", "format_xml")
NOTES = ("clock", "notes_create", "notes_search")
DOCUMENTS = ("calculator", "clock", "query_knowledge_base", "list_corpora")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root: Path = tmp_path_factory.mktemp("root")
    return Registry.builtin([f"{root}:rw"], notes=root)


def said(
    registry: Registry,
    names: tuple[str, ...],
    question: str,
    *observed: Observed,
    look_up: bool = False,
) -> FinalAnswer | ToolCall:
    """What a mute model's turn comes to, weighed as a weak one's."""
    tools = {name: registry.all_specs()[name] for name in names}
    asker = Asker(Mute(), "P", AskerLimits(max_tokens=500, timeout=10, idle_timeout=10))
    done = [one.call for one in observed if one.call is not None and not one.failed]
    evidence = guidance(question, done, tuple(tools.values()), 5.0)
    task = Task(style="jsonl", tools=tools, observed=observed, look_up=look_up)
    text = anyio.run(Guide(asker, task, evidence).write)
    (message,) = read(text, "stop", ReadingRules(style="jsonl")).messages
    assert isinstance(message, FinalAnswer | ToolCall)
    return message


def highest_odds(
    registry: Registry, names: tuple[str, ...], question: str, *, look_up: bool = False
) -> float:
    """How much more the words of a question ask for a call than for an answer."""
    tools = tuple(registry.all_specs()[name] for name in names)
    return max(call_odds(guidance(question, (), tools, 5.0), tools, look_up=look_up))


@pytest.mark.parametrize(
    ("names", "question", "tool", "arguments"),
    [
        (READING, "What is 18% of 450?", "calculator", {"expression": "18% of 450"}),
        (READING, "What day of the week is it?", "clock", {}),
        (READING, "What time is it in Madrid?", "clock", {"timezone": "Madrid"}),
        (
            READING,
            "What does songs/summer.txt say?",
            "file_access",
            {"operation": "read", "path": "songs/summer.txt"},
        ),
        (
            WRITING,
            'Write "sold out" into the file sign.txt.',
            "file_access",
            {"operation": "write", "path": "sign.txt", "content": "sold out"},
        ),
        (
            WRITING,
            "Delete the file old/songs.txt.",
            "file_access",
            {"operation": "delete", "path": "old/songs.txt"},
        ),
        (NOTES, "Do I have a note about the tax office?", "notes_search", {"query": "tax office"}),
    ],
)
def test_a_plain_request_is_the_call_that_it_asks_for(
    registry: Registry,
    names: tuple[str, ...],
    question: str,
    tool: str,
    arguments: dict[str, str],
) -> None:
    assert said(registry, names, question) == ToolCall(tool, arguments)


@pytest.mark.parametrize("names", [READING, WRITING, NOTES, DOCUMENTS])
@pytest.mark.parametrize(
    "question",
    [
        "Who wrote Hamlet?",
        "What should I read next?",
        "Write a poem about my cat.",
        "Can you help me with my homework?",
        "What does this mean: carpe diem?",
        "How do we say good morning in French?",
        "Thank you, that is all I need.",
    ],
)
def test_small_talk_and_knowledge_ask_for_no_call(
    registry: Registry, names: tuple[str, ...], question: str
) -> None:
    assert highest_odds(registry, names, question) < 0


@pytest.mark.parametrize(
    "question",
    [
        "Whom do I call?",
        "How much may I carry on the plane?",
        "Wann hat der Laden am Samstag auf?",
        "¿Cuánto cuesta la entrada?",
        "门票多少钱？",
    ],
)
def test_where_facts_are_looked_up_first_a_question_is(registry: Registry, question: str) -> None:
    assert highest_odds(registry, DOCUMENTS, question) < 0
    call = said(registry, DOCUMENTS, question, look_up=True)
    assert isinstance(call, ToolCall) and call.name == "query_knowledge_base"
    found = Observed("[1] Opening hours (a.md)\n> From ten to one.", call=call)
    answer = said(registry, DOCUMENTS, question, found, look_up=True)
    assert answer == FinalAnswer("From ten to one. [1]")


@pytest.mark.parametrize(
    ("question", "tool"), [("What is 2 + 3?", "calculator"), ("What time is it?", "clock")]
)
def test_what_another_tool_is_asked_for_is_not_looked_up(
    registry: Registry, question: str, tool: str
) -> None:
    call = said(registry, DOCUMENTS, question, look_up=True)
    assert isinstance(call, ToolCall) and call.name == tool


@pytest.mark.parametrize("names", [READING, WRITING, DOCUMENTS])
def test_what_is_no_question_or_can_be_looked_up_nowhere_is_not(
    registry: Registry, names: tuple[str, ...]
) -> None:
    question = "Hello!" if "query_knowledge_base" in names else "Whom do I call?"
    assert highest_odds(registry, names, question, look_up=True) < 0


def test_a_call_that_failed_is_not_made_again_and_its_reason_is_told(registry: Registry) -> None:
    call = ToolCall("file_access", {"operation": "read", "path": "songs.txt"})
    failed = Observed("there is no songs.txt", failed=True, call=call)
    question = "What does songs.txt say?"
    assert said(registry, READING, question) == call
    answer = said(registry, READING, question, failed)
    assert isinstance(answer, FinalAnswer) and answer.content == "there is no songs.txt"


def test_a_call_that_may_have_failed_by_what_nobody_asked_for_is_made_without_it(
    registry: Registry,
) -> None:
    question = "What do my documents say about the heating?"
    call = said(registry, DOCUMENTS, question)
    assert isinstance(call, ToolCall) and call.name == "query_knowledge_base"
    more = ToolCall(call.name, {**call.arguments, "corpus": "heating"})
    failed = Observed("There is no corpus heating.", failed=True, call=more)
    assert said(registry, DOCUMENTS, question, failed) == call
    again = Observed("still none", failed=True, call=call)
    assert isinstance(said(registry, DOCUMENTS, question, failed, again), FinalAnswer)


def test_an_optional_argument_is_given_where_what_another_has_needs_it(registry: Registry) -> None:
    call = said(registry, ("file_access",), 'Please write "shut" into sign.txt')
    assert isinstance(call, ToolCall) and call.arguments["content"] == "shut"


def test_what_a_description_says_of_each_value_is_read() -> None:
    about = About("operation", "read: what a file says; list: which files a folder has")
    assert about.told_of("list") == set(stems("files folder"))
    assert about.told_of("read") == set(stems("says file"))
    assert not about.told_of("write") and not About("x").told_of("read")
