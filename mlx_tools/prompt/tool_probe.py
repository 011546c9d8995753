"""Detection of a model's own way of writing tools, calls and results.

As in `mlx_tools.prompt.chat_template`, the template is rendered with words that cannot be mistaken
for its own, and the texts between them are taken. The result must reproduce other conversations
too, byte by byte. If it does not, only the template itself can write a conversation, and it may
rewrite text that was sent before; then there is no style ``native`` for the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mlx_tools.errors import ChatFormatError
from mlx_tools.messages import replace
from mlx_tools.prompt.chat_format import (
    ChatFormat,
    Slots,
    TemplateRefused,
    ToolFormat,
    fill_slots,
    gaps,
    insert_slots,
    render_function,
)
from mlx_tools.protocol import DIALECTS, Dialect

if TYPE_CHECKING:
    from mlx_tools.prompt.template_sandbox import ChatTemplate

_SYSTEM: Final = "xqSystemTextxq"
_QUESTION: Final = "xqQuestionTextxq"
_CALL_TEXT: Final = "xqCallTextxq"
_RESULT: Final = 'xq{}Resultxq "'
_ORDINALS: Final = ("First", "Second", "Third")

Message = Mapping[str, Any]


class ToolsUnknown(Exception):
    """The reason, for a person, why a template's form of tools cannot be learnt."""


class _CallsNotRendered(ToolsUnknown):
    """The template leaves the writing of calls to the message's text."""


class _ProbeCall(NamedTuple):
    """A call of the probe: its tool's name, its id, its one argument's name and value."""

    name: str
    id: str
    key: str
    value: str

    @property
    def function(self) -> dict[str, Any]:
        """The tool that is called, as a template gets it."""
        parameter = {"type": "string", "description": f"{self.key} of it"}
        return {
            "name": self.name,
            "description": f"Does {self.name}.",
            "parameters": {
                "type": "object",
                "properties": {self.key: parameter},
                "required": [self.key],
            },
        }


_CALLS: Final = tuple(
    _ProbeCall(f"xq{one}Toolxq", f"xq{one[0]}aaaaq{n}", f"xq{one}Keyxq", f"xq{one}Valuexq")
    for n, one in enumerate(_ORDINALS)
)


@dataclass(frozen=True)
class _TemplateTraits:
    """The way in which a template takes its input."""

    has_tools_option: bool = True
    """True if tools are an option beside the messages, False if in the system message."""
    system: bool = True
    """True if there is a system message."""
    arguments: bool = True
    """True if a call's arguments are an object, False for a string."""
    empty: str | None = ""
    """The content of a message that calls."""
    parts: bool = False
    """True if content is in parts, False for text."""


class _Conversations:
    """Renders conversations with tools, all of them in one way."""

    def __init__(self, template: ChatTemplate, way: _TemplateTraits) -> None:
        self._template, self.way = template, way

    def text(self, *messages: Message, system: str = _SYSTEM, tools: int = 2) -> str:
        """Return the text that the template writes; raise `ToolsUnknown` if it refuses."""
        way = self.way
        functions = [call.function for call in _CALLS[:tools]]
        options: dict[str, Any] = {}
        lead: list[dict[str, Any]] = [{"role": "system", "content": system}] if way.system else []
        if way.has_tools_option and tools:
            options["tools"] = [{"type": "function", "function": one} for one in functions]
        elif tools:
            lead[0]["tools"] = json.dumps(functions)
        sent = [*lead, *(dict(message) for message in messages)]
        for message in sent:
            content = message.get("content")
            if way.parts and isinstance(content, str):
                message["content"] = [{"type": "text", "text": content}]
        try:
            return self._template.render(sent, ask=True, **options)
        except (TemplateRefused, ChatFormatError) as error:
            raise ToolsUnknown(f"its template refuses it: {error}") from None

    def call_message(self, count: int) -> Message:
        """Return a message that makes so many calls."""
        return {
            "role": "assistant",
            "content": self.way.empty,
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": {call.key: call.value}
                        if self.way.arguments
                        else json.dumps({call.key: call.value}),
                    },
                }
                for call in _CALLS[:count]
            ],
        }


def _asking(text: str = _QUESTION) -> Message:
    return {"role": "user", "content": text}


def _result(number: int) -> Message:
    call = _CALLS[number]
    content = _RESULT.format(_ORDINALS[number])
    return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content}


def tools_from_template(
    template: ChatTemplate, chat_format: ChatFormat, *, bos: str, marks: Sequence[str]
) -> ToolFormat:
    """Learn how the template writes tools.

    ``chat_format`` was read from the same template.

    ``bos`` is the text that the template writes first and the prompt does not, or that the prompt
    writes by itself. ``marks`` are the dialects' marks in the template or among the model's tokens.
    Raises `ToolsUnknown`, with the reason, if it cannot be learnt.
    """
    listing, opened = _find_listing(template)
    form, begin, end = _read_listing(opened)
    opening, asked = _read_opening(opened, begin, end, bos, chat_format)
    if asked != chat_format.user[1] + chat_format.assistant[0]:
        raise ToolsUnknown("its template asks for an answer otherwise where there are tools")
    learnt, way, rendered = _Learner(chat_format, marks).turns(template, listing.way)
    family = _BY_NAME.get(learnt["dialect"])
    learnt["close"] = learnt["close"] or ("" if family is None else family.close)
    user, system = chat_format.user[0], chat_format.system
    if system is None:
        before, after = chat_format.system_in_user
        toolless: Slots = (user + before, "system", after)
    else:
        toolless = (system[0], "system", system[1] + user)
    tools = ToolFormat(opening=opening, toolless=toolless, **form, **learnt)
    others = _Conversations(template, way)
    for system_text, count in (("xqOtherSystemxq", 1), ("xqOther\nlines of itxq", 3)):
        _check(others, tools, chat_format, bos, rendered, system_text, count)
    return tools


def _find_listing(template: ChatTemplate) -> tuple[_Conversations, str]:
    """Return the first way in which the template lists tools, and its text then."""
    fault: ToolsUnknown | None = None
    differs = taken = False
    for beside, system, parts in product((True, False), (True, False), (False, True)):
        if not (beside or system):
            continue
        tried = _Conversations(
            template, _TemplateTraits(has_tools_option=beside, system=system, parts=parts)
        )
        try:
            written = tried.text(_asking())
            differs = differs or written != tried.text(_asking(), tools=0)
            taken = True
        except ToolsUnknown as refused:
            fault = fault or refused
            continue
        if all(call.name in written for call in _CALLS[:2]) and _QUESTION in written:
            return tried, written
    if differs:
        raise ToolsUnknown("its template does not tell of tools by name")
    if fault is not None and not taken:
        raise fault
    raise ToolsUnknown("its template has no tools")


# --- the tools --------------------------------------------------------------------------------


def _read_listing(text: str) -> tuple[dict[str, Any], int, int]:
    """Return the form of the two tools in ``text``, and where they begin and end."""
    first, second = (call.function for call in _CALLS[:2])
    for wrapped, indent, compact in product((True, False), (0, 2, 4), (False, True)):
        for margin in {"", " " * indent}:
            tools = [render_function(f, wrapped, indent, compact, margin) for f in (first, second)]
            if found := gaps(text, tools):
                form: dict[str, Any] = {"is_wrapped": wrapped, "indent": indent, "compact": compact}
                form |= {"margin": margin, "separator": found[1]}
                return form, len(found[0]), len(text) - len(found[2])
    raise ToolsUnknown("its template tells of tools in another form than JSON")


def _read_opening(
    text: str, begin: int, end: int, bos: str, chat_format: ChatFormat
) -> tuple[Slots, str]:
    """Return the text before the question, with slots, and the text after it."""
    if text.count(_QUESTION) != 1 or text.count(_SYSTEM) > 1:
        raise ToolsUnknown("its template writes a message more than once where there are tools")
    at = text.index(_QUESTION)
    if at < end:
        raise ToolsUnknown("its template tells of tools behind the question")
    system = {"system": _SYSTEM}
    slots = (*insert_slots(text[:begin], system), "tools", *insert_slots(text[end:at], system))
    if _SYSTEM not in text:
        between = chat_format.system_in_user
        slots = (*slots[:-1], slots[-1] + between[0], "system", between[1])
    return (slots[0].removeprefix(bos), *slots[1:]), text[at + len(_QUESTION) :]


# --- calls and results ------------------------------------------------------------------------

_BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}
_BEGINS: Final = re.compile(r'\s*\[?\s*\{\s*"(\w+)"\s*:\s*"')
"""The beginning of a call in JSON, up to its tool's name."""


class _Learner:
    """Learns how calls and their results look in a chat format's turns."""

    def __init__(self, chat_format: ChatFormat, marks: Sequence[str]) -> None:
        self._format, self._marks = chat_format, marks

    def turns(
        self, template: ChatTemplate, way: _TemplateTraits
    ) -> tuple[dict[str, Any], _TemplateTraits, bool]:
        """Return the first reading of turns with calls and results that succeeds.

        It is as in `ToolFormat`. With it come the way that the template accepted, and True if the
        template writes calls apart from the message's text.
        """
        fault: ToolsUnknown | None = None
        unwritten = False
        for arguments, empty, (calls, results) in product(
            (True, False), ("", None), ((2, 2), (1, 2), (1, 1))
        ):
            tried = _Conversations(template, replace(way, arguments=arguments, empty=empty))
            try:
                return self._learn_rendered(tried, calls, results), tried.way, True
            except ToolsUnknown as unknown:
                fault = fault or unknown
                unwritten = unwritten or isinstance(unknown, _CallsNotRendered)
        for results in (2, 1) if unwritten else ():
            try:
                return self._learn_unrendered(_Conversations(template, way), results), way, False
            except ToolsUnknown as unknown:
                fault = unknown
        assert fault is not None
        raise fault

    def _learn_rendered(self, template: _Conversations, calls: int, results: int) -> dict[str, Any]:
        """Learn from a template that writes a message's ``tool_calls`` itself."""
        text = template.text(
            _asking(), template.call_message(calls), *(_result(number) for number in range(results))
        )
        turn, (between, after), encoded = self._results(text, results)
        if _CALLS[0].name not in turn and _CALLS[0].value not in turn:
            raise _CallsNotRendered("its template does not write calls")
        header = next((h for h in self._headers if turn.startswith(h)), None)
        if header is None:
            raise ToolsUnknown("its template opens a turn that calls otherwise than others")
        said = turn[len(header) :]
        last = _CALLS[calls - 1].value
        if any(said.count(call.value) != 1 for call in _CALLS[:calls]):
            raise ToolsUnknown("its template does not write the arguments of a call")
        begin, _, rest = said.partition(_CALLS[0].name)
        behind = said[said.index(last) + len(last) :]
        dialect = self._dialect(begin, said[: said.index(last)] + behind)
        close, head = self._split_end(behind, dialect)
        if not rest or any(_CALLS[0].id in part for part in (begin, rest.partition(last)[0])):
            raise ToolsUnknown("its template writes a call with an id that is the host's")
        call = begin, self._before_arguments(rest, dialect)
        name = dialect.name if dialect is not None else ""
        own = {"dialect": name, "call": call, "close": close, "is_json_string": encoded}
        return own | _around_results(head, between, after)

    def _learn_unrendered(self, template: _Conversations, results: int) -> dict[str, Any]:
        """Learn from a template that leaves the writing of calls to the model's text."""
        dialect = self._only_dialect()
        call = {"role": "assistant", "content": _CALL_TEXT}
        text = template.text(_asking(), call, *(_result(number) for number in range(results)))
        turn, (between, after), encoded = self._results(text, results)
        header, said, behind = turn.partition(_CALL_TEXT)
        end = self._format.assistant[1]
        if not said or header not in self._headers or not behind.startswith(end):
            raise ToolsUnknown("its template opens or ends a turn before results otherwise")
        head = behind[len(end) :]
        begin, close = (dialect.open, ""), dialect.close if dialect.close in self._marks else ""
        if dialect.body == "json" and dialect.name_key:
            bracket, closing = ("[", "]") if dialect.form == "array" else ("", "")
            opening = f'{dialect.open}{bracket}{{"{dialect.name_key}": "'
            begin, close = (opening, f'", "{dialect.arguments_key}": '), closing + close
        own = {"dialect": dialect.name, "call": begin, "close": close, "is_json_string": encoded}
        return own | _around_results(head, between, after)

    @property
    def _headers(self) -> tuple[str, ...]:
        """The texts that may open an assistant's turn, the longest first."""
        known = self._format
        found = {known.assistant[0], known.remembered, known.answering}
        return tuple(sorted(found, key=len, reverse=True))

    def _results(self, text: str, results: int) -> tuple[str, tuple[str | None, str], bool]:
        """Return the parts of a text around the results.

        They are the model's turn up to the first result, the texts between results (None for a
        single one) and after them, and True if results are JSON strings.
        """
        contents = [_RESULT.format(one) for one in _ORDINALS[:results]]
        quoted = [json.dumps(content) for content in contents]
        encoded = all(content in text for content in quoted)
        found = gaps(text, [_QUESTION, *(quoted if encoded else contents)])
        if found is None:
            raise ToolsUnknown("its template does not write the results of tools in their order")
        _, turn, *between, behind = found
        if not turn.startswith(self._format.user[1]):
            raise ToolsUnknown("its template ends a question otherwise where a call follows")
        if not behind.endswith(self._format.assistant[0]):
            raise ToolsUnknown("its template does not ask for an answer to results as to questions")
        after = behind[: len(behind) - len(self._format.assistant[0])]
        in_json = re.search(r'"\s*:\s*\Z', turn) is not None
        turn = turn[len(self._format.user[1]) :]
        return turn, (between[0] if between else None, after), encoded or in_json

    def _split_end(self, tail: str, dialect: Dialect | None) -> tuple[str, str]:
        """Return the end of the last call, and the text between it and the results."""
        suffix = self._format.assistant[1]
        if suffix and suffix in tail:
            closing, _, head = tail.partition(suffix)
        elif not suffix and dialect is not None and dialect.close and dialect.close in tail:
            closing, _, head = tail.rpartition(dialect.close)
            closing += dialect.close
        else:
            raise ToolsUnknown("its template ends a turn that calls otherwise than others")
        if "}" in closing:
            closing = closing[closing.rindex("}") + 1 :]
        elif dialect is not None:
            closing = dialect.close
        return closing, head

    def _before_arguments(self, text: str, dialect: Dialect | None) -> str:
        """Return the text between a call's name and its arguments."""
        before, key, _ = text.partition(_CALLS[0].key)
        if not key:
            raise ToolsUnknown("its template does not write the names of a call's arguments")
        if dialect is None or dialect.body in ("json", "named_json"):
            brace = before.rfind("{")
            if brace < 0 or before[brace + 1 :].strip(' \n"'):
                raise ToolsUnknown("its template writes a call's arguments in a form of its own")
            return before[:brace]
        return before[: before.rfind("<")] if "<" in before else ""

    def _dialect(self, begin: str, text: str) -> Dialect | None:
        """Return the dialect of a call with this beginning; None for a bare object."""
        found = [one for one in DIALECTS if not one.line and one.open in text]
        if not found and (bare := _BEGINS.fullmatch(begin)) and bare[1] == "name":
            return None

        def fits(dialect: Dialect) -> tuple[int, int]:
            named = _BEGINS.fullmatch(begin.partition(dialect.open)[2])
            if named is not None and begin.startswith(dialect.open):
                return 2 * (dialect.body == "json" and dialect.name_key == named[1]) - 1, len(
                    dialect.open
                )
            marks = [mark for mark in (*dialect.call, *dialect.inner) if mark]
            inner = sum(mark in text for mark in marks)
            right = dialect.body != "json" and (inner > 0 or not marks)
            return 2 * right - 1, inner

        best = max(found, key=fits, default=None)
        if best is None or fits(best)[0] < 0:
            raise ToolsUnknown("its template writes calls in a form that is not known")
        return best

    def _only_dialect(self) -> Dialect:
        """Return the one dialect whose mark is in the template or a token of the model."""
        found = [one for one in DIALECTS if one.open in self._marks and not one.line]
        opens = {one.open for one in found}
        if len(opens) != 1:
            which = f"several: {', '.join(sorted(opens))}" if opens else "none that is known"
            raise ToolsUnknown(f"its template does not say in which form it calls ({which})")
        return found[0]


def _around_results(head: str, text_between: str | None, text_after: str) -> dict[str, Slots]:
    """Return the texts around results, with slots for the ids and names of calls."""
    first, second = _CALLS[:2]
    own = {"id": first.id, "name": first.name}
    before = insert_slots(head, {"next_id": first.id, "next_name": first.name})
    if text_between is None:  # each result in a turn of its own
        end = insert_slots(text_after, own)
        middle: Slots = (*end[:-1], end[-1] + before[0], *before[1:])
    else:
        end = insert_slots(text_after, {"id": second.id, "name": second.name})
        middle = insert_slots(text_between, own | {"next_id": second.id, "next_name": second.name})
    return {"results_prefix": before, "results_separator": middle, "results_suffix": end}


# --- whether it holds ---------------------------------------------------------------------------


def _check(
    template: _Conversations,
    tools: ToolFormat,
    chat_format: ChatFormat,
    bos: str,
    is_rendered: bool,
    system: str,
    count: int,
) -> None:
    """Compose another conversation, and compare it with the template's.

    Raises:
        ToolsUnknown: they differ.
    """
    question, user, (ask, end) = "xqOtherQuestionxq", chat_format.user, chat_format.assistant
    functions = tools.separator.join(tools.render_json(call.function) for call in _CALLS[:count])
    begun = fill_slots(
        tools.opening, {"system": system if template.way.system else "", "tools": functions}
    )
    if not template.way.system:  # it has no place for a system text
        begun = begun[: len(begun) - len("".join(chat_format.system_in_user))]
    given: dict[str, Any] = {"system": system, "tools": count}
    text = template.text(_asking(question), **given).removeprefix(bos)
    if text != begun + question + user[1] + ask:
        raise ToolsUnknown("its template tells of tools in no fixed form")
    call = template.call_message(1) if is_rendered else {"role": "assistant", "content": _CALL_TEXT}
    text = template.text(_asking(question), call, _result(0), **given)
    content = _RESULT.format(_ORDINALS[0])
    content = json.dumps(content) if json.dumps(content) in text else content
    values = {"id": _CALLS[0].id, "name": _CALLS[0].name}
    values |= {f"next_{key}": value for key, value in values.items()}
    before, after = (
        fill_slots(slots, values) for slots in (tools.results_prefix, tools.results_suffix)
    )
    if question + user[1] not in text or not text.endswith(end + before + content + after + ask):
        raise ToolsUnknown("its template writes results in no fixed form")
