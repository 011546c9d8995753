"""Detection of a chat format in the model's own template.

The template is rendered with texts that cannot be mistaken for its own, and the texts between them
are taken. So turns can be put together one after the other without the template, which might
rewrite text that was sent before. Some templates drop the thoughts of earlier turns, or move the
system text to the last question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mlx_tools.errors import ChatFormatError
from mlx_tools.messages import replace
from mlx_tools.prompt.chat_format import HINT, ChatFormat, TemplateRefused, empty_thought, gaps
from mlx_tools.prompt.neutralise import BUILTIN_TOKENS, REASONING_MARKERS, TOOL_MARKERS
from mlx_tools.prompt.tool_probe import ToolsUnknown, tools_from_template
from mlx_tools.protocol import DIALECTS

if TYPE_CHECKING:
    from mlx_tools.prompt.template_sandbox import ChatTemplate

_SYSTEM: Final = "xqSystemTextxq"
_QUESTION: Final = "xqFirstQuestionxq"
_ANSWER: Final = "xqFirstAnswerxq"
_CONVERSATION: Final = (
    ("user", _QUESTION),
    ("assistant", _ANSWER),
    ("user", "xqSecondQuestionxq"),
    ("assistant", "xqSecondAnswerxq"),
    ("user", "xqThirdQuestionxq"),
)

_THINKING_OPTIONS: Final = ("enable_thinking", "thinking")

_MARKER: Final = re.compile(
    r"<\|[^\s<>|]{1,64}\|>|<｜[^\s<>｜]{1,64}｜>|<\|?/?[A-Za-z_\"][\w:.\"-]{0,63}\|?>"
    r"|\[/?[A-Z][A-Z_]{1,40}\]|\[gMASK\]|<</?SYS>>|◁/?\w{1,32}▷"
)
"""The look of control tokens in published templates."""

Message = Mapping[str, Any]


class _Turns(NamedTuple):
    """The texts that a template writes between the texts of a conversation.

    ``opening`` comes before the first question without a system text; it may have a default one.
    """

    opening: str
    question_to_answer: str
    answer_to_question: str


def render_template(
    template: str, messages: Sequence[Message], *, bos_token: str = "", eos_token: str = ""
) -> str:
    """Return the prompt that a jinja2 chat template makes of messages.

    It ends with the text that asks for an answer.

    Raises:
        ChatFormatError: the template is broken, does too much, or refuses these messages.
    """
    from mlx_tools.prompt.template_sandbox import ChatTemplate  # jinja2 takes a while to import

    compiled = ChatTemplate(template, bos_token=bos_token, eos_token=eos_token)
    try:
        return compiled.render(messages, ask=True)
    except TemplateRefused as error:
        raise ChatFormatError(f"the model's chat template refuses: {error}", hint=HINT) from None


def format_from_template(
    template: str,
    *,
    name: str,
    bos_token: str = "",
    eos_token: str = "",
    special_tokens: Sequence[str] = (),
    adds_bos: bool,
) -> ChatFormat:
    """Return the chat format of a jinja2 chat template.

    Args:
        template: the template.
        name: the name of the format.
        bos_token: the beginning-of-text token.
        eos_token: the end-of-text token.
        special_tokens: the texts of the tokenizer's special tokens.
        adds_bos: True if the tokenizer begins every prompt with ``bos_token`` itself; the format
            then leaves it out.

    Raises:
        ChatFormatError: the template is broken, does too much, or does not write a conversation in
            its order.
    """
    from mlx_tools.prompt.template_sandbox import ChatTemplate  # jinja2 takes a while to import

    compiled = ChatTemplate(template, bos_token=bos_token, eos_token=eos_token)
    probe = _Probe(compiled)
    turns = probe.turns()
    suffix = probe.answer_suffix(turns)
    user_prefix = turns.answer_to_question[len(suffix) :]
    if adds_bos and bos_token and user_prefix.startswith(bos_token):
        # Every question begins with it; the first must not, so it goes with the end of an answer.
        suffix, user_prefix = suffix + bos_token, user_prefix[len(bos_token) :]
    bos, system, in_user = probe.system(turns, user_prefix, bos_token, adds_bos)
    markers = _markers(compiled.literals, special_tokens)
    user_suffix, assistant = _headers(probe, turns, markers)
    ask = assistant.pop("ask")
    ends = (_MARKER.findall(suffix) or _MARKER.findall(user_prefix))[:1]
    opening = turns.opening
    if bos_token and not user_prefix.startswith(bos_token):
        opening = opening.removeprefix(bos_token)
    tokens = (bos_token, eos_token, *special_tokens)
    headers = (user_prefix, ask, system[0] if system else "")
    dialects = (one.open for one in DIALECTS if not one.line and one.open in template)
    found = ChatFormat(
        name=name,
        bos=bos,
        system=system,
        system_in_user=in_user,
        default_system=opening.removesuffix(user_prefix) if system else "",
        user=(user_prefix, user_suffix),
        assistant=(ask, suffix),
        control_tokens=_control_tokens(compiled.literals, tokens, headers),
        end_tokens=tuple(dict.fromkeys(token for token in (eos_token, *ends) if token)),
        trims=probe.trims(has_system=system is not None),
        dialects=tuple(dict.fromkeys(dialects)),
        **assistant,
    )
    begins = bos_token if adds_bos else found.bos
    return _with_tools(found, compiled, begins, (template, *special_tokens))


def _with_tools(
    chat_format: ChatFormat, template: ChatTemplate, bos: str, rendered_tools: Sequence[str]
) -> ChatFormat:
    """Add how the template writes tools, or why that cannot be found out."""
    known = {mark for one in DIALECTS for mark in (one.open, one.close) if mark}
    marks = [mark for mark in known if any(mark in text for text in rendered_tools)]
    try:
        tools = tools_from_template(template, chat_format, bos=bos, marks=marks)
    except ToolsUnknown as unknown:
        return replace(chat_format, toolless=str(unknown))
    lines = _lines(tools.results_prefix[0], tools.results_suffix[-1])
    tokens = (*chat_format.control_tokens, *tools.marks, *lines)
    return replace(chat_format, tools=tools, control_tokens=tuple(dict.fromkeys(tokens)))


class _Probe:
    """Renders small conversations, in whatever form of content the template takes."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._parts = False
        self._lead: tuple[Message, ...] = ()
        self._fault: Exception | None = None  # the first

    def text(self, *messages: tuple[str, str], ask: bool = False, **options: Any) -> str:
        """Return the text that the template writes for messages of role and text.

        It is empty if the template refuses or cannot be rendered.
        """
        sent = [
            {"role": role, "content": [{"type": "text", "text": text}] if self._parts else text}
            for role, text in messages
        ]
        lead = () if messages[0][0] == "system" else self._lead
        try:
            return self._template.render((*lead, *sent), ask=ask, **options)
        except (TemplateRefused, ChatFormatError) as error:
            self._fault = self._fault or error
            return ""

    def turns(self) -> _Turns:
        """Read off the texts between three questions and two answers."""
        for self._parts in (False, True):
            for self._lead in ((), ({"role": "system", "content": ""},)):
                written = self.text(*_CONVERSATION, ask=True)
                if (found := gaps(written, [text for _, text in _CONVERSATION])) is not None:
                    return _Turns(found[0], found[3], found[4])
        if isinstance(self._fault, ChatFormatError):
            raise self._fault
        reason = f": {self._fault}" if self._fault is not None else ""
        raise ChatFormatError(
            f"the model's chat template does not write a conversation in its order{reason}",
            hint=HINT,
        )

    def answer_suffix(self, turns: _Turns) -> str:
        """Return the end of an assistant's turn.

        It is the part of the text between turns that also stands at the end of a conversation.
        """
        written = self.text(("user", _QUESTION), ("assistant", _ANSWER))
        end = _text_after(written, _ANSWER)
        shared = _shared(end, turns.answer_to_question) if end is not None else ""
        if shared or end == "":
            return shared
        # The template ends a conversation in a way of its own, so a marker has to do.
        first = _MARKER.match(turns.answer_to_question)
        return first[0] if first else ""

    def system(
        self, turns: _Turns, user_prefix: str, bos_token: str, adds_bos: bool
    ) -> tuple[str, tuple[str, str] | None, tuple[str, str]]:
        """Return the beginning-of-text, and the texts around the system text.

        The last pair is for a system text in the first user turn.
        """
        bos, opening = _split_bos(turns.opening, user_prefix, bos_token, adds_bos)
        written = self.text(("system", _SYSTEM), ("user", _QUESTION))
        found = gaps(written, [_SYSTEM, _QUESTION])
        if found is None:
            return bos + opening.removesuffix(user_prefix), None, ("", "\n\n")
        bos, before = _split_bos(found[0], user_prefix, bos_token, adds_bos)
        between = found[1]
        if user_prefix and between.endswith(user_prefix):
            return bos, (before, between[: len(between) - len(user_prefix)]), ("", "\n\n")
        if before.startswith(user_prefix):
            return bos, None, (before[len(user_prefix) :], between)
        shared = _shared(between[::-1], user_prefix[::-1])  # a first question opened otherwise
        return bos, (before, between[: len(between) - len(shared)]), ("", "\n\n")

    def after_question(self, *, ask: bool = True, **options: Any) -> str | None:
        """Return the text after the last question, None if it cannot be found out.

        With ``ask`` an answer is asked for.
        """
        written = self.text(("user", _QUESTION), ask=ask, **options)
        return _text_after(written, _QUESTION)

    def trims(self, *, has_system: bool) -> tuple[str, ...]:
        """Return the roles whose text loses its outer white space."""
        roles = []
        padded = f" \n{_SYSTEM}\n "
        for role, before, after in (
            ("system", (), (("user", _QUESTION),)),
            ("user", (), ()),
            ("assistant", (("user", _QUESTION),), (("user", "x"),)),
        ):
            if role == "system" and not has_system:
                continue
            written = self.text(*before, (role, padded), *after)
            if written and padded not in written:
                roles.append(role)
        return tuple(roles)


def _headers(
    probe: _Probe, turns: _Turns, markers: Sequence[tuple[str, str]]
) -> tuple[str, dict[str, Any]]:
    """Return the end of a question, and the openings of its answer.

    The openings are those that ask (``ask``), force and remember an answer, as in `ChatFormat`.
    """
    asked, unasked = probe.after_question(), probe.after_question(ask=False)
    if asked is None:
        raise ChatFormatError("the model's chat template asks for no answer", hint=HINT)
    suffix = _shared(asked, turns.question_to_answer)  # whether or not an answer follows
    suffix = suffix if unasked is None else _shared(suffix, unasked)
    ask, history = asked[len(suffix) :], turns.question_to_answer[len(suffix) :]
    silent = _silent(probe, asked, suffix)
    reasoning = _reasoning(markers, ask, silent or "", history)
    opens = reasoning is not None and ask.rfind(reasoning[0]) > ask.rfind(reasoning[1])
    history = history if history.startswith(ask) else ask
    answer = history
    if silent is not None and silent.startswith(ask) and len(silent) > len(ask):
        answer = history if history.startswith(silent) else silent
    if opens and reasoning is not None:
        history = answer = (
            answer if answer != ask else ask + empty_thought(reasoning, text_after=ask)
        )
    own = {"ask": ask, "answer_header": answer, "history_header": history}
    return suffix, own | {"reasoning": reasoning, "opens_thought": opens}


def _silent(probe: _Probe, usual: str, suffix: str) -> str | None:
    """Return an answer's opening if the template is told not to let the model think."""
    for option in _THINKING_OPTIONS:
        options: dict[str, Any] = {option: False}
        asked = probe.after_question(**options)
        if asked is None or asked == usual:
            continue
        unasked = probe.after_question(ask=False, **options)
        if unasked and asked.startswith(unasked):
            return asked[len(unasked) :]
        return asked[len(suffix) :] if asked.startswith(suffix) else None
    return None


def _markers(literals: Sequence[str], special: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the known pairs of reasoning markers in the template or the tokenizer.

    Both markers of a pair must be there.
    """
    written = "\n".join(literals)
    return tuple(
        pair
        for pair in REASONING_MARKERS
        if all(marker in written or marker in special for marker in pair)
        or (pair[0].startswith("<|channel|>") and "<|channel|>analysis" in written)
        or (pair[1] in written and pair == REASONING_MARKERS[0])
    )


def _reasoning(markers: Sequence[tuple[str, str]], *headers: str) -> tuple[str, str] | None:
    """Return the pair that the headers use, else the first that the template knows."""
    for pair in (*markers, *REASONING_MARKERS):
        if any(marker in header for marker in pair for header in headers):
            return pair
    return markers[0] if markers else None


def _control_tokens(
    literals: Sequence[str], special: Sequence[str], headers: Sequence[str]
) -> tuple[str, ...]:
    """Return the special tokens, the template's markers, and other known markers.

    Those are the markers of reasoning and of tools. A turn that is opened by words alone
    (``USER:``) is a delimiter of lines.
    """
    found = [marker for text in literals for marker in _MARKER.findall(text)]
    known = [marker for pair in REASONING_MARKERS for marker in pair]
    builtin = () if len([token for token in special if token]) > 2 else BUILTIN_TOKENS
    tokens = (*special, *found, *_lines(*headers), *known, *TOOL_MARKERS, *builtin)
    return tuple(dict.fromkeys(token for token in tokens if token))


def _lines(*headers: str) -> list[str]:
    """Return the headers that are words alone, as delimiters of lines."""
    return [f"\n{head.strip()}" for head in headers if head.strip() and not _MARKER.search(head)]


def _split_bos(text: str, user_prefix: str, bos: str, adds_bos: bool) -> tuple[str, str]:
    """Split the beginning-of-text off ``text``; the first part is to be written.

    If every turn begins with that token (as it may in ChatML) it is part of the turn, unless the
    tokenizer adds one.
    """
    if not bos or not text.startswith(bos):
        return "", text
    if adds_bos:
        return "", text[len(bos) :]
    return ("", text) if user_prefix.startswith(bos) else (bos, text[len(bos) :])


def _text_after(text: str, part: str) -> str | None:
    return text.rpartition(part)[2] if part in text else None


def _shared(first: str, second: str) -> str:
    """Return the longest common beginning that does not end inside a marker of either."""
    pairs = enumerate(zip(first, second, strict=False))
    length = next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
    cuts = (
        match.start()
        for text in (first, second)
        for match in _MARKER.finditer(text)
        if match.start() < length < match.end()
    )
    return first[: min((length, *cuts))]
