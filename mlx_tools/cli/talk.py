"""A talk: questions and answers that see each other, in one session after another, while a model
and what it may do change under it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.from_thread import BlockingPortal

from mlx_tools.app import (
    Configuration,
    RunOptions,
    controller_of,
    functions_of,
    jobs_of,
    open_selected_backend,
    registry_of,
    with_settings,
)
from mlx_tools.cli.background import Turns
from mlx_tools.cli.call_text import in_words
from mlx_tools.cli.inputs import ctrl_c_later
from mlx_tools.cli.output import note
from mlx_tools.cli.saved_sessions import kept_sessions
from mlx_tools.cli.view import LiveView, StatusLine, describe_compaction, tell
from mlx_tools.controller import Controller, Conversation
from mlx_tools.errors import StorageError, TranscriptError, UsageError
from mlx_tools.messages import replace
from mlx_tools.policy import Policy, can_be_allowed, first_match
from mlx_tools.prompt import ChatFormat
from mlx_tools.store import RootName
from mlx_tools.transcript import (
    CarriedRecord,
    Compacted,
    Event,
    Finished,
    Outcome,
    Paused,
    Record,
    State,
    UserRecord,
)

if TYPE_CHECKING:
    from mlx_tools.app import SavedSession


def folders(configuration: Configuration) -> dict[str, str]:
    """The folders that tools may see: where each stands, and what names it with its rights."""
    named = map(RootName.parse, configuration.settings.tools.roots)
    return {RootName(one.path).absolute(): one.absolute() for one in named}


def _reach(configuration: Configuration) -> set[tuple[str, str]]:
    """Return what the tools reach, each with its kind: folders, programs, files of functions."""
    tools = configuration.settings.tools
    return {
        *folders(configuration).items(),
        *(("program", name) for name in tools.commands),
        *(("functions", file) for file in functions_of(configuration)),
    }


class ChatSession:
    """Questions to a model and its answers.

    ``sessions`` are the ids of those it has gone through, the present one last. ``steps`` says
    whether every step is shown, or but a line a call. ``kept`` is a session to go on with. Raises
    what `found` and `registry_of` raise.
    """

    def __init__(
        self, run: RunOptions, portal: BlockingPortal, saved: SavedSession | None = None
    ) -> None:
        self.run = run
        self.steps = False
        self._portal = portal
        self.turns = Turns(portal, run)
        self._remaining = False  # the last question is not to be gone on with
        self._stack, self.controller = self._open_controller(run, saved)
        try:
            begin = self.controller.conversation
            self.conversation: Conversation = self.wait(
                begin if saved is None else partial(saved.begin, self.controller)
            )
        except BaseException:
            self._stack.close()
            raise
        if saved is not None:
            self.run = replace(run, configuration=self._as_begun())
        self.sessions = [self.conversation.session]
        self._status = StatusLine(self.model)

    def _as_begun(self) -> Configuration:
        """The settings that allow no more than the session does that the talk goes on with: what is
        allowed besides is then added to that."""
        policy, known = self.policy, self.controller.registry.all_specs()
        switches = ("local_only", "dry_run")
        on = {
            f"policy.{one}": True for one in switches if any(getattr(p, one) for p in policy.parts)
        }
        tools = {"policy.preset": policy.preset} if policy.preset else {"policy.allow": ""}
        named = [name for name, spec in known.items() if first_match(policy.allow, spec)]
        like = self.configuration.with_options({**tools, **on}, allow=named)
        wider = like.policy()
        more = {name for name, spec in known.items() if can_be_allowed(wider, spec)}
        more -= {name for name, spec in known.items() if can_be_allowed(policy, spec)}
        return like.with_options({"policy.deny": ",".join(sorted(more))})

    @property
    def configuration(self) -> Configuration:
        """The settings that hold now."""
        return self.run.configuration

    @property
    def model(self) -> str | None:
        """The model's name, where it is known."""
        return self.controller.settings.model

    def status_text(self) -> str:
        """The model, how full its context is, and how fast it writes, as far as that is known."""
        return self._status.text()

    @property
    def policy(self) -> Policy:
        """What may be called."""
        return self.conversation.policy

    @property
    def past_records(self) -> Iterator[Record]:
        """What was said and done, in this session and before it."""
        records: Sequence[Record] = self.conversation.files.transcript
        yield from () if records else self.conversation.earlier.said
        for record in records:
            yield record.record if isinstance(record, CarriedRecord) else record

    def wait(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What an asynchronous function of the loop gives; Ctrl-C ends it."""
        future: Future[Any] | None = None
        try:
            with ctrl_c_later():
                future = self._portal.start_task_soon(function, *arguments)
            return future.result()
        except BaseException:
            if future is not None:
                future.cancel()
            raise

    def close(self) -> None:
        """End the conversation and what serves it."""
        self._end_conversation()
        self.wait(self.controller.registry.aclose)
        self._stack.close()

    def _end_conversation(self) -> None:
        """Close the session; of one in which nothing was asked nothing is kept."""
        self.conversation.close()
        if not self.conversation.is_begun:
            with suppress(TranscriptError):
                kept_sessions().remove(self.conversation.session)

    # --- questions ---

    def ask(self, question: str, *, untyped_suffix_chars: int = 0) -> Outcome:
        """Answer a question, of which so many characters at the end are somebody else's, and show
        what happens. Raises what `Conversation.run` raises, and
        KeyboardInterrupt for Ctrl-C, which stops the answer. Calls in doubt are decided about
        first: where nobody does, the question is not asked."""
        if (paused := self._decide_doubts()) is not None:
            return paused
        self._leave_unfinished()
        conversation = self.conversation
        return self._show_run(
            lambda: conversation.stream(question, untyped_suffix_chars=untyped_suffix_chars)
        )

    def take_up(self) -> None:
        """Have decided what must be before the next question, where anything must: calls of a
        session that was paused, or broke off. Raises what `ask` raises."""
        conversation = self.conversation
        is_begun = conversation.is_begun
        if (
            is_begun and conversation.session_state.state is State.STOPPED
        ):  # that question was given up
            self._decide_doubts()
        elif conversation.undecided:
            self._show_run(conversation.stream_resumed)

    def _decide_doubts(self) -> Outcome | None:
        """Have a person decide about calls in doubt; the outcome where one is left."""
        conversation = self.conversation
        if not conversation.calls_in_doubt:
            return None
        outcome = self._show_run(conversation.stream_decided, ends=False)
        if not conversation.calls_in_doubt:
            return None
        tell(outcome, show_location=False)
        self._remaining = False  # whatever is asked next, they are decided about first
        return outcome

    def _show_run(
        self, stream: Callable[[], AsyncGenerator[Event]], *, ends: bool = True
    ) -> Outcome:
        """What comes of a run, which is shown as it happens; how it ended only where it ``ends``
        a question."""
        view = LiveView.for_process(steps=self.steps, makes_room="/compact makes room")
        try:
            for event in self.turns.follow(stream, view):
                self._status.see(event)
                view.show(event)
        except StorageError:
            self._remaining = True  # that session keeps; the talk goes on in another
            raise
        finally:
            view.end()
        assert isinstance(event, Finished)
        if ends:
            tell(event.outcome, show_location=False)
        self._remaining = isinstance(event.outcome, Paused)  # as above
        return event.outcome

    def retry(self) -> Outcome:
        """Ask the last question again, as if it had not been answered."""
        questions = [one.content for one in self.past_records if isinstance(one, UserRecord)]
        if not questions:
            raise UsageError("nothing was asked yet")
        if (paused := self._decide_doubts()) is not None:
            return paused
        self._go_on_in(self.controller, without_last=True)
        return self.ask(questions[-1])

    def compact(self) -> str:
        """Have the model sum up what was said; what left the prompt, in words."""
        self._leave_unfinished()
        conversation = self.conversation

        async def happens() -> AsyncGenerator[Event]:
            if (done := await conversation.compact()) is not None:
                yield done

        unseen = LiveView(steps=None, answer=None)
        told = [e for e in self.turns.follow(happens, unseen) if isinstance(e, Compacted)]
        for event in told:
            self._status.see(event)
        return describe_compaction(told[0]) if told else "nothing was said yet"

    # --- what a talk goes on in ---

    def begin_anew(self) -> None:
        """Forget what was said."""
        self._enter(self.wait(self.controller.conversation))
        self._status = StatusLine(self.model)

    def go_on_under(self, configuration: Configuration) -> None:
        """Go on with the same model under other settings, in a new session that has all that was
        said before. Raises what `registry_of` raises; nothing has changed then."""
        old = self.controller
        controller = controller_of(
            configuration,
            registry_of(configuration),
            old.backend,
            with_settings(old.settings, configuration),
            self.turns.approver,
        )
        # A yes was meant for the folders, programs and functions that there were.
        more = _reach(configuration) - _reach(self.configuration)
        self._go_on_in(controller, consents=not more)
        self.run = replace(self.run, configuration=configuration)

    def go_on_with(self, model: str) -> None:
        """Go on with another model, like `go_on_under`, and tell where that writes what was said
        anew, in another chat format. Raises what `found` raises."""
        run, before = replace(self.run, model=model), self._format()
        stack, controller = self._open_controller(run)
        with stack:
            self._go_on_in(controller)
            self._stack, stack = stack.pop_all(), self._stack
            self.run = run
        self._status = StatusLine(self.model)
        stack.close()
        name, form = self._format()
        if form != before[1] and any(True for _ in self.past_records):
            note(f"its chat format is another ({name}): a new beginning, with all that was said")

    def _format(self) -> tuple[str, ChatFormat | None]:
        """The name of the chat format that prompts are written in, and the rest of it; none where
        the server writes them."""
        form, route = self.controller.settings.chat_format, self.controller.settings.route
        if form is None or route.get("path") == "native":
            return "the server's own", None
        return in_words(form.name), replace(form, name="")

    def _open_controller(
        self, run: RunOptions, saved: SavedSession | None = None
    ) -> tuple[ExitStack, Controller]:
        """A controller of the backend that is found for these options, and what closes that."""
        configuration = run.configuration
        jobs = None if saved is None else jobs_of(configuration, saved.header)
        registry = registry_of(configuration, jobs)
        with ExitStack() as stack:
            backends = self._portal.wrap_async_context_manager(open_selected_backend(run, note))
            chosen, settings = stack.enter_context(backends)
            approver = self.turns.approver
            made = controller_of(configuration, registry, chosen.backend, settings, approver)
            return stack.pop_all(), made
        raise AssertionError("unreachable")

    def _leave_unfinished(self) -> None:
        """Leave a question that waits, or broke off, to its own session."""
        if self._remaining:
            self._go_on_in(self.controller)

    def _go_on_in(
        self, controller: Controller, *, without_last: bool = False, consents: bool = True
    ) -> None:
        without_last |= self._remaining
        carried = partial(controller.carry_over, without_last=without_last, consents=consents)
        self._enter(self.wait(carried, self.conversation))
        if controller is not self.controller:
            self.wait(self.controller.registry.aclose)
        self.controller = controller

    def _enter(self, conversation: Conversation) -> None:
        self._end_conversation()
        self.conversation, self._remaining = conversation, False
        self.sessions.append(conversation.session)
