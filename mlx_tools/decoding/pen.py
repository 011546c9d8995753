"""The text of a turn in the making, and what the model would go on with."""

from __future__ import annotations


class Pen:
    """``text`` is what stands in the model's turn. ``ahead`` is what the model wrote behind the
    hole that was filled last: how it would go on, which often saves asking."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.ahead = ""

    def host(self, text: str) -> None:
        """Appends what the host writes; what the model wrote ahead and agrees is used up."""
        self.text += text
        ahead = self.ahead.lstrip()
        self.ahead = ahead[len(text) :] if ahead.startswith(text) else ""

    def hole(self, text: str, ahead: str = "") -> None:
        """Appends what filled a hole, and keeps what the model wrote behind it."""
        self.text += text
        self.ahead = ahead

    def back(self, length: int) -> None:
        """Takes back all but the first ``length`` characters."""
        self.text, self.ahead = self.text[:length], ""

    @property
    def next(self) -> str:
        """The first character that the model wrote ahead, blanks passed over; empty for none."""
        return self.ahead.lstrip()[:1]
