"""Neutralising of control tokens in untrusted text.

A completions server tokenises the whole prompt, so a ``<|im_end|>`` in a file or a question would
end the turn. Two ways of breaking one, so that no tokenizer takes it for its own:

- in plain text a visible mark after its first character (``<·|im_end|>``), which `restore` undoes;
- in a JSON string the first character as an escape (``\u003c|im_end|>``), which loses nothing.

`Composer` joins host text and untrusted text, and checks the seams between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import Final, NamedTuple

from msgspec import Struct, field

MARKS: Final = ("·", "¦", "•", "⋅", "∙")
"""Characters that may break a token; the first that is in no control token is taken."""

LINE_BREAKS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""All that a reader might take for the end of a line, whatever a tokenizer does."""

_OBSERVATION: Final = r'\s{0,8}"type"\s{0,8}:\s{0,8}"tool_observation"'
_OBSERVATION_TEXT: Final = '"type":"tool_observation"'
_ASCII_SPACE: Final = frozenset(char for char in map(chr, range(128)) if char.isspace())
_SHAPE_LENGTH: Final = 64
_BLANKS: Final = 16

_OPENER = re.compile(r"[{\[]")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\\n]|\\.)*("?)|[{}\[\]]')
_UNIT = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_SHORT_ESCAPES: Final = {"b": 8, "t": 9, "n": 10, "f": 12, "r": 13, '"': 34, "/": 47, "\\": 92}
_SURROGATE = re.compile("[\ud800-\udfff]")


class Neutraliser:
    """Breaks control tokens in text that the host did not write.

    ``control_tokens`` are literals. One that begins with a line feed is a delimiter of lines: it is
    also found after any other line break, after blanks, and in either letter case. Literals of one
    character cannot be told from ordinary text and are passed over, and so are blank ones. The tags
    of the ``xml`` style, and the head of an observation's JSON object, are always broken too:
    nobody but the host writes an observation.

    All methods are pure, and linear in the length of the text.
    """

    def __init__(self, control_tokens: Iterable[str] = ()) -> None:
        self._patterns = found = _patterns(tuple(control_tokens))
        self.control_tokens = found.tokens
        self.mark = found.mark
        self.reach = found.reach

    def plain(self, text: str) -> str:
        """Return ``text`` with a mark after the first character of each control token.

        The places are found in the text without its marks, and every place gets one mark more than
        it had; so `restore` finds the same places, and gives back the text, whatever it held.
        """
        if not self._patterns.any.search(text) and self.mark not in text:
            return text
        return self._mark_tokens(text, add=True)

    def restore(self, text: str) -> str:
        """Return the text that `plain` was given."""
        return self._mark_tokens(text, add=False) if self.mark in text else text

    def in_json(self, text: str) -> str:
        """Escape the first character of every control token in JSON strings of ``text``.

        Every string keeps its value. A token outside of all strings, which JSON cannot hold but a
        model's line may, is broken by the mark.
        """
        begins, literal = self._patterns.begins, self._patterns.literal
        held = begins.search(text) is not None and literal().search(text) is not None
        return self._escape_strings(text, literal(), prose=False) if held else text

    def in_mixed(self, text: str) -> str:
        """Neutralise a model's own text, prose and JSON in any order.

        Strings are treated as in `in_json`, all else as in `plain`.
        """
        known = self._patterns.any
        return self._escape_strings(text, known, prose=True) if known.search(text) else text

    def contains_token(self, text: str) -> bool:
        """Return True if ``text`` holds a control token or a seeming observation."""
        return self._patterns.any.search(text) is not None

    def seam(self, text_before: str, text_after: str, untrusted: int | None = None) -> bool:
        """Return True if a control token spans the end of one text and the next.

        If ``untrusted`` is given, only a token counts that begins before that place of
        ``text_before``.
        """
        patterns, head = self._patterns, text_before[-self.reach :]
        limit = len(head) if untrusted is None else untrusted - (len(text_before) - len(head))
        if not (
            patterns.may_span(head[-1:], text_after[:1])
            and patterns.may_span(
                head[limit - 1 : limit], head[limit : limit + 1] or text_after[:1]
            )
        ):
            return False
        for match in patterns.any.finditer(head + text_after[: self.reach]):
            if match.start() >= min(limit, len(head)):
                return False
            if match.end(match.lastindex or 0) > len(head):
                return True
        return False

    def _mark_tokens(self, text: str, *, add: bool) -> str:
        skeleton = text.replace(self.mark, "")
        places = {match.start() for match in self._patterns.any.finditer(skeleton)}
        parts = re.findall(f"[^{self.mark}]{self.mark}*", text)
        start = len(text) - len(text.lstrip(self.mark))
        for place in places:
            part = parts[place]
            parts[place] = part + self.mark if add else part[0] + part[2:]
        return text[:start] + "".join(parts)

    def _escape_strings(self, text: str, pattern: re.Pattern[str], *, prose: bool) -> str:
        """Escape tokens in the strings of ``text``, and mark what ``pattern`` still finds."""
        tokens = self._patterns.literal().finditer(text)
        token = next(tokens, None)
        parts, done = [], 0
        for start, end in _strings(text, prose=prose):
            while token is not None and token.end(token.lastindex or 0) <= start:
                token = next(tokens, None)
            if token is None:
                break
            if token.start() >= end:
                continue
            parts.append(text[done:start])
            position = start
            for unit in _UNIT.findall(text[start:end]):
                while token is not None and token.end(token.lastindex or 0) <= position:
                    token = next(tokens, None)
                inside = token is not None and token.start() <= position
                escape = _escape(unit) if inside else None
                parts.append(unit if escape is None else escape)
                position += len(unit)
                if escape is not None:
                    token = next(tokens, None)
            done = end
        escaped = "".join((*parts, text[done:]))
        return pattern.sub(lambda match: match[0] + self.mark, escaped)


_MAX_PARTS: Final = 256
"""Parts that copies of a text share, each with some parts of its own behind them. Joined for each
copy, a long text would be copied several times for each turn."""


class Composer(Struct):
    """A text in the making, of host text and neutralised untrusted text.

    If the end of one and the start of the next would make a control token together, the mark is put
    between them. Host text alone is never changed.
    """

    _neutraliser: Neutraliser
    _parts: list[str] = field(default_factory=list)
    _tail: str = ""
    _untrusted: int = 0  # up to this place of the tail what goes on over its end may be anybody's

    def host(self, text: str) -> None:
        """Append host text."""
        if self._untrusted and self._neutraliser.seam(self._tail, text, self._untrusted):
            self._append(self._neutraliser.mark)
            self._untrusted = 0
        self._append(text)

    def untrusted(self, text: str) -> None:
        """Append text of any origin, already neutralised by itself.

        A lone surrogate, which no server could be sent, becomes U+FFFD.
        """
        text = _SURROGATE.sub("\ufffd", text)
        if text and self._neutraliser.seam(self._tail, text):
            text = self._neutraliser.mark + text
        self._append(text)
        if text:
            self._untrusted = len(self._tail)

    def copy(self) -> Composer:
        """Return a composer that can be added to while this one stays."""
        if len(self._parts) > _MAX_PARTS:
            self._parts = [str(self)]
        return Composer(self._neutraliser, [*self._parts], self._tail, self._untrusted)

    def __str__(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return "".join(self._parts)

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._tail += text[-self._neutraliser.reach :]
        if (cut := len(self._tail) - self._neutraliser.reach) > 0:
            self._tail = self._tail[cut:]
            self._untrusted = max(0, self._untrusted - cut)


class _Patterns(NamedTuple):
    """The patterns of a `Neutraliser`.

    ``begins`` finds any token's first character. ``literal``, which is slow to make, has the
    shortest of tokens first. ``any``, which also finds what looks like an observation, has the
    longest first. ``lead_chars`` are the ASCII characters after which a token may go on,
    ``inner_chars`` those with which it may.
    """

    tokens: tuple[str, ...]
    mark: str
    reach: int
    begins: re.Pattern[str]
    literal: Callable[[], re.Pattern[str]]
    any: re.Pattern[str]
    lead_chars: frozenset[str]
    inner_chars: frozenset[str]

    def may_span(self, last: str, first: str) -> bool:
        """Return False if no token can go on from the one character to the other."""
        if last.isascii() and last not in self.lead_chars:
            return False
        return not first.isascii() or first in self.inner_chars


@lru_cache(maxsize=32)
def _patterns(control_tokens: tuple[str, ...]) -> _Patterns:
    """Return the patterns; cached, as every session of a model needs the same ones."""
    stripped = (
        "\n" * token.startswith("\n") + token.strip() for token in (*control_tokens, *PROTOCOL_TAGS)
    )
    tokens = tuple(sorted({token for token in stripped if len(token.strip()) > 1}))
    spelled = "".join(tokens)
    shortest = sorted(tokens, key=len)
    begun = "".join((*(token[:-1] for token in tokens), "{", _OBSERVATION_TEXT[:-1]))
    inside = "".join((*(token[1:] for token in tokens), _OBSERVATION_TEXT))
    return _Patterns(
        tokens=tokens,
        mark=next(m for m in (*MARKS, *map(chr, range(0x2190, 0x2300))) if m not in spelled),
        reach=_BLANKS + max((_SHAPE_LENGTH, *map(len, tokens))),
        begins=re.compile(f"[{re.escape(''.join({token[0] for token in tokens}))}{LINE_BREAKS}]"),
        literal=cache(lambda: re.compile(_alternatives(shortest))),
        any=re.compile(_alternatives(shortest[::-1], observation=True)),
        lead_chars=_in_either_case(begun) | _ASCII_SPACE,
        inner_chars=_in_either_case(inside) | _ASCII_SPACE,
    )


def _in_either_case(text: str) -> frozenset[str]:
    """Return the characters, and all that `re` takes for the same ignoring case."""
    return frozenset((text + text.upper()).lower() + (text + text.lower()).upper() + text)


def _alternatives(tokens: list[str], *, observation: bool = False) -> str:
    """Return a pattern that consumes a token's first character and looks at the rest.

    The rest is a group. Tokens are grouped by first and second character, so that text without
    these is passed over quickly; in a group the order stays.
    """
    by_first: dict[str, dict[str, list[str]]] = {}
    if observation:
        by_first[r"\{"] = {"": [_OBSERVATION]}
    for token in tokens:
        if token[0] == "\n":
            line = rf"[ \t]{{0,{_BLANKS}}}(?i:{_escape_text(token[1:])})"
            by_first.setdefault(f"[{LINE_BREAKS}]", {}).setdefault("", []).append(line)
        else:
            group = by_first.setdefault(re.escape(token[0]), {})
            group.setdefault(_escape_text(token[1]), []).append(_escape_text(token[2:]))
    return "|".join(
        f"{first}(?=({'|'.join(f'{second}(?:{rest})' for second, rest in joined)}))"
        for first, group in by_first.items()
        for joined in ([(second, "|".join(rest)) for second, rest in group.items()],)
    )


def _escape_text(text: str) -> str:
    # Sentencepiece writes a space as U+2581, so either may come to the same token.
    return re.sub(r"\\ |▁", "[ ▁]", re.escape(text))


def _strings(text: str, *, prose: bool) -> Iterator[tuple[int, int]]:
    """Yield the places of the insides of JSON strings in ``text``.

    With ``prose`` a quote outside of all brackets begins no string.
    """
    depth = position = 0
    while match := (_OPENER if prose and not depth else _STRING_OR_BRACKET).search(text, position):
        position = match.end()
        found = match[0]
        if found[0] == '"':
            yield match.start() + 1, position - len(match[1])
        else:
            depth = max(0, depth + (1 if found in "{[" else -1))


def _escape(unit: str) -> str | None:
    """Return a character of a JSON string as ``\\u....``, None if it is written so.

    ``unit`` is one character or one escape.
    """
    if len(unit) == 6:
        return None
    if len(unit) == 2:
        code = _SHORT_ESCAPES.get(unit[1])
        return None if code is None else f"\\u{code:04x}"
    utf16 = unit.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{utf16[i : i + 2].hex()}" for i in range(0, len(utf16), 2))


# --- the known control tokens, for where no tokenizer is there to ask ---------------------------
#
# Sources: the chat templates that the models were published with, and mlx-lm's own tables of
# reasoning and tool-call markers (`tokenizer_utils.py`, `tool_parsers/`).

REASONING_MARKERS: Final[tuple[tuple[str, str], ...]] = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("◁think▷", "◁/think▷"),
)
"""Opening and closing marker of a thought, the commonest first."""

PROTOCOL_TAGS: Final = (
    *("<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>"),
    *("<final_answer>", "</final_answer>"),
)
"""The tags of the ``xml`` style: only the host, and the model where they stand in place, write
them."""

TOOL_MARKERS: Final = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<|tool_call|>", "<|/tool_call|>", "<|tool_response|>", "<|tool|>", "<|/tool|>"),
    *("<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>", "<|tool_list_end|>"),
    *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[ARGS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>"),
    *("<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", "<|python_tag|>", "<|eom_id|>"),
    *("<longcat_tool_call>", "</longcat_tool_call>", "<function name=", "</function>"),
    *("<start_function_call>", "<end_function_call>"),
    *("<atem:function_calls>", "</atem:function_calls>", "<TOOLCALL>", "</TOOLCALL>"),
)
"""Markers around native tool calls and their results."""

_MEDIA: Final = ("image", "video", "speech")
_SPANS: Final = ("vision", "object_ref", "box", "quad")

BUILTIN_TOKENS: Final = (
    *("<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|endoftext|>", "<|endofprompt|>"),
    *("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eot|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|header_start|>", "<|header_end|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<bos>", "<eos>", "<pad>", "<unk>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
    *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[gMASK]", "<sop>", "<eop>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|tool|>", "<|end|>"),
    *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>"),
    *("<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *("<|role_start|>", "<|role_end|>", "<|start_of_role|>", "<|end_of_role|>"),
    *("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<extra_id_0>", "<extra_id_1>"),
    *("<|startoftext|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_sep|>", "<|repo_name|>"),
    # Mistral (tekken)
    *("[CALL_ID]", "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[AUDIO]", "[BEGIN_AUDIO]", "[TRANSCRIBE]"),
    # Gemma 3 and 4
    *("<start_of_image>", "<end_of_image>"),
    *("<|tool>", "<tool|>", "<|channel>", "<channel|>", "<|think|>", '<|"|>', "<|image|>"),
    *("<|image>", "<image|>", "<|audio>", "<audio|>", "<|audio|>", "<|video|>"),
    # Llama 4
    *("<|eom|>", "<|step|>", "<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"),
    *("<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
    *("<|patch|>", "<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"),
    # MiniMax
    *("]~!b[", "]~b]", "[e~[", "]!d~[", "<function_call>", "<code_interpreter>"),
    *("]<]image[>[", "]<]video[>[", "]<]speech[>[", "]<]vision pad[>["),
    *("<begin_of_document>", "<beginning_of_sentence>", "<end_of_sentence>"),
    *(f"]<]{part} of {kind}[>[" for part in ("start", "end") for kind in _MEDIA),
    # Seed
    *("<seed:bos>", "<seed:eos>", "<seed:pad>", "<seed:tool_call>", "</seed:tool_call>"),
    *("<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>"),
    *("<[begin▁of▁sentence]>", "<[end▁of▁sentence]>"),
    # Qwen-VL
    *(f"<|{part}_{end}|>" for part in _SPANS for end in ("start", "end")),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    # InternLM
    *("<|action_start|>", "<|action_end|>", "<|interpreter|>", "<|plugin|>"),
    *("<|User|>", "<|Bot|>", "<eoh>", "<eoa>"),
)
"""Control tokens of widely used chat models, beside those of reasoning and tool calls. Left out are
those that only part files in a repository (``<filename>``), or are HTML (``<img>``): they forge no
turn, and stand in many a text."""

KNOWN_TOKENS: Final = tuple(
    dict.fromkeys(
        (
            *BUILTIN_TOKENS,
            *TOOL_MARKERS,
            *(marker for pair in REASONING_MARKERS for marker in pair),
        )
    )
)
"""All of the above, in a fixed order and each once."""
