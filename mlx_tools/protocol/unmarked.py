"""Calls without known marks, in a text without a message.

See reading rules 8a and 8b. The text is complete. Each candidate is judged by two things: whether
it names a tool that could take its arguments, and its place in the text
(`mlx_tools.protocol.judging`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from mlx_tools.messages import ErrorInfo, FinishReason, Message, ToolCall, replace
from mlx_tools.parsing import (
    CutOff,
    Fault,
    TextSource,
    finished,
    last_fence,
    match_any,
    only_fence,
    without_quoted,
)
from mlx_tools.protocol.call_like import BESIDE_TEXT, CallLikeText, may_be_call
from mlx_tools.protocol.call_sequence import CallSequenceReader
from mlx_tools.protocol.catalog import ToolCatalog
from mlx_tools.protocol.delimiters import AFTER_MESSAGES, CONTROL_TOKEN, END_TOKENS
from mlx_tools.protocol.dialects import BARE
from mlx_tools.protocol.judging import Candidate, Place, outcome
from mlx_tools.protocol.reading import Reading, ReadingRules
from mlx_tools.schema import read_required

_MAX_REREADS: Final = 4
"""Times the length of a text that is read at most if texts that begin like calls are none."""

_WORD: Final = re.compile(r"[A-Za-z_$][\w$.:/-]*")
_BEGINNING: Final = re.compile(rf"(?:\s|{CONTROL_TOKEN.pattern})*")
_HEADER: Final = re.compile(
    r"^[ \t]{0,8}(?:(?:assistant|commentary|analysis|final)[ \t\n]{1,4}){0,4}to=(?P<name>[\w.-]+)"
    r"(?:[ \t]|commentary|json|code|<\|\w{1,20}\|>){0,12}(?=\{)",
    re.MULTILINE,
)
_CALLED_LINE: Final = re.compile(
    r"^ {0,3}(?:\[\s*)?(?:print\(\s*)?(?P<name>[A-Za-z_][\w.]*)\(", re.MULTILINE
)
_NAME_KEY: Final = re.compile(
    r"[{,]\s*[\"']?(?:name|tool|tool_name|function|action)[\"']?\s*:\s*[\"'](?P<name>[\w.$-]+)"
)
_CHILD: Final = re.compile(r"<(?P<tag>[\w.-]+)>\s*<(?P<child>[\w.-]+)>")
_ENVELOPE: Final = re.compile(
    r"^[ \t]*(?P<object>\[?[ \t]*\{)"
    r"(?=[^\n]{0,200}\"(?:tool_calls|function_calls|tool_use|function)\")",
    re.MULTILINE,
)
_LINE_BEGUN: Final = re.compile(r"^[ \t]*(?=[\[{<A-Za-z_])", re.MULTILINE)
_MAX_INDENT: Final = 3  # blanks before a line; with more it is code
_EXTRA_CLOSERS: Final = ")]}"  # brackets behind calls that close nothing
_ENDS: Final = re.compile(
    rf"\s*(?:(?:{match_any([*END_TOKENS]).pattern}|{CONTROL_TOKEN.pattern})\s*)*"
)


class ProseJudgement(Struct, frozen=True, kw_only=True):
    """The judgement of a text without a message.

    It has calls or an answer from ``begin`` to ``end``, or an error. With neither, the text is
    prose.
    """

    messages: tuple[Message, ...] = ()
    begin: int = 0
    end: int = 0
    dropped: tuple[str, ...] = ()
    error: ErrorInfo | None = None
    is_call_like: bool = False
    """True if the error is that the text looks like a call (rule 8b)."""
    is_alone: bool = True


def _call_like(reason: str) -> ProseJudgement:
    return ProseJudgement(error=ErrorInfo("invalid_json", reason[:500]), is_call_like=True)


class ProseJudge:
    """Judges a text that holds no message that is read by its marks."""

    def __init__(
        self,
        text: str,
        catalog: ToolCatalog,
        rules: ReadingRules,
        reason: FinishReason,
        read_inside: Callable[[str], Reading] | None,
    ) -> None:
        """``read_inside`` reads the content of a fence; None within one."""
        self._text = text
        self._catalog = catalog
        self._rules = rules
        self._reason = reason
        self._read_inside = read_inside
        self._budget = _MAX_REREADS * len(text)
        self._unquoted = ""  # the text without what is quoted in it

    def judgement(self) -> ProseJudgement:
        """Return what the text is."""
        return next(filter(None, self._judgements()), ProseJudgement())

    def _judgements(self) -> Iterator[ProseJudgement | None]:
        """Yield the result of each way of reading the text; the first result counts."""
        # From the surest to the vaguest: text that is read as calls is never only call-like.
        yield self._judge_whole()
        yield self._judge_last_fence()
        if not self._catalog:
            return
        fence = only_fence(self._text)
        is_data = fence is not None and fence.inside.lstrip()[:1] in ("{", "[")
        # Gemma calls in such a fence, so its content is not quoted.
        is_own = fence is not None and fence.info.startswith("tool_code")
        self._unquoted = self._text if is_data or is_own else without_quoted(self._text)
        if self._catalog.pattern().search(self._text):
            yield self._judge_headers()
            yield self._judge_line_calls()
        reason = CallLikeText(self._text, self._unquoted, self._catalog).reason()
        yield _call_like(reason) if reason else None

    def _begins_call(self, word: str) -> bool:
        """Return whether calls may begin with this word."""
        name = re.sub(r":[0-9]*\Z", "", word).rstrip(".:/-")
        names = name, name.removeprefix("function"), name.removeprefix("print")
        return any(map(self._catalog.find, names)) or name == "print"

    # --- reading a sequence -------------------------------------------------------------------

    def _sequence(self, begin: int) -> CallSequenceReader:
        """Read the calls without a mark that begin at ``begin``."""
        source = TextSource(self._text, pos=begin, final=True)
        sequence = CallSequenceReader(source, BARE, self._catalog, self._rules.max_calls)
        finished(sequence.steps())
        # Each line may begin a sequence that is read to the end of the text and is none.
        self._budget -= source.pos - begin
        return sequence

    def _take(self, sequence: CallSequenceReader, begin: int, *, is_alone: bool) -> ProseJudgement:
        """Take the calls of a sequence, with a repair for the missing mark."""
        is_cut = sequence.cut is not None
        if is_cut and not sequence.may_close(self._reason, self._rules.mutates):
            return ProseJudgement(error=ErrorInfo("truncated_output", "the output was cut off"))
        is_own = "" in self._rules.native or sequence.is_typed
        named = () if is_own else ("envelope_alias" if sequence.aliases else "dialect",)
        calls = [
            replace(call, repairs=tuple(dict.fromkeys((*named, *call.repairs))))
            for call in sequence.calls
        ]
        wrapping_end, turn_end = self._ends(sequence)
        left = self._text[turn_end:].strip(" \t\r\n,;")
        is_alone = is_alone and not is_cut and not left.strip(_EXTRA_CLOSERS)
        left = left.lstrip(f" \t\r\n,;{_EXTRA_CLOSERS}").rstrip()
        return ProseJudgement(
            messages=tuple(calls),
            begin=begin,
            end=sequence.end if left else wrapping_end,
            dropped=tuple(filter(None, (*sequence.dropped, left))),
            is_alone=is_alone,
        )

    def _ends(self, sequence: CallSequenceReader) -> tuple[int, int]:
        """Return where the wrapping after calls ends, and the turn's end after it."""
        wrapping = AFTER_MESSAGES.match(self._text, sequence.end)
        end = wrapping.end() if wrapping else sequence.end
        turn_end = _ENDS.match(self._text, end)
        return end, turn_end.end() if turn_end else end

    def _reaches_end(self, sequence: CallSequenceReader) -> bool:
        most = self._rules.max_calls
        if sequence.cut is not None or (most is not None and len(sequence.calls) >= most):
            return True
        return not self._text[self._ends(sequence)[1] :].strip(f"{_EXTRA_CLOSERS} \t\r\n")

    # --- what may stand in the text -----------------------------------------------------------

    def _judge_whole(self) -> ProseJudgement | None:
        """Judge the text as calls alone, thoughts and one fence aside; else None."""
        fence = only_fence(self._text)
        found = _BEGINNING.match(self._text)
        begin = found.end() if found is not None and fence is None else 0
        if fence is not None:
            begin = self._text.index(fence.inside, fence.begin) if fence.inside else fence.begin
            while self._text[begin : begin + 1].isspace():
                begin += 1
        first = self._text[begin : begin + 1]
        word = _WORD.match(self._text, begin)
        if first not in ("{", "[", "<") and (word is None or not self._begins_call(word[0])):
            return None
        sequence = self._sequence(begin)
        if sequence.calls and not self._reaches_end(sequence):
            return None
        if not sequence.calls and not (sequence.cut or sequence.fault):
            return None
        candidate = sequence.candidate("whole")
        if not self._catalog:
            is_alias = sequence.aliases and candidate.is_explicit and sequence.calls
            return self._take(sequence, 0, is_alone=True) if is_alias else None
        if not sequence.calls:
            return self._judge_unreadable(sequence, begin, first)
        if outcome(candidate, "spoken") != "call":
            return None
        if first == "<" and fence is not None:
            return _call_like("elements in a fence are no call")  # they may be a document
        return self._take(sequence, 0, is_alone=True)

    def _judge_unreadable(
        self, sequence: CallSequenceReader, begin: int, first: str
    ) -> ProseJudgement | None:
        """Judge a text that begins like calls but cannot be read as calls; else None."""
        names = sequence.names_tool
        if first in ("{", "["):
            found = _NAME_KEY.search(self._text, begin, begin + 400)
            names = names or (found is not None and self._begins_call(found["name"]))
        rest = self._text[begin:].strip()
        is_json = first in ("{", "[") and not sequence.is_python
        ends = ("}", "]") if is_json else (")", ")]", "}", ">")
        if not names or not (sequence.cut or rest.rstrip("`\n ").endswith(ends)):
            return None
        if is_json and '"description"' in rest:
            return None  # it describes a tool
        is_code = rest.startswith("print") or "\n\n" in rest
        if not is_json and (is_code or not may_be_call(rest)):
            return None
        if sequence.cut is not None and sequence.names_tool:
            return ProseJudgement(error=ErrorInfo("truncated_output", "the output was cut off"))
        return _call_like(sequence.fault or "the call is not closed")

    def _judge_headers(self) -> ProseJudgement | None:
        """Judge a message's header without control tokens, and its arguments; else None."""
        found = _HEADER.search(self._unquoted)
        if found is None or not self._catalog.find(found["name"]):
            return None
        source = TextSource(self._text, pos=found.end(), final=True)
        try:
            value, repairs = finished(source.json_object())
        except (Fault, CutOff):
            return _call_like("the arguments cannot be read")
        name = self._catalog.find(found["name"])
        if self._text[source.pos :].strip():
            return _call_like("text follows the call")
        if not self._catalog.fits(name, value):
            return _call_like("the arguments do not fit the tool")
        call = ToolCall(name, value, None, ("dialect", *repairs))
        return ProseJudgement(messages=(call,), begin=found.start(), end=source.pos, is_alone=False)

    def _judge_line_calls(self) -> ProseJudgement | None:
        """Judge calls that begin a line beside prose; else None.

        Calls in Python count if they are the last lines. Objects count if they have their own type
        of call, as OpenAI's do. Other calls are call-like.
        """
        is_like, pos = False, 0
        for found in _LINE_BEGUN.finditer(self._unquoted):
            begin = found.end()
            if found.start() < pos or self._budget < 0 or not self._may_begin(found.start(), begin):
                continue
            sequence = self._sequence(begin)
            pos = sequence.source.pos
            if not sequence.calls:
                continue
            if self._is_last(sequence):
                return self._take(sequence, found.start(), is_alone=False)
            candidate = sequence.candidate("line")
            said = outcome(candidate, "spoken")
            if said == "call" and candidate.kind == "marked" and not sequence.cut:
                return self._take(sequence, found.start(), is_alone=False)
            # `clock()` in a line is how people name a function.
            is_mentioned = candidate.kind == "python" and not sequence.calls[0].arguments
            is_beside = said == "call_like" and not sequence.has_text_behind
            is_like = is_like or (is_beside and not is_mentioned)
        return _call_like(BESIDE_TEXT) if is_like else None

    def _may_begin(self, line: int, begin: int) -> bool:
        """Return whether calls may begin there, after the blanks of a line."""
        if _ENVELOPE.match(self._unquoted, line):
            return True
        if begin - line > _MAX_INDENT or "\t" in self._text[line:begin]:
            return False  # it is code
        first = self._text[begin]
        if first == "<":
            child = _CHILD.match(self._text, begin)
            return child is not None and bool(self._catalog.find(child["tag"]))
        if first == "[":
            return _CALLED_LINE.match(self._text, begin) is not None
        word = _WORD.match(self._text, begin)
        return word is not None and self._begins_call(word[0])

    def _is_last(self, sequence: CallSequenceReader) -> bool:
        """Return whether calls in Python are the last lines, and none is only mentioned."""
        if not sequence.is_python or sequence.cut or not self._reaches_end(sequence):
            return False
        call, candidate = sequence.calls[0], sequence.candidate("whole")
        due = read_required(self._catalog.parameters(call.name))
        is_call = bool(candidate.fits) and outcome(candidate, "spoken") == "call"
        return is_call and not call.arguments.keys() < set(due)

    def _judge_last_fence(self) -> ProseJudgement | None:
        """Judge the last fence, if it holds a call and nothing else; else None."""
        fence = last_fence(self._text)
        if fence is None or not fence.inside.strip() or self._read_inside is None:
            return None
        place: Place = "last_fence"
        inner = self._read_inside(fence.inside)
        is_own = all("dialect" not in one.repairs for one in inner.messages)
        if inner.messages and not inner.bare_text and inner.error is None and is_own:
            is_alias = any("envelope_alias" in one.repairs for one in inner.messages)
            if not is_alias:
                return ProseJudgement(
                    messages=inner.messages, begin=fence.begin, end=fence.end, is_alone=False
                )
        if inner.error is not None:
            return _call_like(inner.error.message) if inner.call_like else None
        calls = [one for one in inner.messages if isinstance(one, ToolCall)]
        calls = [one for one in calls if self._catalog.find(one.name)]
        is_python = _CALLED_LINE.match(fence.inside) is not None
        if not calls:
            return None
        fits = self._catalog.fits(calls[0].name, calls[0].arguments)
        candidate = Candidate("python" if is_python else "marked", True, fits)
        is_call_like = outcome(candidate, place) == "call_like"
        return _call_like("a call in a fence behind text is no call") if is_call_like else None
