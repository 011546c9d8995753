"""Counts the tokens of a session's prompts, before they are sent."""

from __future__ import annotations

import math
from typing import Final

import anyio.to_thread

from mlx_tools.backends import TokenCounter
from mlx_tools.controller.session import Session

_DOUBT: Final = 4
"""A server that reports so many times fewer tokens than we count tells of something else: some
report only what they did not have in their cache."""


class PromptCounter:
    """Counts as the model's server does, as far as it says how many tokens it counted."""

    def __init__(self, session: Session, counter: TokenCounter) -> None:
        self._session = session
        self._counter = counter
        self._extra_tokens = 1.0

    async def count(self, prompt: str) -> int:
        """Return the tokens of the session's next prompt."""
        return await anyio.to_thread.run_sync(self._count_used, prompt)

    def _count_used(self, prompt: str) -> int:
        """Return the tokens of a prompt.

        They are those that the server counted in what it goes on from, if it said so, and our own
        count of the rest, or of all of it.
        """
        session, last = self._session, self._session.completed
        asked = session.last_prompt
        said = last.usage.prompt_tokens if last is not None and last.requests == 1 else None
        if asked and said is not None and _DOUBT * said >= (own := self.tokens(asked)):
            self._extra_tokens *= max(1.0, said / max(own, 1))
            if prompt.startswith(asked):
                return said + self.tokens(prompt) - self.tokens(asked)
        return self.tokens(prompt)

    def tokens(self, text: str) -> int:
        """Return our own count, raised as much as the server's counts exceed ours."""
        return math.ceil(self._extra_tokens * self._counter.count(text))

    def fits(self, prompt: str, tokens: int) -> bool:
        """Return whether a prompt of its own, and its completion, fits the context."""
        size = self._session.header.context
        return size is None or self.tokens(prompt) + tokens <= size
