"""The marks around messages, and the lines that the host writes within them.

Marks are white space, fences, tags, bullets and the marks of thoughts.

Patterns end in ``(?=...)`` or have a second pattern for their beginnings. So text in pieces is read
like the whole text: a beginning at the end of a piece waits for more. All patterns are bounded in
length; longer text is prose. The lines of `write_call` and `write_answer` are read back unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

from mlx_tools.messages import Style, ToolObservation
from mlx_tools.parsing import NO_OBJECT, WHITE, compact, match_any, match_any_beginning
from mlx_tools.protocol.dialects import BY_MARK

CALL_TAG: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
ANSWER_TAG: Final = "<final_answer>"
ANSWER_END: Final = "</final_answer>"
RESPONSE_TAG: Final = "<tool_response>"
RESPONSE_END: Final = "</tool_response>"

_FENCE: Final = r"(?:`{3,16}|~{3,16})"
FENCE: Final = re.compile(rf"({_FENCE})([A-Za-z0-9_+.-]{{0,32}})[ \t\r]{{0,16}}(?=[\n{{\[<]|\Z)")
"""A fence with its info string, which ends the line or comes before an object."""

BARE_FENCE: Final = re.compile(r"`{3,16}(?!`)|~{3,16}(?!~)")
FENCE_BEGUN: Final = re.compile(
    rf"(?:`{{1,2}}|~{{1,2}}|{_FENCE}[A-Za-z0-9_+.-]{{0,32}}[ \t\r]{{0,16}})\Z"
)
BULLET: Final = re.compile(r"(?:[-*+•]|[0-9]{1,3}[.)])[ \t]")
BULLET_BEGUN: Final = re.compile(r"(?:[-*+•]|[0-9]{1,3}[.)]?)\Z")

_WRAPPING: Final = (
    r"[ \t\r\n]++|(?:`{3,16}(?!`)|~{3,16}(?!~))"
    r"(?:[A-Za-z0-9_+.-]{1,32}+(?=[ \t\r]{0,16}(?:[\n{\[<]|\Z)))?"
)
AFTER_MESSAGES: Final = re.compile(rf"(?:{_WRAPPING}|</?tool_call>|</final_answer>)*")
"""Text that may follow the last message and is only its wrapping."""

AFTER_OBJECT: Final = re.compile(rf"{_WRAPPING}|</tool_call>|</final_answer>|\]")
"""Text that may follow an object whose closing brackets are missing."""

_CLOSER: Final = re.compile(r"[ \t\r\n]*+(?:(\])|(</tool_call>)|(`{3,16}|~{3,16}))")


class Wrapping(NamedTuple):
    """The wrapping that was open around a message, and is closed after it."""

    array: bool = False
    tag: bool = False
    fence: bool = False


def wrapping_end(text: str, pos: int, wrapping: Wrapping) -> int:
    """Return where the wrapping of a message ends, from ``pos`` on."""
    due = [*wrapping]
    while any(due) and (found := _CLOSER.match(text, pos)):
        which = (found.lastindex or 1) - 1
        if not due[which]:
            break
        due[which] = False
        pos = found.end()
    return pos


END_TOKENS: Final = (
    *("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>"),
    *("<|return|>", "<|call|>", "<|eot|>", "<|eom|>", "<end_of_turn>", "<turn|>", "</s>", "<eos>"),
    *("<|END_OF_TURN_TOKEN|>", "<|END_RESPONSE|>", "<|END_TEXT|>", "<|end_of_role|>"),
    *("<｜end▁of▁sentence｜>", "<｜User｜>", "<|close|>message<|sep|>"),
    *("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "[INST]", "<|user|>"),
    *("<|end_of_msg|>", "<|observation|>", "<|eot_token|>", "<|end_message|>", "<|end_of_text|>"),
    *("[e~[", "<bot_end>", "<|end_of_solution|>", "<|tool_calls_section_end|>", "<|eom|>"),
)
"""Marks that end a turn, or open the next one, in the formats of widely used models (rule 8c)."""

HEADERS: Final = (
    *("<|channel|>", "<|start|>assistant", "<|end|><|start|>assistant"),
    "<|eom|><|start|>assistant",
)
"""Marks before a message's header in formats whose turns hold several messages."""

CONTROL_TOKEN: Final = re.compile(
    r"</?[|｜][^<>|｜\n]{1,60}[|｜]>|<[|｜]?[\w▁:/. -]{1,60}[|｜]>|<[|｜]\w{1,30}>|✿\w{1,20}✿"
)
"""Text spelt like a control token of any model."""

STRIKETHROUGH: Final = "<s>"
"""Text struck through in HTML: its closing tag is spelt like an end token."""


class Marks:
    """The literal marks to search for.

    They are tags, marks of thoughts, ends of turns, and opening marks of the dialects.
    """

    def __init__(
        self,
        markers: tuple[tuple[str, str], ...],
        ends_of_turn: tuple[str, ...] = (),
        *,
        dialects: bool = False,
    ) -> None:
        """Collect the marks for these reasoning markers and ends of a turn.

        With ``dialects`` their opening marks are among them.
        """
        pairs = [(start, end) for start, end in markers if start and end]
        ends = [end for _, end in pairs]
        # Reversed, so that of two pairs with one opening mark the first counts.
        self.closers = {start: (end, match_any([end])) for start, end in reversed(pairs)}
        """By the mark that opens a thought: the mark that closes it, and its pattern."""

        for start, end in pairs:
            if start.startswith("<|channel|>"):  # a message of its own, with its own end
                self.closers[start] = (end, match_any([end, "<|end|>"]))
        # Plain formats have no token: a line such as `User:` opens the next turn.
        self.lines = tuple(end[1:] for end in ends_of_turn if end.startswith("\n") and end[1:])
        own = [end for end in ends_of_turn if end and not end.startswith("\n")]
        self.own_ends = frozenset(own)
        self.turn_ends = self.own_ends | frozenset(END_TOKENS)
        families = BY_MARK.items() if dialects else ()
        self.dialects = {mark: one for mark, one in families if not one.line}
        self.by_line = {mark: one for mark, one in families if one.line}
        tags = [CALL_TAG, CALL_END, ANSWER_TAG, ANSWER_END, RESPONSE_TAG, RESPONSE_END]
        tags += [*self.turn_ends, *HEADERS, STRIKETHROUGH, *self.dialects]
        marks = [*self.closers, *ends, *tags]
        self._all, self._ends = marks, ends
        self.mark = match_any(marks)
        self.longest = max(map(len, marks))
        self.special = re.compile(rf"\n|{{(?!{NO_OBJECT.pattern})|`++|{self.mark.pattern}")
        """The marks at which a stretch of prose ends, because more than prose may follow."""

        self.turn_end = re.compile(
            rf"[ \t\r\n]*+(?:{match_any([*self.turn_ends, *self.lines]).pattern})"
        )
        self.opener = match_any(list(self.closers))
        self.ends = frozenset(ends)
        self.any_end = match_any(ends)

    # Slow to make, and not needed for a turn that is one line of the protocol.

    @cached_property
    def beginnings(self) -> re.Pattern[str]:
        return match_any_beginning(self._all)

    @cached_property
    def end_begun(self) -> re.Pattern[str]:
        return match_any_beginning([*self._ends, "<|end|>"])


ANSWER_CLOSE: Final = (match_any([ANSWER_END]), match_any_beginning([ANSWER_END]), len(ANSWER_END))
marks: Final = lru_cache(maxsize=32)(Marks)

# --- lines that the host writes, in each style ----------------------------------------------------

_OPENINGS: Final = {"jsonl": "", "markdown-json": "```json\n", "xml": CALL_TAG}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_OWN_TAG: Final = re.compile(r"<(?=/?(?:tool_call|tool_response|final_answer)>)")


def _escaped(half: re.Match[str]) -> str:
    return f"\\u{ord(half[0]):04x}"


def _line(text: str, style: Style, tag: str = "", end: str = "") -> str:
    """Return a line of JSON with the marks that the style puts around it."""
    if not text.isascii():  # half a surrogate pair cannot be written as UTF-8
        text = _SURROGATE.sub(_escaped, text)
    if style == "markdown-json":
        return f"```json\n{text}\n```"
    # A tag within a string would end the element; escaped it is the same JSON.
    return tag + _OWN_TAG.sub(r"\\u003c", text) + end if style == "xml" else text


def write_call(
    name: str,
    arguments: Mapping[str, Any],
    id: str | None = None,  # noqa: A002  (the key on the wire)
    style: Style = "jsonl",
) -> str:
    """Return a call as the model should write it.

    In style ``native`` it is written as most families of models do.
    """
    if style == "native":
        # Blanks after separators, as `tojson` of chat templates writes them and models have
        # learned.
        given = {} if id is None else {"id": id}
        text = json.dumps({"name": name, "arguments": arguments} | given, ensure_ascii=False)
        return f"{CALL_TAG}\n{_SURROGATE.sub(_escaped, text)}\n{CALL_END}"
    call: dict[str, Any] = {} if style == "xml" else {"type": "tool_call"}
    call |= {"name": name, "arguments": arguments}
    if id is not None:
        call["id"] = id
    return _line(compact(call), style, CALL_TAG, CALL_END)


_ESCAPE: Final = re.compile(r"\\.")
_LONG_ESCAPES: Final = {r"\b": r"\u0008", r"\f": r"\u000c"}
"""Escapes that are written in the long form: rule 7 reads the short ones in an answer as a
backslash and a letter."""


def write_answer(content: str, style: Style = "jsonl") -> str:
    """Return a final answer as the model should write it.

    In style ``native`` it is bare text. In style ``xml`` a text that its tags would change is
    written as an object instead.
    """
    if style == "native":
        return content
    if style == "xml" and content == content.strip(WHITE) and ANSWER_END not in content:
        return f"{ANSWER_TAG}{content}{ANSWER_END}"
    line = compact({"type": "final_answer", "content": content})
    return _line(_ESCAPE.sub(lambda found: _LONG_ESCAPES.get(found[0], found[0]), line), style)


def write_observation(observation: ToolObservation, style: Style = "jsonl") -> str:
    """Return the end of a call as one line of JSON, whatever the tool returned."""
    error, given = observation.error, observation.id
    line = f'{{"type":"tool_observation","name":{compact(observation.name)}'
    if given is not None:
        line += f',"id":{compact(given)}'
    if error is not None:
        told = f'"code":{compact(error.code)},"message":{compact(error.message)}'
        line += f',"error":{{{told}}}}}'
    else:
        line += f',"content":{compact(observation.content or "")}}}'
    return _line(line, style, RESPONSE_TAG, RESPONSE_END)


def forcing_prefix(style: Style, tool_choice: str, call: tuple[str, str] = ("", "")) -> str:
    """Return the host's beginning of the model's turn, which forces how it goes on.

    ``tool_choice`` is ``auto`` (nothing is forced), ``none`` (an answer), ``required`` (a call) or
    the name of the tool to call. In style ``native``, ``call`` has the text before a call's name,
    with its whole mark, and the text between name and arguments. A bare answer has no beginning to
    write.
    """
    if tool_choice == "auto" or (style == "native" and (tool_choice == "none" or not call[0])):
        return ""
    if style == "native":
        if tool_choice == "required":
            return call[0]
        # After a key of JSON an object must come; other families go on with a mark of their own.
        in_json = call[1].rstrip().endswith(":")
        return call[0] + tool_choice + call[1] + ("{" if in_json else "")
    if tool_choice == "none":
        if style == "xml":
            return ANSWER_TAG
        return _OPENINGS[style] + '{"type":"final_answer","content":"'
    begun = _OPENINGS[style] + ("{" if style == "xml" else '{"type":"tool_call",') + '"name":"'
    if tool_choice == "required":
        return begun
    return begun + json.dumps(tool_choice)[1:-1] + '","arguments":{'


def opening(style: Style) -> str:
    """Return the host's beginning of a turn that may be any message.

    It is empty if it would split a mark of the style.
    """
    return "" if style in ("xml", "native") else _OPENINGS[style] + '{"type":"'
