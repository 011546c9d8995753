"""The text of an answer on its way to a client, in pieces of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mlx_tools.protocol import ReadingRules

_MAX_BREAKS: Final = 50
"""Paragraphs at the end of a text in which the beginning of the answer is searched."""


class StopTextFound(Exception):
    """One of the client's stop texts came."""


class AnswerSender:
    """Sends a client the text of a turn, as it comes.

    Text that a client has seen stays. If the turn is corrected, the model's next text comes after
    it. If that is the same text again, only its continuation is sent.
    """

    def __init__(
        self,
        stops: Sequence[str],
        emit: Callable[[str], None],
        *,
        is_seen: bool,
        beginning: str = "",
    ) -> None:
        """Make the sender of one turn.

        Args:
            stops: The client's stop texts.
            emit: Takes the text that is sent.
            is_seen: The client sees the text as it comes.
            beginning: Text that the client wrote for the model; what follows it is sent.
        """
        self._beginning = self._expected = beginning
        self._stop_texts, self._emit, self._is_seen = stops, emit, is_seen
        self._stops = StopTexts(stops)
        self._sent_pieces: list[str] = []
        self._attempt: list[str] = []  # the model's text since the correction
        self._earlier_text = ""  # the model's text before it
        self._repeated: str | None = None  # the part of that which the model writes again

    @property
    def text(self) -> str:
        """The text that was sent."""
        return "".join(self._sent_pieces)

    @property
    def stopped_by(self) -> str:
        """The stop text that came, empty if none did."""
        return self._stops.stop_text

    @property
    def has_text(self) -> bool:
        """True if the model has written anything since the correction."""
        return bool(self._attempt)

    def restart(self) -> None:
        """Begin the text of a corrected turn."""
        self._beginning = self._expected = ""
        if not self._is_seen:
            self._sent_pieces.clear()
        elif self._attempt:
            self._earlier_text, self._repeated = "".join(self._attempt), ""
        self._attempt, self._stops = [], StopTexts(self._stop_texts)

    def say(self, text: str, *, is_last: bool = False) -> None:
        """Send more text. Raises `StopTextFound`."""
        text = self._after_beginning(text)
        if said := self._stops.feed(text, is_last=is_last):
            self._attempt.append(said)
            self._tell(said)
        if self._stops.stop_text:
            raise StopTextFound

    def say_remainder(self, text: str, prefix: str = "") -> None:
        """Send the remainder of a text that is complete now. Raises `StopTextFound`.

        ``prefix`` may have been sent before it. If a mend replaced text that a client has seen,
        that text stays.
        """
        text = text.removeprefix(self._beginning)
        said = "".join(self._attempt) + self._stops.pending_text
        whole = next((t for t in (text, prefix + text) if t.startswith(said.rstrip())), None)
        if whole is not None:
            self.say(whole[len(said) :], is_last=True)
        elif self._is_seen:
            rest = _continuation(said, text)
            self.say(f"\n\n{text}" if rest is None else rest, is_last=True)
        else:
            self._sent_pieces.clear()
            self._attempt, self._stops = [], StopTexts(self._stop_texts)
            self.say(text, is_last=True)

    def _after_beginning(self, text: str) -> str:
        """Return the text without the rest of the beginning that the client wrote."""
        expected = self._expected
        if text and expected.startswith(text):
            self._expected = expected[len(text) :]
            return ""
        self._expected = ""
        return text.removeprefix(expected)

    def _tell(self, text: str) -> None:
        if self._repeated is not None:
            self._repeated += text
            if self._earlier_text.startswith(self._repeated):
                return
            is_same = self._repeated.startswith(self._earlier_text)
            text = self._repeated[len(self._earlier_text) :] if is_same else f"\n\n{self._repeated}"
            self._repeated = None
        self._sent_pieces.append(text)
        self._emit(text)


def _continuation(shown_text: str, text: str) -> str | None:
    """Return the rest of a text whose beginning is the end of another, or None."""
    end = len(shown_text)
    for _ in range(_MAX_BREAKS):
        end = shown_text.rfind("\n\n", 0, end)
        if end < 0:
            return None
        if text.startswith(shown_text[end + 2 :]):
            return text[len(shown_text) - end - 2 :]
    return None


class StopTexts:
    """Ends a text at the first of the given texts that stands in it.

    Attributes:
        stop_text: The one that came, empty until then.
        text_after: The text that came behind it, in the same piece.
        pending_text: Text that may be the beginning of one, so it is not let through yet.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(filter(None, texts))
        self._first_characters = frozenset(text[0] for text in self._texts)
        self.stop_text = self.text_after = self.pending_text = ""

    def feed(self, text: str, *, is_last: bool = False) -> str:
        """Take more text; return it up to a stop text. ``is_last``: no more comes."""
        if self.stop_text:
            return ""
        if not self.pending_text and self._first_characters.isdisjoint(text):
            return text  # most pieces: no stop text is or begins in them
        whole = self.pending_text + text
        at = [(place, stop) for stop in self._texts if (place := whole.find(stop)) >= 0]
        if at:
            # The one that is complete first, as if the text were read letter by letter.
            place, self.stop_text = min(at, key=lambda found: (found[0] + len(found[1]), found[0]))
            self.pending_text, self.text_after = "", whole[place + len(self.stop_text) :]
            return whole[:place]
        most = min(len(whole), max(map(len, self._texts), default=1) - 1)
        ends = (n for n in range(most, 0, -1) if any(t.startswith(whole[-n:]) for t in self._texts))
        keep = 0 if is_last else next(ends, 0)
        self.pending_text = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]


class PlainText:
    """A turn that is all answer.

    The turn may begin with a thought; ``thought`` is its text. ``ended``: a mark that ends a turn
    came, and no later text counts.
    """

    def __init__(self, rules: ReadingRules) -> None:
        self._closers = dict(rules.reasoning_markers)
        self._ends = StopTexts(rules.ends)
        self._is_started = ""  # the text before it is known whether the turn begins with a thought
        self._thinks: StopTexts | None = None
        self._speaks = False
        self._trims = False  # only line breaks came since the thought
        self._thought: list[str] = []
        self._thought_sent = 0  # pieces of the thought that were returned
        if rules.in_thought:
            self._thinks = StopTexts((next(iter(self._closers.values())),))

    @property
    def thought(self) -> str:
        """The text of the thought, without its marks."""
        return "".join(self._thought).strip()

    def take_thought(self) -> str:
        """Return more of the thought: the text that came since the last call."""
        if self._thought_sent == len(self._thought):
            return ""
        pieces, self._thought_sent = self._thought[self._thought_sent :], len(self._thought)
        return "".join(pieces)

    @property
    def is_over(self) -> bool:
        return bool(self._ends.stop_text)

    def feed(self, text: str, *, is_last: bool = False) -> str:
        """Take more of the turn; return the answer's text. ``is_last``: no more comes."""
        if self._speaks and not self._trims:
            return self._ends.feed(text, is_last=is_last)
        if not self._speaks and self._thinks is None:
            self._is_started += text
            bare = self._is_started.lstrip()
            opener = next((one for one in self._closers if bare.startswith(one)), "")
            if opener:
                self._thinks, text = StopTexts((self._closers[opener],)), bare[len(opener) :]
            elif not is_last and any(one.startswith(bare) for one in self._closers):
                return ""
            else:
                self._speaks, text = True, self._is_started
        if not self._speaks and self._thinks is not None:
            self._thought.append(self._thinks.feed(text, is_last=is_last))
            if not self._thinks.stop_text:
                return ""
            self._speaks = self._trims = True
            text = self._thinks.text_after
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return self._ends.feed(text, is_last=is_last)
