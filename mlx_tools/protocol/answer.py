"""The answer in a text without messages, as a person sees it (reading rule 8c)."""

from __future__ import annotations

import re
from typing import Final

from mlx_tools.parsing import Unreadable, loads
from mlx_tools.protocol.delimiters import CONTROL_TOKEN

_TOKEN: Final = rf"(?:<\|(?:open|close)\|>\w+<\|sep\|>|{CONTROL_TOKEN.pattern}|\[e~\[)"
# `to=user` is left of harmony's header where a server took its control tokens out.
_OPENING: Final = re.compile(
    rf"\s*(?:to=user(?=<\||\s*\n))?(?:\s*{_TOKEN})*\s*(?:(?:assistant|all)[ \t]*\n)?"
)
_CLOSING: Final = re.compile(rf"(?:\s*{_TOKEN})+\s*\Z")
_MAX_CLOSING_CHARS: Final = 400  # characters at the end of a text in which tokens are looked for
_WRAPPER: Final = re.compile(
    r"\s*<(?P<tag>answer|response|final_answer|final)>(?P<answer>.*?)(?:</(?P=tag)>\s*)?\Z",
    re.DOTALL | re.IGNORECASE,
)
_FRAMES: Final = (
    re.compile(r"(?P<thought>\s*Thought:.*?^|\s*)Final Answer:(?P<answer>.*)\Z", re.DOTALL | re.M),
    re.compile(r"(?P<thought>.*?)\[BEGIN FINAL RESPONSE\](?P<answer>.*)\Z", re.DOTALL),
    re.compile(r"\s*analysis(?P<thought>.*?)assistantfinal(?P<answer>.*)\Z", re.DOTALL),
)
"""The frames of ReAct, of Apriel, and of harmony where a server left its control tokens out."""

# LangChain's agents end with an action of this name, which no tool has.
_FINAL_ACTION: Final = re.compile(
    r"(?:\s*Thought:[^{`]*)?\s*(?:Action:\s*)?(?:```(?:json)?)?\s*(?P<object>\{.*\})\s*(?:```)?\s*\Z",
    re.DOTALL,
)


def find_answer(text: str) -> tuple[str, str]:
    """Return the answer in ``text``, and the thought in the same frame before it.

    The marks that the model's family puts around an answer are left out.
    """
    opening = _OPENING.match(text)
    answer = text[opening.end() :] if opening is not None else text
    # Only in the tail: the pattern begins with blanks, and would be tried at each blank of a long
    # text.
    tail = max(0, len(answer) - _MAX_CLOSING_CHARS)
    closing = _CLOSING.search(answer, tail)
    answer = answer[: closing.start()] if closing is not None else answer
    thought = ""
    for frame in _FRAMES:
        if (found := frame.match(answer)) is not None:
            thought, answer = found["thought"], found["answer"]
            break
    if (wrapped := _WRAPPER.match(answer)) is not None:
        answer = wrapped["answer"]
    if '"Final Answer"' in answer and (action := _FINAL_ACTION.match(answer)) is not None:
        answer = _final_action(action["object"]) or answer
    answer = answer.strip()
    # An empty frame is shown as it was written: an empty answer tells a person nothing.
    return (answer, thought.strip()) if answer else (text.strip(), "")


def _final_action(text: str) -> str:
    """Return the answer in LangChain's form of an action, empty if there is none."""
    try:
        value = loads(text)
    except Unreadable:
        return ""
    said = value.get("action_input") if value.get("action") == "Final Answer" else None
    return said if isinstance(said, str) else ""
