"""Trains the embedded model on recorded runs, and asks it other questions before and after.

    python benchmarks/lora_trial.py [--iters N] [--folder DIR]

It takes the steps of docs/training.md, each by its command: runs of a model that is right are
recorded and exported, ``mlx_lm.lora`` trains an adapter, and ``golden run --live`` asks the
held-back questions of mlx_lm.server without it and with it. Here the model that is right is a
script. The held-back questions ask the same kinds of things in other words and with other numbers.
It writes lora_trial.json and the table of docs/training.md. ``--folder`` keeps the files, and goes
on with those that are there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway_clients import say
from gateway_load import free_port, process

from mlx_tools.backends import DEFAULT_MODEL, find_openblas, model_path
from mlx_tools.messages import json_line
from mlx_tools.testing import Completion, ScriptedServer
from scripts.training_table import PART

RESULTS = Path(__file__).with_suffix(".json")
TOOLS = "calculator,clock"
STRATEGIES = ("auto", "free")
ITERS = 20


@dataclass(frozen=True)
class Question:
    """A question: the right call, none for an answer at once, and the number in the answer."""

    text: str
    tool: str = ""
    arguments: Mapping[str, str] | None = None
    number: float | None = None
    fits: str = ""
    """A pattern that right arguments fit, if more than one text is right."""

    def expected(self) -> dict[str, Any]:
        """The expectation of `golden record`."""
        if not self.tool:
            return {"calls": [], "answer": {"anything": True}}
        made: Mapping[str, Any] = self.arguments or {}
        if self.fits:
            made = {name: {"regex": self.fits} for name in made}
        number = {"anything": True} if self.number is None else {"number": self.number}
        return {"calls": [{"name": self.tool, "arguments": made}], "answer": number}


_SIGNS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def sum_of(text: str, sign: str, left: int, right: int) -> Question:
    """A question for a sum, with the numbers put into the text."""
    one, other = f"^{left} ?[{sign}] ?{right}$", f"^{right} ?[{sign}] ?{left}$"
    fits = one if sign == "-" else f"{one}|{other}"
    expression = {"expression": f"{left} {sign} {right}"}
    number = _SIGNS[sign](left, right)
    return Question(text.format(left, right), "calculator", expression, number, fits)


def time_in(text: str, city: str, zone: str = "") -> Question:
    """A question for the time in a city."""
    fits = rf"(?i)\b{city.replace(' ', '_?')}\b|^{city}$" + (f"|^{zone}$" if zone else "")
    return Question(text.format(city), "clock", {"timezone": zone or city}, fits=fits)


TRAIN = (
    sum_of("What is {} plus {}?", "+", 39, 57),
    sum_of("How much is {} and {} together?", "+", 250, 75),
    sum_of("Ann has {} euros and gets {} more. How many has she?", "+", 34, 19),
    sum_of("What is {} minus {}?", "-", 91, 37),
    sum_of("Of {} apples {} are eaten. How many are left?", "-", 60, 24),
    sum_of("A coat costs {} euros and is {} euros off. What is its price?", "-", 120, 35),
    sum_of("What is {} times {}?", "*", 17, 23),
    sum_of("Multiply {} by {}.", "*", 31, 14),
    sum_of("A box holds {} eggs. How many are in {} boxes?", "*", 12, 15),
    sum_of("A ticket costs {} euros. What do {} tickets cost?", "*", 18, 7),
    sum_of("There are {} rows of {} chairs. How many chairs are there?", "*", 26, 11),
    sum_of("How many pages are {} books of {} pages?", "*", 9, 320),
    time_in("What time is it in {}?", "Lisbon"),
    time_in("How late is it in {} now?", "Oslo"),
    time_in("Tell me the time in {}.", "Cairo"),
    time_in("Is it night in {}?", "Sydney"),
    Question("What time is it?", "clock", {}),
    Question("Which day is today?", "clock", {}),
    Question("Hello!"),
    Question("Who wrote Romeo and Juliet?"),
    Question("What is the capital of Spain?"),
    Question("Say thank you in French."),
    Question("Which colour is the sky?"),
    Question("Name a fruit."),
)
ANSWERS = {
    "Hello!": "Hello! What can I do for you?",
    "Who wrote Romeo and Juliet?": "William Shakespeare wrote it.",
    "What is the capital of Spain?": "Madrid.",
    "Say thank you in French.": "Merci.",
    "Which colour is the sky?": "Blue.",
    "Name a fruit.": "An apple.",
}
"""Answers at once of the model that is right."""

HELD_BACK = (
    sum_of("Add {} to {}.", "+", 64, 128),
    sum_of("A bag weighs {} kg, another {} kg. What do both weigh?", "+", 23, 58),
    sum_of("Take {1} from {0}.", "-", 500, 145),
    sum_of("Tom is {} years old. How old was he {} years ago?", "-", 71, 28),
    sum_of("What do I get for {} multiplied by {}?", "*", 43, 19),
    sum_of("One bottle has {} ml. How many ml have {} bottles?", "*", 750, 6),
    sum_of("I run {} km a day. How far is that in {} days?", "*", 13, 21),
    sum_of("What is the sum of {} and {}?", "+", 615, 284),
    time_in("What is the time in {}?", "Tokyo", "Asia/Tokyo"),
    time_in("What does the clock say in {}?", "Lima", "America/Lima"),
    Question("What is the time now?", "clock", {}),
    Question("Which weekday is it?", "clock", {}),
    Question("Good morning!"),
    Question("Who painted the Mona Lisa?"),
    Question("What is the capital of Japan?"),
    Question("Name an animal."),
)


# --- the steps ------------------------------------------------------------------------------------


def command(*arguments: str, **environ: str) -> str:
    """The output of a command of mlx-tools. Raises `SystemExit` if it fails other than with 1."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mlx_tools", *arguments],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{arguments}: {done.stderr}{done.stdout}")
    return done.stdout


def record(questions: Sequence[Question], into: Path) -> None:
    """Record a run of each question by a model that is right."""
    for number, question in enumerate(questions):
        name = f"{number:02}"
        if (into / f"{name}.jsonl").exists():
            continue
        with RightModel(question) as server:
            options = ("--into", str(into), "--url", server.url, "--tools", TOOLS)
            expected = json.dumps(question.expected())
            command(
                *("golden", "record", name, question.text, *options, "--expect", expected),
                MLX_TOOLS_MODEL_CHAT_FORMAT="chatml",
                MLX_TOOLS_MODEL_STRATEGY="free",
            )
        if not (into / f"{name}.jsonl").exists():
            raise SystemExit(f"{question.text} was not recorded")


def call(tool: str, arguments: Mapping[str, Any]) -> str:
    """A call as the prompt shows calls."""
    return json_line({"type": "tool_call", "name": tool, "arguments": arguments})


def answer(content: str) -> str:
    """An answer as the prompt shows answers."""
    return json_line({"type": "final_answer", "content": content})


class RightModel(ScriptedServer):
    """A server of a model that is right about one question.

    It has the embedded model's name, so it gets the prompts that this one gets. A prompt without
    the question asks about the server itself.
    """

    def __init__(self, question: Question) -> None:
        super().__init__(model=DEFAULT_MODEL)
        self.question = question

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        _, asked, after = body["prompt"].rpartition(self.question.text)
        if not asked:
            return Completion("x", "length")
        results = re.findall(r'"tool_observation".*?"content":"([^"]*)"', after)
        if self.question.tool and not results:
            return Completion(call(self.question.tool, self.question.arguments or {}))
        return Completion(answer(right_answer(self.question, results)))


def right_answer(question: Question, results: Sequence[str]) -> str:
    """The answer, by what the tools gave."""
    if results:
        return f"It is {results[-1]}."
    return ANSWERS.get(question.text, "Gladly.")


@contextlib.contextmanager
def model_server(adapter: Path | None) -> Iterator[str]:
    """mlx_lm.server with the embedded model, and the adapter if one is given."""
    port = free_port()
    program = [sys.executable, "-m", "mlx_lm", "server", "--port", str(port)]
    program += ["--model", str(model_path(DEFAULT_MODEL))]
    program += ["--adapter-path", str(adapter)] if adapter else []
    with process(program, f"http://127.0.0.1:{port}/health", blas()):
        yield f"http://127.0.0.1:{port}"


def blas() -> dict[str, str]:
    return {"LD_PRELOAD": find_openblas() or ""}


def ask(held_back: Path, adapter: Path | None) -> dict[str, list[bool]]:
    """The held-back questions that are passed, by strategy, in their order."""
    passed: dict[str, list[bool]] = {}
    with model_server(adapter) as url:
        for strategy in STRATEGIES:
            told = command(
                *("golden", "run", "--live", "--url", url, "--strategy", strategy, "--json"),
                str(held_back),
            )
            rows = [json.loads(line) for line in told.splitlines()]
            passed[strategy] = [row["passed"] for row in rows if "name" in row]
            say(f"{strategy}: {sum(passed[strategy])} of {len(passed[strategy])}")
    return passed


def train(folder: Path, iters: int) -> dict[str, Any]:
    """Train an adapter; returns the losses, and what it took in seconds."""
    program = [sys.executable, "-m", "mlx_lm", "lora", "--train"]
    program += ["--model", str(model_path(DEFAULT_MODEL)), "--data", str(folder / "data")]
    program += ["--config", str(folder / "data" / "lora.yaml")]
    program += ["--adapter-path", str(folder / "adapters")]
    program += ["--batch-size", "1", "--iters", str(iters), "--num-layers", "8"]
    program += ["--learning-rate", "2e-4", "--val-batches", "2", "--steps-per-report", "5"]
    program += ["--steps-per-eval", str(iters), "--save-every", "5", "--max-seq-length", "1024"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        program, env=os.environ | blas(), stdout=subprocess.PIPE, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "iters": iters,
        "losses": losses(done.stdout),
        "processor_s": round(spent),
        "seconds": round(time.monotonic() - began),
    }


def losses(told: str) -> dict[str, dict[str, float]]:
    """The losses that mlx_lm.lora prints, of the training and the validation, by iteration."""
    found: dict[str, dict[str, float]] = {"train": {}, "valid": {}}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", told).splitlines():
        if row := re.match(r" *(\d+) +(val )? *([\d.]+) ", line):
            found["valid" if row[2] else "train"][row[1]] = float(row[3])
    return found


def once(path: Path, step: Callable[[], Any]) -> Any:
    """The result of a step; it is kept in a file, and taken from there the next time."""
    if not path.exists():
        path.write_text(json.dumps(step()))
    return json.loads(path.read_text())


def kind_of(question: Question) -> str:
    return {"calculator": "sums", "clock": "the time"}.get(question.tool, "no tool needed")


def trial(folder: Path, iters: int) -> None:
    """All steps, and what came of them."""
    runs, held_back, adapter = (folder / name for name in ("runs", "held-back", "adapters"))
    for kind in ("CONFIG", "DATA", "STATE"):
        os.environ[f"MLX_TOOLS_{kind}_DIR"] = str(folder / "home")
    record(TRAIN, runs)
    record(HELD_BACK, held_back)
    if not (folder / "data").exists():
        command("golden", "export", str(folder / "data"), str(runs))
    before = once(folder / "before.json", lambda: ask(held_back, None))
    trained = once(folder / "train.json", lambda: train(folder, iters))
    after = once(folder / "after.json", lambda: ask(held_back, adapter))
    result = {
        "command": "python benchmarks/lora_trial.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "model": DEFAULT_MODEL,
        "runs": len(TRAIN),
        "completions": len((folder / "data" / "train.jsonl").read_text().splitlines()),
        "training": trained,
        "kinds": [kind_of(question) for question in HELD_BACK],
        "before": before,
        "after": after,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PART.main()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--iters", type=int, default=ITERS, help="iterations of the training")
    parser.add_argument("--folder", type=Path, help="where the files go, to go on with them later")
    given = parser.parse_args()
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        trial(given.folder.resolve(), given.iters)
        return
    with tempfile.TemporaryDirectory() as folder:
        trial(Path(folder), given.iters)


if __name__ == "__main__":
    main()
