"""The state of a reader: the text, what was found in it, and where in a line it stands."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from mlx_tools.messages import FinishReason
from mlx_tools.protocol import lexis
from mlx_tools.protocol.candidate import ObjectPlace
from mlx_tools.protocol.cursor import Cursor
from mlx_tools.protocol.draft import Draft, Wrapping
from mlx_tools.protocol.reading import Delta, ReadingRules

NO_ARRAY: Final = 0
ARRAY_BEGUN: Final = 1  # a bracket, and no object yet
ARRAY: Final = 2


class Machine(ABC):
    """One step after the other, each taking up where the last one stopped.

    A step reads on and says whether to go on at once: it returns False where the text that is
    there does not suffice, and where reading is done. `_step` is the one to take next, None when
    reading is done.
    """

    def __init__(self, rules: ReadingRules) -> None:
        self._rules = rules
        self._marks = lexis.marks(rules.reasoning_markers, rules.ends, dialects=bool(rules.catalog))
        self._draft = Draft()
        self._cursor = Cursor()
        self._deltas: list[Delta] = []
        self._step: Callable[[], bool] | None = self._speech
        self._lead = True  # nothing but white space and wrapping so far in this line
        self._begin = 0  # where that began in the kept text
        self._array = NO_ARRAY
        self._tag = False
        self._fence = False
        self._spoken = False  # more than wrapping stands before this
        self._reason: FinishReason = "stop"

    @abstractmethod
    def _speech(self) -> bool:
        """The step between objects."""

    @abstractmethod
    def _open_thought(self, closer: re.Pattern[str]) -> bool:
        """Begins a thought that ``closer`` ends."""

    def _run(self) -> None:
        while self._step is not None and self._step():
            pass
        if self._step is None:
            self._draft.rest.append(self._cursor.take_all())

    def _keep(self, end: int) -> bool:
        self._draft.keep(self._cursor.take(end))
        return True

    def _stop(self, *, wrapping_may_follow: bool = False) -> bool:
        self._step = None
        self._draft.wrapping_may_follow = wrapping_may_follow
        return False

    def _stray(self) -> bool:
        """A character that belongs to no wrapping: prose, or the end of a run of calls."""
        if self._draft.messages or not self._draft.void_aliases():
            return self._stop()
        self._lead = False
        self._spoken = True
        self._array = NO_ARRAY
        return True

    def _begin_line(self, begin: int) -> bool:
        self._lead = True
        self._begin = begin
        self._draft.bullet = False
        return True

    @property
    def _is_xml(self) -> bool:
        return self._rules.style == "xml"

    def _here(self, *, inline: bool) -> ObjectPlace:
        draft = self._draft
        return ObjectPlace(
            inline=inline,
            begin=draft.size if inline else self._begin,
            in_run=bool(draft.messages),
            tagged=self._tag and self._is_xml,
            only_aliases=draft.only_aliases,
        )

    def _wrapping_here(self) -> Wrapping:
        return Wrapping(self._array == ARRAY, self._tag, self._fence)
