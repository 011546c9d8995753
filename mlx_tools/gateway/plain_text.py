"""What a model writes as it comes, where nothing of ours is asked of it: the thought that it begins
with, where its turn ends, and the client's own stop texts. Pure; any split of a text gives the
same."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_tools.protocol import ReadingRules


class StopTexts:
    """Ends a text at the first of the given texts that stands in it.

    ``found`` is the one that came, empty until then; ``held`` is what might be the beginning of
    one, and was not let through yet.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(filter(None, texts))
        self.found = ""
        self.held = ""

    def feed(self, text: str, *, ended: bool = False) -> str:
        """More of the text; what of it stands before any stop text. ``ended``: no more comes."""
        if self.found:
            return ""
        whole = self.held + text
        at = [(place, stop) for stop in self._texts if (place := whole.find(stop)) >= 0]
        if at:
            # The one that is whole first, as it would be read letter by letter.
            place, self.found = min(at, key=lambda found: (found[0] + len(found[1]), found[0]))
            self.held = ""
            return whole[:place]
        keep = 0 if ended else longest_beginning(whole, self._texts)
        self.held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]


def longest_beginning(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of ``text`` may be the beginning of one of the marks."""
    most = min(len(text), max(map(len, marks), default=1) - 1)
    return next((n for n in range(most, 0, -1) if any(m.startswith(text[-n:]) for m in marks)), 0)


class PlainText:
    """A turn that is all answer.

    A thought is one that the turn begins with; ``thought`` is its text. ``ended``: a mark that ends
    a turn came, and nothing counts any more.
    """

    def __init__(self, rules: ReadingRules) -> None:
        self._openers = tuple(opener for opener, _ in rules.reasoning_markers)
        self._closers = dict(rules.reasoning_markers)
        self._ends = StopTexts(rules.ends)
        self._closer = ""
        self._begun = ""  # what came before it is known whether the turn begins with a thought
        self._speaks = False
        self._trims = False  # nothing but line breaks came since the thought
        self._thought: list[str] = []
        if rules.in_thought:
            self._closer = next(iter(self._closers.values()))

    @property
    def thought(self) -> str:
        """The text of the thought, without its marks."""
        return "".join(self._thought).strip()

    @property
    def ended(self) -> bool:
        return bool(self._ends.found)

    def feed(self, text: str) -> str:
        """More of the turn; what of it is the answer's."""
        if self._speaks:
            return self._speak(text)
        self._begun += text
        if not self._closer:
            bare = self._begun.lstrip()
            opener = next((one for one in self._openers if bare.startswith(one)), "")
            if not opener:
                if any(one.startswith(bare) for one in self._openers):
                    return ""
                return self._speak(self._begun)
            self._closer, self._begun = self._closers[opener], bare[len(opener) :]
        thought, closer, rest = self._begun.partition(self._closer)
        if not closer:
            return ""
        self._thought.append(thought)
        self._trims = True
        return self._speak(rest)

    def end(self) -> str:
        """The turn has ended: what is left of the answer."""
        if self._speaks:
            return self._ends.feed("", ended=True)
        if self._closer:  # it never got to speak
            self._thought.append(self._begun)
            return ""
        return self._speak(self._begun) + self._ends.feed("", ended=True)

    def _speak(self, text: str) -> str:
        self._speaks = True
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return self._ends.feed(text)
