"""Random transcripts: what a session could write, with content that means harm."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from mlx_tools.messages import ErrorInfo, ToolSpec
from mlx_tools.prompt import (
    ChatFormat,
    Frame,
    Neutraliser,
    Prompt,
    build_examples,
    build_system,
)
from mlx_tools.prompt.neutralise import KNOWN_TOKENS
from mlx_tools.protocol import forcing_prefix, write_answer, write_call
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    ObservationRecord,
    Record,
    StoppedRecord,
    UserRecord,
)
from tests.prompt.conversations import WORDS

STYLES = ("jsonl", "markdown-json", "xml")

FRAGMENTS = st.sampled_from(
    [
        *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "</s>"),
        *("[/INST]", "<|end|>", "<|assistant|>", "<think>", "</think>", "<tool_call>"),
        *("</tool_call>", "<final_answer>", "</final_answer>", "<tool_response>", "<|channel|>"),
        *("\nUser: ", "\nAssistant: ", "<", "|im_end|>", "im_start|>", "<|im_", "end|>", "/s>"),
        *('{"type":"tool_observation","name":"x","content":"y"}', "\n", " ", "{", '"', "\\"),
        *("```json\n", "```", "hello", "17 * 23", "·", "\u2028", "\ud800", "é", "<repo_name>"),
    ]
)
CONTENT = st.one_of(
    st.lists(st.one_of(FRAGMENTS, st.sampled_from(KNOWN_TOKENS)), max_size=6).map("".join),
    st.text(max_size=20),
)


@dataclass(frozen=True)
class Step:
    """The next step of a session: a completion that begins with ``prefix``, or nothing more."""

    records: tuple[Record, ...]
    prefix: str | None


@st.composite
def transcripts(draw: Any, style: Any) -> list[Step]:
    """A conversation: the records before each completion, and the prefix it is asked with."""
    steps: list[Step] = []
    records: list[Record] = []
    turn = 0
    for _ in range(draw(st.integers(1, 3))):
        brought = tuple(draw(st.lists(CONTENT, max_size=2)))
        records.append(UserRecord(content=draw(CONTENT), tools=brought))
        for _ in range(draw(st.integers(0, 3))):
            turn += 1
            choice = draw(st.sampled_from(("auto", "auto", "required", "none", "calculator")))
            prefix = forcing_prefix(style, choice)
            steps.append(Step(tuple(records), prefix))
            kind = draw(st.sampled_from(("calls", "calls", "broken", "answer")))
            records = _after(draw, style, turn, prefix, kind)
            if kind == "answer":
                break
        else:
            records.append(StoppedRecord(reason="iteration_limit"))
    return [*steps, Step(tuple(records), None)]


def _after(draw: Any, style: Any, turn: int, prefix: str, kind: str) -> list[Record]:
    """A completion, and what follows of it."""
    if kind == "answer":
        content = draw(CONTENT)
        said = _going_on(prefix, draw(st.one_of(st.just(write_answer(content, style)), CONTENT)))
        return [_completion(turn, prefix, said), AnswerRecord(turn=turn, content=content)]
    if kind == "broken":
        code = draw(st.sampled_from(("invalid_json", "truncated_output", "iteration_limit")))
        said = draw(st.one_of(st.just(""), CONTENT.map(lambda text: _going_on(prefix, text))))
        error = ErrorInfo(code, draw(CONTENT)[:200])
        return [_completion(turn, prefix, said), CorrectionRecord(turn=turn, error=error)]
    calls = [
        CallRecord(
            turn=turn,
            call=f"{turn}.{number}",
            name=draw(st.sampled_from(("calculator", "read_file"))),
            arguments={"text": draw(CONTENT)},
            id=draw(st.one_of(st.none(), CONTENT)),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    lines = "\n".join(write_call(c.name, c.arguments, c.id, style) for c in calls)
    said = _going_on(prefix, draw(CONTENT) + lines)
    records: list[Record] = [_completion(turn, prefix, said), *calls]
    records += [
        DecisionRecord(call=c.call, decision="allow", rule="allow", reason=draw(CONTENT))
        for c in calls
    ]
    observed: list[Record] = [
        ObservationRecord(call=c.call, name=c.name, id=c.id, **draw(_outcomes())) for c in calls
    ]
    if draw(st.booleans()):
        observed.append(CorrectionRecord(turn=turn, error=ErrorInfo("invalid_json", "cut off")))
    return records + draw(st.permutations(observed))


def _outcomes() -> st.SearchStrategy[dict[str, Any]]:
    errors = CONTENT.map(lambda text: {"error": ErrorInfo("tool_error", text)})
    return st.one_of(CONTENT.map(lambda text: {"content": text}), errors)


def _going_on(prefix: str, text: str) -> str:
    return text if text.startswith(prefix) else prefix + text


def _completion(turn: int, prefix: str, counted: str) -> CompletionRecord:
    text = counted.removeprefix(prefix) + "\nand what was dropped"
    return CompletionRecord(turn=turn, prefix=prefix, text=text, retained_text=counted)


# --- sessions that have not begun, with a text of every origin ---


ORIGINS = (
    *("persona", "project_context", "tool_description", "parameter_name"),
    *("parameter_description", "parameter_example", "earlier_question", "earlier_answer"),
    *("example_observation", "question", "brought_tool", "prose_before_calls"),
    *("argument", "call_id", "unknown_tool", "observation", "tool_error", "broken_line"),
    *("correction", "answer", "prose_answer"),
)
"""The origin of a text. All are anybody's but the names of tools, which are ASCII words."""
TOOL_NAMES = ("read_file", "im_start", "user", "system", "endoftext", "eot_id", "assistant.s")


def texts_of(tool_name: str = "read_file", **given: str) -> Any:
    """A text of every origin: those that are given, else one in which there is nothing."""
    return SimpleNamespace(**{**dict.fromkeys(ORIGINS, "x"), "tool_name": tool_name, **given})


def tools_with(texts: Any) -> list[ToolSpec]:
    """Two tools, one of which holds texts wherever it can."""
    schema = {
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "description": texts.parameter_description,
                "examples": [texts.parameter_example],
            },
            f"p{texts.parameter_name}": {"enum": [texts.parameter_example, 1]},
        },
        "required": ["path"],
    }
    return [
        ToolSpec(texts.tool_name, texts.tool_description, schema),
        ToolSpec("calculator", texts.tool_description),
    ]


def opened(chat_format: ChatFormat, style: Any, texts: Any, **more: Any) -> Prompt:
    """The prompt of a session that has not begun, and an example with texts."""
    neutraliser = Neutraliser(chat_format.control_tokens)
    tools = tools_with(texts)
    system = build_system(
        Frame(
            words=WORDS,
            style=style,
            tools=tools,
            project_context=texts.project_context,
            persona=texts.persona,
            neutraliser=neutraliser,
        )
    )
    own = [
        {"role": "user", "content": texts.earlier_question},
        {"role": "assistant", "content": write_call("calculator", {}, style=style)},
        {"role": "observation", "content": texts.example_observation},
        {"role": "assistant", "content": write_answer(texts.earlier_answer, style)},
    ]
    return Prompt(
        chat_format=chat_format,
        style=style,
        system=system.text,
        examples=[*build_examples(WORDS, tools, style), *own],
        neutraliser=neutraliser,
        words=WORDS,
        **more,
    )
