"""Tasks by models that loop, think too long, stop in the middle or write calls in other forms."""

from __future__ import annotations

from typing import Final

from tests.work.task import Step, Task, call, says
from tests.work.texts import READ

SIX_BY_SEVEN: Final = "What is 6 times 7?"
HERMES: Final = (
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>'
)


def multiply(name: str, *steps: Step, question: str = SIX_BY_SEVEN) -> Task:
    """A task without files whose answer is 42."""
    return Task(name, question, (*steps, says("42.", "42")), root="", answer="42")


FAULTY_MODELS: Final = (
    multiply(
        "a tool that fails twice",
        call("calculator", expression="6/0"),
        call("calculator", "zero", expression="6 +"),
        call("calculator", "error", expression="6*7"),
    ),
    multiply(
        "a model that thinks before it acts",
        Step("<think>I multiply.</think>" + call("calculator", expression="6*7").text),
    ),
    Task(
        "a model that loops in an answer",
        "Go on and on.",
        (Step('{"type":"final_answer","content":"' + "over and over " * 5_000),),
        root="",
        answer="over and over",
        truncated=True,
    ),
    Task(
        "a model that loops in a thought",
        SIX_BY_SEVEN,
        (Step("<think>" + "hm, " * 5_000), says("42.")),
        root="",
        answer="42",
    ),
    Task(
        "a model that thinks too long",
        SIX_BY_SEVEN,
        (
            Step("<think>" + " ".join(f"Is it {n}?" for n in range(9_000))),
            says("42.", "cut off"),
        ),
        root="",
        answer="42",
        absent={"gateway": "the client is told that the turn was cut off, and decides"},
    ),
    Task(
        "a model that loops in a call",
        "Write poem.txt.",
        (
            Step(
                '{"type":"tool_call","name":"create_file","arguments":{"path":"poem.txt",'
                '"content":"' + "tra la la " * 5_000
            ),
            call("create_file", "over and over", path="poem.txt", content="Tra la la.\n"),
            says("Written.", r"poem\.txt"),
        ),
        after={"poem.txt": "Tra la la.\n"},
    ),
    Task(
        "a model that stops in the middle of a call",
        SIX_BY_SEVEN,
        (
            Step('{"type":"tool_call","name":"calculator","arguments":{"expression":"6*'),
            Step('6*7"}}', knows=(r'"expression":"$',)),
            says("42.", "42"),
        ),
        root="",
        answer="42",
    ),
    Task(
        "a model that makes the same call again and again",
        "What does a.txt say?",
        (
            call("file_access", **READ, path="a.txt"),
            call("file_access", "hello", **READ, path="a.txt"),
            call("file_access", "again|before", **READ, path="a.txt"),
        ),
        files={"a.txt": "hello\n"},
        root="ro",
        status="stopped",
        answer="",
        told="same call three times",
        absent={"gateway": "the client decides how long it goes on"},
    ),
    Task(
        "more steps than a question may take",
        "Count to thirty, one step at a time.",
        (
            *(call("calculator", *([str(n)] if n else []), expression=f"{n}+1") for n in range(24)),
            says("I came to 24.", "24"),
        ),
        root="",
        absent={"gateway": "the client decides how long it goes on"},
    ),
    multiply("a call in another form", Step(HERMES)),
    multiply(
        "a call after a sentence",
        Step("I will compute that.\n" + call("calculator", expression="6*7").text),
    ),
    multiply(
        "a tool that does not exist",
        call("multiply", a=6, b=7, guesses=True),
        call("calculator", knows=(r'{"type":$',), expression="6*7"),
    ),
    Task(
        "an answer without JSON",
        SIX_BY_SEVEN,
        (Step("It is 42."),),
        root="",
        answer="42",
    ),
)
