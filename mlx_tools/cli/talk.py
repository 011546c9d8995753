"""A chat.

Questions and answers that see each other, while model and permissions may change.

Such a change continues in a new session.
"""

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
    build_controller,
    build_registry,
    list_function_files,
    open_selected_backend,
    with_settings,
)
from mlx_tools.cli.background import Turns, wait_for
from mlx_tools.cli.call_text import escape_line
from mlx_tools.cli.inputs import ctrl_c_later, is_at_terminal, picked
from mlx_tools.cli.output import note
from mlx_tools.cli.saved_sessions import open_user_store
from mlx_tools.cli.type_ahead import TypeAhead
from mlx_tools.cli.view import RESUME_COMMAND, LiveView, StatusLine, describe_compaction, tell
from mlx_tools.controller import Controller, Conversation
from mlx_tools.errors import BackendError, StorageError, TranscriptError, UsageError
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
    context_used,
    is_context_estimated,
)

if TYPE_CHECKING:
    from mlx_tools.app import SavedSession
    from mlx_tools.backends import SelectedBackend
    from mlx_tools.controller import RunSettings


def _resume_command() -> str:
    """Return the command that goes on with a session.

    At a terminal it is typed in the chat, which a pipe has ended before.
    """
    return "/resume" if is_at_terminal() else RESUME_COMMAND


def folders(configuration: Configuration) -> dict[str, str]:
    """Return the folders that tools may see: their paths, and their names with rights."""
    roots = map(RootName.parse, configuration.settings.tools.roots)
    return {RootName(root.path).absolute(): root.absolute() for root in roots}


def _reach(configuration: Configuration) -> set[tuple[str, str]]:
    """Return what the tools can reach, each with its kind.

    Folders, programs, files of functions.
    """
    tools = configuration.settings.tools
    return {
        *folders(configuration).items(),
        *(("program", name) for name in tools.commands),
        *(("functions", file) for file in list_function_files(configuration)),
    }


class ChatSession:
    """Questions to a model and its answers.

    Raises as `open_selected_backend` and `build_registry` do.

    Args:
        run: the options.
        portal: runs asynchronous functions.
        saved: a session to continue, None for a new one.
        keyboard: holds what is typed meanwhile, and frees the terminal for questions.
    """

    def __init__(
        self,
        run: RunOptions,
        portal: BlockingPortal,
        saved: SavedSession | None = None,
        keyboard: TypeAhead | None = None,
    ) -> None:
        self.run = run
        self.steps = False
        """True to show every step, False for one line for each call."""
        self._portal = portal
        self.turns = Turns(portal, run)
        self.turns.type_ahead = keyboard
        self.outputs: list[str] = []
        """Outputs of programs that the user ran; they go with the next question."""
        self._remaining = False  # True if the last question must be left to its session
        self._changes_model = saved is not None and run.model not in (None, saved.header.model)
        """True until the next question, if it continues the saved session with another model."""
        self._stack, self.controller = self._open_controller(run, saved)
        run = self.run
        try:
            self.conversation: Conversation = self.wait(self._beginning(saved))
        except BaseException:
            self._stack.close()
            raise
        if saved is not None:
            self.run = replace(run, configuration=self._narrow_settings())
        self.sessions = [self.conversation.session]
        """The ids of the chat's sessions, the present one last."""
        used = None if self._changes_model else context_used([*self.past_records])
        self._status = StatusLine(
            self.model,
            context=(self.context, used),
            is_estimate=is_context_estimated([*self.past_records]),
        )

    def _beginning(self, saved: SavedSession | None) -> Callable[[], Any]:
        """Return what opens the first conversation."""
        if saved is None:
            return self.controller.conversation
        if self._changes_model:
            registry, approver = self.controller.registry, self.turns.approver
            return partial(saved.begin_without_model, registry, approver)
        return partial(saved.begin, self.controller)

    def _narrow_settings(self) -> Configuration:
        """Return settings that allow no more than the continued session does.

        What the chat allows later is added to these.
        """
        policy, specs = self.policy, self.controller.registry.all_specs()
        switches = ("local_only", "dry_run")
        switched_on = {
            f"policy.{switch}": True
            for switch in switches
            if any(getattr(part, switch) for part in policy.parts)
        }
        tools = {"policy.preset": policy.preset} if policy.preset else {"policy.allow": ""}
        allowed = [name for name, spec in specs.items() if first_match(policy.allow, spec)]
        base = self.configuration.with_options({**tools, **switched_on}, allow=allowed)
        wider = base.policy()
        excess = {name for name, spec in specs.items() if can_be_allowed(wider, spec)}
        excess -= {name for name, spec in specs.items() if can_be_allowed(policy, spec)}
        return base.with_options({"policy.deny": ",".join(sorted(excess))})

    @property
    def configuration(self) -> Configuration:
        """The present settings."""
        return self.run.configuration

    @property
    def model(self) -> str | None:
        """The model's name, None if unknown."""
        return self.controller.settings.model

    @property
    def context(self) -> int | None:
        """The size of the model's context in tokens, None if unknown."""
        is_saved = self.conversation.is_begun and not self._changes_model
        saved = self.conversation.session_state.header.context if is_saved else None
        return self.controller.context or saved

    def status_text(self) -> str:
        """Return the model, how full its context is, and its speed, as far as known."""
        return self._status.text()

    @property
    def policy(self) -> Policy:
        """The present policy."""
        return self.conversation.policy

    @property
    def past_records(self) -> Iterator[Record]:
        """The records of this session and of those before it."""
        records: Sequence[Record] = self.conversation.files.transcript
        yield from () if records else self.conversation.earlier.records
        for record in records:
            yield record.record if isinstance(record, CarriedRecord) else record

    @property
    def last_question(self) -> UserRecord | None:
        """The question that was asked last, None if there was none."""
        questions = (record for record in self.past_records if isinstance(record, UserRecord))
        return [None, *questions][-1]

    def wait(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of an asynchronous function on the loop; Ctrl-C ends it."""
        future: Future[Any] | None = None
        try:
            with ctrl_c_later():
                future = self._portal.start_task_soon(function, *arguments)
            return wait_for(future)
        except BaseException:
            if future is not None:
                future.cancel()
            raise

    def close(self) -> None:
        """End the conversation, and close its model and tools."""
        self._end_conversation()
        self.wait(self.controller.registry.aclose)
        self._stack.close()

    def _end_conversation(self) -> None:
        """Close the session, and remove it if no question was asked."""
        self.conversation.close()
        if not self.conversation.is_begun:
            with suppress(TranscriptError):
                open_user_store().remove(self.conversation.session)

    # --- questions ---

    def ask(self, question: str, *, untyped_suffix_chars: int = 0, retries: int = 0) -> Outcome:
        """Answer a question and show what happens.

        Calls in doubt are decided about first; if the user does not decide, the question is not
        asked.

        Args:
            question: the question.
            untyped_suffix_chars: characters at its end that the user did not write.
            retries: how often it was asked before.

        Raises:
            KeyboardInterrupt: Ctrl-C, which stops the answer.
            MlxToolsError: as `Conversation.run`.
        """
        if (paused := self._decide_doubts()) is not None:
            return paused
        self._leave_unfinished()
        conversation = self.conversation
        return self._show_run(
            lambda: conversation.stream(
                question, untyped_suffix_chars=untyped_suffix_chars, retries=retries
            )
        )

    def decide_pending(self) -> None:
        """Decide what must be decided before the next question.

        Such as calls of a paused session.

        Raises as `ask` does.
        """
        conversation = self.conversation
        is_begun = conversation.is_begun
        if self._changes_model:  # the other model goes on in a session of its own
            self._remaining = bool(conversation.undecided)
        elif (
            is_begun and conversation.session_state.state is State.STOPPED
        ):  # that question was given up
            self._decide_doubts()
        elif conversation.undecided:
            self._show_run(conversation.stream_resumed)

    def _decide_doubts(self) -> Outcome | None:
        """Let a person decide about calls in doubt.

        Return the outcome if one is left, else None.
        """
        conversation = self.conversation
        if not conversation.calls_in_doubt:
            return None
        outcome = self._show_run(conversation.stream_decided, ends=False)
        if not conversation.calls_in_doubt:
            return None
        tell(outcome, show_location=False, resume_command=_resume_command())
        self._remaining = False  # the next question decides about these calls first anyway
        return outcome

    def _show_run(
        self, stream: Callable[[], AsyncGenerator[Event]], *, ends: bool = True
    ) -> Outcome:
        """Show a run as it happens, and return its outcome.

        Print the ending if it ``ends`` a question.
        """
        view = LiveView.for_process(steps=self.steps, makes_room="/compact makes room")
        view.start()
        try:
            for event in self.turns.follow(stream, view):
                self._status.update(event)
                view.show(event)
        except StorageError:
            self._remaining = True  # that session stays as it is; the chat continues in another
            raise
        finally:
            view.end()
        assert isinstance(event, Finished)
        if ends:
            tell(event.outcome, show_location=False, resume_command=_resume_command())
        self._remaining = isinstance(event.outcome, Paused)  # likewise
        return event.outcome

    def retry(self) -> Outcome:
        """Ask the last question again, as if it had not been answered.

        Its answer is drawn at random, since it would be the same at temperature 0.
        """
        question = self.last_question
        if question is None:
            raise UsageError("nothing was asked yet", hint="type a question first")
        if (paused := self._decide_doubts()) is not None:
            return paused
        self._carry_over_to(self.controller, without_last=True)
        return self.ask(
            question.content,
            untyped_suffix_chars=question.untyped_suffix_chars,
            retries=question.retries + 1,
        )

    def compact(self) -> str:
        """Let the model sum up the conversation; return in words what left the prompt."""
        self._leave_unfinished()
        conversation = self.conversation

        async def happens() -> AsyncGenerator[Event]:
            if (compacted := await conversation.compact()) is not None:
                yield compacted

        no_view = LiveView(steps=None, answer=None)
        events = [e for e in self.turns.follow(happens, no_view) if isinstance(e, Compacted)]
        for event in events:
            self._status.update(event)
        return describe_compaction(events[0]) if events else "nothing was said yet"

    # --- sessions of the chat ---

    def start_conversation(self) -> None:
        """Begin a new conversation."""
        self._enter(self.wait(self.controller.conversation))
        self._status = StatusLine(self.model)
        self.outputs.clear()

    def switch_settings(self, configuration: Configuration) -> None:
        """Continue with the same model under other settings, in a new session.

        The new session has all that was said.

        Raises as `build_registry` does; nothing has changed then.
        """
        old = self.controller
        controller = build_controller(
            configuration,
            build_registry(configuration, note=note),
            old.backend,
            with_settings(old.settings, configuration),
            self.turns.approver,
        )
        # Consents were given for the earlier folders, programs and functions only.
        new_reach = _reach(configuration) - _reach(self.configuration)
        self._carry_over_to(controller, consents=not new_reach)
        self.run = replace(self.run, configuration=configuration)

    def switch_model(self, model: str) -> None:
        """Continue with another model, as `switch_settings` does.

        A note says so if its chat format makes the prompt begin anew. Raises as
        `open_selected_backend` does.
        """
        run, old_format = replace(self.run, model=model), self._format()
        stack, controller = self._open_controller(run)
        with stack:
            self._carry_over_to(controller)
            self._stack, stack = stack.pop_all(), self._stack
            self.run = run
        self._status = StatusLine(self.model)
        stack.close()
        name, form = self._format()
        if form != old_format[1] and any(True for _ in self.past_records):
            note(
                f"its chat format is another ({name}): the whole conversation is sent again in "
                "that format"
            )

    def _format(self) -> tuple[str, ChatFormat | None]:
        """Return the name of the prompts' chat format and the format.

        None if the server writes prompts.
        """
        form, route = self.controller.settings.chat_format, self.controller.settings.route
        if form is None or route.get("path") == "native":
            return "the server's own", None
        return escape_line(form.name), replace(form, name="")

    def _open_controller(
        self, run: RunOptions, saved: SavedSession | None = None
    ) -> tuple[ExitStack, Controller]:
        """Return what closes the backend of these options, and its controller.

        If the server of a saved session does not answer, the other address is tried.
        """
        header = None if saved is None else saved.header
        registry = build_registry(run.configuration, header, note)
        with ExitStack() as stack:
            try:
                selected, settings = self._enter_backend(run, stack)
            except (BackendError, UsageError) as error:
                if saved is None:
                    raise
                self.run = run = saved.take_fallback(error)
                selected, settings = self._enter_backend(run, stack)
            approver = self.turns.approver
            controller = build_controller(
                run.configuration, registry, selected.backend, settings, approver
            )
            return stack.pop_all(), controller
        raise AssertionError("unreachable")

    def _enter_backend(
        self, run: RunOptions, stack: ExitStack
    ) -> tuple[SelectedBackend, RunSettings]:
        """Return the backend of these options, which ``stack`` closes, and its settings."""
        if run.pick is not None:
            run = replace(run, pick=self._pick)
        backends = self._portal.wrap_async_context_manager(open_selected_backend(run, note))
        return self.turns.wait_answering(partial(stack.enter_context, backends))

    async def _pick(self, question: str, answers: Sequence[str]) -> str | None:
        """Ask the user which of several answers is right, from the loop."""
        choice: str | None = await self.turns.ask_main_thread(partial(picked, question, answers))
        return choice

    def _leave_unfinished(self) -> None:
        """Leave a question that waits, or broke off, to its own session."""
        if self._changes_model:  # under the settings that the session was begun with
            self.switch_settings(self.configuration)
        elif self._remaining:
            if self.conversation.undecided and is_at_terminal():
                session = self.conversation.session
                note(f"the call that waits stays behind: /resume {session} goes back to it")
            self._carry_over_to(self.controller)

    def _carry_over_to(
        self, controller: Controller, *, without_last: bool = False, consents: bool = True
    ) -> None:
        without_last |= self._remaining
        carry_over = partial(controller.carry_over, without_last=without_last, consents=consents)
        self._enter(self.wait(carry_over, self.conversation))
        if controller is not self.controller:
            self.wait(self.controller.registry.aclose)
        self.controller = controller

    def _enter(self, conversation: Conversation) -> None:
        self._end_conversation()
        self.conversation, self._remaining = conversation, False
        self._changes_model = False
        self.sessions.append(conversation.session)
