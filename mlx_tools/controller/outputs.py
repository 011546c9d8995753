"""Outputs of tools: the part that a model is shown, and the whole that is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlx_tools.controller.session import Session
from mlx_tools.errors import StorageError
from mlx_tools.messages import ErrorInfo, replace
from mlx_tools.policy import MIN_CHARS_PER_TOKEN, MIN_OBSERVATION_CHARS, Policy, can_be_allowed
from mlx_tools.prompt import READER, is_reader, is_search
from mlx_tools.store import ArtifactStore, RootName
from mlx_tools.tools import MAX_ERROR_CHARS, Preview, ToolResult
from mlx_tools.transcript import (
    CallRecord,
    ObservationRecord,
    RenderedSources,
    Sources,
    render_sources,
)

if TYPE_CHECKING:
    from mlx_tools.policy import Redactor

_THOUGHTS: Final = "thoughts"
"""The key of a thought's artifact, beside the calls c1, c2, …"""

Notice = Callable[[int, int], str]
"""The text at a cut, by the number of characters left out and the place where they begin."""


def shorten(text: str, limit: int, notice: Notice) -> str:
    """Shorten a text: two thirds head, then ``notice``, one third tail.

    A limit too small for head, notice and tail keeps the head alone.
    """
    if len(text) <= limit:
        return text
    words = notice(len(text), len(text))  # the longest that it can get: both numbers only shrink
    room = limit - len(words)
    if room < 2:
        return text[:limit]
    head, tail = room - room // 3, room // 3
    return text[:head] + notice(len(text) - head - tail, head) + text[len(text) - tail :]


def make_preface(session: Session, call: CallRecord) -> str:
    """Return the notice before an output.

    It says that a person gave the call other arguments, or that the same call was made before.
    Empty for any other call.
    """
    state, words = session.current.calls[call.call], session.words
    if state.edited:
        return words.text("turns.edited", arguments=dict(call.arguments))
    # The lines of tools that a search found are read again, so no notice precedes them.
    noted = state.repeats and not is_search(session.specs.get(call.name))
    return words.text("turns.made_before") if noted else ""


RecordedEnd = tuple[ObservationRecord, StorageError | None]
"""The record of a call's end, and the reason why the whole output could not be stored. The call has
run, so the record must be written before anybody learns of that reason."""


_MAX_CHANGE_CHARS: Final = 4_000
"""Characters of a change that a dry run tells the model: enough to say what it is. It wrote the
change itself, and compaction leaves these words in the prompt as long as their turn."""


class Outputs:
    """The outputs of the current run of a session.

    ``whole`` has them by call, ``artifacts`` the ids of those that were stored.

    An output is stored as an artifact if it was cut, if the store is set to keep all, or after the
    first tool error of the run; then earlier ones too. Pages that were read out of an artifact are
    not stored again. A ``store`` of None keeps nothing. What the policy redacts is taken out of all
    of it first: secrets, and paths (except below a root, or below the user's own folder if
    ``at_home`` is True).
    """

    def __init__(
        self, session: Session, store: ArtifactStore | None, *, at_home: bool = False
    ) -> None:
        self._session = session
        self._store = store
        self._at_home = at_home
        self._cleaner: tuple[Policy, Callable[[str], str]] | None = None
        self.begin()

    def begin(self) -> None:
        """Begin a new run: release the outputs of the last one."""
        self.whole: dict[str, str] = {}
        self.artifacts: dict[str, str] = {}
        self._pages: set[str] = set()
        # Back to the store's setting: an error in an earlier run is no reason to keep more.
        self._keeps_all = self._store is not None and self._store.keep_all
        if self._store is not None:
            self._store.sweep()

    def take(self, call: CallRecord, result: ToolResult) -> RecordedEnd:
        """Note how a call ended."""
        record = ObservationRecord(
            call=call.call,
            name=call.name,
            id=call.id,
            duration_ms=result.duration_ms,
            output_size_chars=result.output_size_chars,
            cached=result.cached,
            files=result.files,
        )
        if result.content is None:
            return self._record_failure(record, call, result.error)
        if result.sources is not None:
            return self._record_sources(record, call, result.sources.map_texts(self.clean))
        # Cleaned before it is cut or stored: half a secret at a cut would not be found any more.
        content, limit = self.clean(result.content), self.max_chars
        content = self._preface(call) + content
        self.whole[call.call] = content
        problem = None
        # A page out of an artifact is stored there already.
        if is_reader(self._session.specs.get(call.name)):
            self._pages.add(call.call)
        # Stored before it is cut: the notice of the cut names the artifact.
        elif len(content) > limit or self._keeps_all:
            problem = self._keep(call.call)
        artifact = self.artifacts.get(call.call)
        if len(content) > limit:
            cut = self._cut_notice(artifact, limit, len(content))
            summary = self._summary(call)
            content = shorten(content, limit, lambda *place: cut(*place) + summary)
        return replace(record, content=content, artifact=artifact), problem

    def too_long(self, call: CallRecord, result: ToolResult) -> str | None:
        """Return the text that `take` will have to cut; None if no summary can help.

        A summary helps with a text, except with pages out of an artifact. It does not help with
        sources, which are ranked.
        """
        if result.content is None or result.sources is not None:
            return None
        if is_reader(self._session.specs.get(call.name)):
            return None
        content = self._preface(call) + self.clean(result.content)
        return content if len(content) > self.max_chars else None

    def _record_failure(
        self, record: ObservationRecord, call: CallRecord, error: ErrorInfo | None
    ) -> RecordedEnd:
        if error is not None:
            message = self._preface(call) + self.clean(error.message)
            most = max(len(error.message), MAX_ERROR_CHARS)  # the tool chose how long it may be
            record = replace(record, error=ErrorInfo(error.code, message[:most]))
        if is_reader(self._session.specs.get(call.name)):
            return record, None
        # A person who looks into a failed run wants to see what led to it, earlier outputs too.
        self._keeps_all = True
        return record, self._keep(*(c for c in self.whole if c not in self._pages))

    def _record_sources(
        self, record: ObservationRecord, call: CallRecord, sources: Sources
    ) -> RecordedEnd:
        """Record sources, numbered on from those of earlier calls of the session."""
        words, limit = self._session.words, self.max_chars
        # Numbers go on over the session: ``[3]`` must mean one thing in it.
        first = max(self._session.history.sources, default=0) + 1
        cite = words.text("turns.cite", number=first) if sources.items else ""
        after = "\n".join(part for part in (sources.note, cite) if part)
        laid = render_sources(sources, first)
        preface = self._preface(call)
        content = self.whole[call.call] = preface + _join_texts(laid.text, after)
        too_long = len(content) > limit
        problem = self._keep(call.call) if too_long or self._keeps_all else None
        if too_long:
            # A long note of the tool must not crowd out its results: half of the room is for
            # sources.
            after = after if len(after) <= limit // 2 else ""
            room = max(limit - len(preface) - len(after) - bool(after), 1)
            notice = self._cut_notice(self.artifacts.get(call.call), room, len(laid.text))
            laid, content = _limit_sources(sources, first, room, notice)
            content = (preface + _join_texts(content, after))[:limit]
        given = tuple(one.to_json() for one in laid.sources)
        artifact = self.artifacts.get(call.call)
        return replace(record, content=content, artifact=artifact, sources=given), problem

    def describe_change(self, preview: Preview) -> str:
        """Return the change that a dry run left out, in the words that the model reads.

        Empty if the tool has no preview. The text of ``preview`` must be cleaned.
        """
        words = self._session.words
        if not preview.text or preview.fails:
            return preview.text
        limit = min(self.max_chars, _MAX_CHANGE_CHARS)
        change = shorten(preview.text, limit, self._cut_notice(None, limit, len(preview.text)))
        counts = f" ({preview.counts})" if preview.counts else ""
        return words.text("turns.would_change", counts=counts, change=change)

    @property
    def max_chars(self) -> int:
        """The characters of one output of the current turn that the model is shown.

        All outputs of a turn together take at most a quarter of the context, in equal shares. Calls
        end in any order, and the share of one must not depend on it.
        """
        session = self._session
        most, size = session.limits.observation_chars, session.header.context
        if size is None:
            return most
        # A quarter of the context, so that four such turns fit before anything has to leave.
        share = size // 4 * MIN_CHARS_PER_TOKEN // max(1, len(session.current.calls))
        return min(most, max(share, MIN_OBSERVATION_CHARS))

    def keep_thoughts(self, thoughts: Iterable[str]) -> str | None:
        """Store the model's thoughts, if all is stored; return the artifact's id.

        None if there is none.
        """
        text = self.clean("\n\n".join(filter(None, thoughts))) if self._keeps_all else ""
        if not text:
            return None
        if self.whole.get(_THOUGHTS) != text:
            self.whole[_THOUGHTS] = text
            self.artifacts.pop(_THOUGHTS, None)
            self._keep(_THOUGHTS)
        return self.artifacts.get(_THOUGHTS)

    def clean(self, text: str) -> str:
        """Return the text without what the policy removes."""
        policy = self._session.policy
        # The policy changes when a session is resumed; its patterns are compiled once for each
        # policy.
        if self._cleaner is None or self._cleaner[0] is not policy:
            folders: tuple[str, ...] = ()
            if policy.redacts_paths:
                roots = (RootName.parse(root).path for root in self._session.header.roots)
                home = str(Path.home()) if self._at_home else ""
                folders = tuple(f for f in (*roots, home) if len(f) > 1 and f[0] == "/")
            self._cleaner = policy, cleaner(policy, folders)
        return self._cleaner[1](text)

    def _preface(self, call: CallRecord) -> str:
        """Return the notice before an output, without what the policy removes."""
        return self.clean(make_preface(self._session, call))

    def _keep(self, *calls: str) -> StorageError | None:
        """Store the outputs of these calls, unless they are stored already."""
        if self._store is None:
            return None
        for call in calls:
            if call in self.artifacts:
                continue
            try:
                key = self._store.add(self.whole[call])
            except StorageError as error:
                return error
            if key is not None:
                self.artifacts[call] = key
        return None

    def _summary(self, call: CallRecord) -> str:
        """Return the summary that the model wrote of the output, if it did."""
        record = self._session.current.calls[call.call].summary
        if record is None or not record.parts:
            return ""
        words = self._session.words
        parts = ({**part, "summary": self.clean(part["summary"])} for part in record.parts)
        said = (words.text("summary.part", **part) for part in parts)
        return words.text("summary.notice") + "".join(said)

    def _cut_notice(self, artifact: str | None, limit: int, size: int) -> Notice:
        """Return the notice of a cut in a text of ``size`` characters."""
        words = self._session.words
        if artifact is not None and self.can_read:

            def readable(omitted: int, offset: int) -> str:
                place = {"name": READER, "id": artifact, "offset": offset}
                return words.text("turns.cut", omitted=omitted, **place)

            # With the largest numbers, so that the notice fits after any cut; half of the limit is
            # for text.
            if 2 * len(readable(size, size)) <= limit:
                return readable
        return lambda omitted, _: words.text("turns.cut", omitted=omitted)

    @property
    def can_read(self) -> bool:
        """Return whether the model may call the tool that reads artifacts."""
        spec = self._session.specs.get(READER)
        usable = is_reader(spec) and READER not in self._session.disabled
        return usable and spec is not None and can_be_allowed(self._session.policy, spec)


def cleaner(policy: Policy, folders: tuple[str, ...] = ()) -> Callable[[str], str]:
    """Return the function that removes from a text what the policy says.

    Of a path below one of the ``folders`` the rest stays.
    """
    if not (policy.redacts or policy.redacts_paths):
        return str
    redactor = _redactor(policy.redacts, policy.redacts_paths, folders)
    return lambda text: redactor.redact(text).text


@lru_cache(maxsize=16)
def _redactor(secrets: bool, paths: bool, folders: tuple[str, ...]) -> Redactor:
    from mlx_tools.policy import Redactor  # its patterns take a while to compile

    return Redactor(secrets=secrets, paths=paths, folders=folders)


def _limit_sources(
    sources: Sources, first: int, room: int, notice: Notice
) -> tuple[RenderedSources, str]:
    """Return as much of the sources as there is room for.

    With it comes the notice of a cut, if there is room for that.
    """
    whole = render_sources(sources, first)
    longest = notice(len(whole.text), len(whole.text)).rstrip("\n")
    # A notice that takes more than a third of the room says less than text in its place.
    if len(whole.text) <= room or 3 * len(longest) > room:
        laid = render_sources(sources, first, room)
        return laid, laid.text
    laid = render_sources(sources, first, room - len(longest))
    return laid, laid.text + notice(laid.omitted, laid.cut_at or 0).rstrip("\n")


def _join_texts(text: str, suffix: str) -> str:
    return "\n".join(part for part in (text, suffix) if part)
