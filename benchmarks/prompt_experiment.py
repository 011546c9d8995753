"""How well a model follows the prompt: varied questions, each style, a real completions server.

    python benchmarks/prompt_experiment.py --url http://127.0.0.1:8080 [--style jsonl]

For each style: of the questions that need a tool, how many got a valid call of the right tool, and
how many the right answer; of those that need none, how many were answered without a call. For
trying out words and examples in ``prompts/``: change them, run this, compare. None of the questions
may stand in ``prompts/examples.toml``, or the numbers mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mlx_tools import (
    Answered,
    CompletionsBackend,
    Controller,
    Limits,
    Outcome,
    Policy,
    Registry,
    RunSettings,
)
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.prompt.examples import style_named
from mlx_tools.prompt.words import STYLES

LIMITS = Limits(max_iterations=3, max_tokens=80)


@dataclass(frozen=True)
class Question:
    """A question, the tool that answers it (None: none), and what the answer must hold."""

    text: str
    tool: str | None
    answer: str = ""


def _calculated(*pairs: tuple[str, str]) -> list[Question]:
    return [Question(text, "calculator", answer) for text, answer in pairs]


QUESTIONS: Sequence[Question] = (
    *_calculated(
        ("What is 17 * 23?", "391"),
        ("How much is 1250 divided by 8?", "156.25"),
        ("what's 12.5% of 840", "105"),
        ("Calculate 345 + 678.", "1023"),
        ("What is 1000 minus 377?", "623"),
        ("What is 15 times 15?", "225"),
        ("Compute (3 + 4) * 12", "84"),
        ("What is the square root of 144?", "12"),
        ("2 to the power of 10?", "1024"),
        ("I buy 7 books for 12 euros each. What do I pay?", "84"),
        ("Divide 999 by 27.", "37"),
        ("How much is 20% of 350?", "70"),
        ("What's 8 * 7 * 6?", "336"),
        ("Add 19, 23 and 58.", "100"),
        ("Please multiply 64 by 32.", "2048"),
        ("What is 5 factorial?", "120"),
        ("How many seconds are in 3 hours?", "10800"),
        ("99 * 99 = ?", "9801"),
        ("What is 7.5 + 2.25?", "9.75"),
        ("Subtract 45 from 120.", "75"),
        ("A box holds 24 eggs. How many eggs are in 13 boxes?", "312"),
        ("4096 / 64", "64"),
        ("What is 3.14 times 100?", "314"),
        ("If I save 45 dollars a month, how much is that in a year?", "540"),
    ),
    Question("What time is it now?", "clock"),
    Question("What's the date today?", "clock"),
    Question("Which day of the week is it?", "clock"),
    Question("Tell me the current time.", "clock"),
    Question("What time is it in Tokyo?", "clock"),
    Question("Can you tell me what day of the month it is?", "clock"),
    Question("Hi!", None),
    Question("Good morning, how are you?", None),
    Question("Thank you very much.", None),
    Question("Hey there, nice to meet you", None),
    Question("Who are you?", None),
    Question("What is the capital of France?", None, "Paris"),
    Question("Goodbye!", None),
    Question("Tell me a joke.", None),
)


@dataclass(frozen=True)
class Score:
    """What became of one question."""

    called: bool
    right: bool
    tokens: int
    log: str


def score(question: Question, outcome: Outcome) -> Score:
    """Holds an outcome against what was asked."""
    answer = outcome.answer if isinstance(outcome, Answered) else ""
    ran = [call for call in outcome.calls if call.status == "ok"]
    called = bool(ran) and ran[0].name == question.tool
    calls = [f"{c.name}{dict(c.arguments)}{'' if c.status == 'ok' else '!'}" for c in outcome.calls]
    return Score(
        called,
        _right(question, bool(outcome.calls), [call.output or "" for call in ran], answer),
        outcome.usage.completion_tokens or 0,
        f"{' '.join(calls)} -> {answer[:80]!r}".replace("\n", " "),
    )


def _right(question: Question, called: bool, outputs: Sequence[str], answer: str) -> bool:
    if question.tool is None:
        return not called and bool(answer.strip()) and question.answer in answer
    if question.tool == "calculator":
        digits = re.sub(r"(?<=\d)[, ](?=\d{3})", "", answer)
        return re.search(rf"(?<![\d.]){re.escape(question.answer)}(?!\.?\d)", digits) is not None
    said = set(re.findall(r"\w+", answer))
    return any(len(said & set(re.findall(r"\w+", output))) >= 1 for output in outputs)


async def ask(url: str, style: str, question: Question) -> Score:
    """One question, in a session of its own."""
    controller = Controller(
        CompletionsBackend(url),
        Registry.builtin(),
        Policy(preset="readonly_basic"),
        limits=LIMITS,
        settings=RunSettings(style=style_named(style), chat_format=NAMED_FORMATS["chatml"]),
    )
    return score(question, await controller.run(question.text))


async def main() -> None:
    """Asks the questions, and prints a line for each, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--style", choices=STYLES)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth question")
    options = parser.parse_args()
    questions = QUESTIONS[:: options.every]
    for style in [options.style] if options.style else STYLES:
        started = time.monotonic()
        scores = []
        for question in questions:
            scores.append(await ask(options.url, style, question))
            marks = ("C" if scores[-1].called else "-") + ("R" if scores[-1].right else "-")
            print(f"{marks} {question.text[:40]:40} {scores[-1].log}", flush=True)
        tool = [s for q, s in zip(questions, scores, strict=True) if q.tool]
        none = [s for q, s in zip(questions, scores, strict=True) if not q.tool]
        print(
            f"{style}: valid calls {sum(s.called for s in tool)} of {len(tool)}, "
            f"right answers {sum(s.right for s in tool)} of {len(tool)}, "
            f"answered without a call {sum(s.right for s in none)} of {len(none)}, "
            f"{sum(s.tokens for s in scores)} tokens, {time.monotonic() - started:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
