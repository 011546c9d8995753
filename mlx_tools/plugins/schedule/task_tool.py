"""``schedule_task``: makes a job, after approval.

The job has no more rights than the session that made it: it has that session's policy, and asks for
its own approvals when it runs. Its task may contain private data that the session has read. So if
the policy restricts the network after a private read, the job has no network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field

from mlx_tools.errors import MlxToolsError, UsageError
from mlx_tools.messages import Effects
from mlx_tools.plugins.schedule.job_store import Job, JobStore, utc_now
from mlx_tools.plugins.schedule.when import Schedule, counts_from_now, normalize_text, parse_when
from mlx_tools.policy import PRESETS, Policy, restriction
from mlx_tools.toolbox import find_local_zone, one_line
from mlx_tools.tools import Preview, Tool, ToolError, current_context, load_words

EFFECTS: Final[Effects] = frozenset(("write",))
PREVIEW_TIMES: Final = 3
"""Due times in a preview, which show the meaning of the words."""


class Jobs(Struct, frozen=True, kw_only=True):
    """The store of jobs, and the values that all new jobs share."""

    store: JobStore
    zone: Callable[[], str] = find_local_zone
    """Returns the name of the time zone."""
    configured_policy: Policy | None = None
    """The policy that is configured for all sessions."""
    roots: tuple[str, ...] = ()
    """See `Job`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """See `Job`."""
    now: Callable[[], datetime] = utc_now


def schedule_task(jobs: Jobs | None) -> Tool:
    """Return the tool for these jobs. If they are None, it always fails."""
    words = load_words("schedule_task")

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()
        checked_jobs, when = _read(jobs, arguments)
        if context.expected is not None and context.expected != _make_state(when, arguments):
            raise ToolError(
                "the time now means another moment than when it was approved", code="not_allowed"
            )
        if context.cancelled:
            raise ToolError("the call came to its end before; no job was made")
        with _map_errors():
            job = checked_jobs.store.add(
                Job(
                    task=arguments["task"],
                    schedule_text=arguments["when"],
                    when=when,
                    policy=_make_policy(context.policy).to_json(),
                    configured_policy={}
                    if checked_jobs.configured_policy is None
                    else checked_jobs.configured_policy.to_json(),
                    roots=checked_jobs.roots,
                    options=checked_jobs.options,
                    created_by=f"session {context.session}" if context.session else "a call",
                )
            )
        due = _format_local(when, when.next_after(checked_jobs.now()))
        return words.notices["made"].format(id=job.id, due=due)

    def preview(arguments: Mapping[str, Any]) -> Preview:
        checked_jobs, when = _read(jobs, arguments)
        lines = [f"a job is made: {one_line(arguments['task'], marks=True)}", f"when: {when}"]
        moment: datetime | None = checked_jobs.now()
        for _ in range(PREVIEW_TIMES):
            if (moment := moment and when.next_after(moment)) is not None:
                lines += [f"due: {_format_local(when, moment)}"]
        lines += _describe_powers(_make_policy(current_context().policy), checked_jobs.roots)
        lines.append("that is what this session may; it asks for its own approvals")
        return Preview("\n".join(lines), _make_state(when, arguments))

    return Tool(words.spec(EFFECTS, needs_approval=True), run, preview=preview)


def _make_policy(session: Policy) -> Policy:
    """Return the policy of a job that is made in a session with this policy."""
    if all(part.network_after_read == "allow" for part in session.parts):
        return session
    return session.intersect(restriction(local_only=True))


@contextlib.contextmanager
def _map_errors() -> Iterator[None]:
    """Translate our own errors into errors that a model reads."""
    try:
        yield
    except UsageError as error:
        raise ToolError(str(error), code="invalid_arguments") from None
    except MlxToolsError as error:
        raise ToolError(str(error)) from None


def _read(jobs: Jobs | None, arguments: Mapping[str, Any]) -> tuple[Jobs, Schedule]:
    """Return the jobs and the schedule of a call.

    Raises:
        ToolError: the task or the time is not valid.
    """
    if jobs is None:
        raise ToolError("no place for jobs was named")
    with _map_errors():
        when = parse_when(arguments["when"], jobs.zone(), jobs.now())
        Job(task=arguments["task"], schedule_text=arguments["when"], when=when)
    return jobs, when


def _describe_powers(policy: Policy, roots: Sequence[str]) -> Iterator[str]:
    """Yield a job's rights under this policy, with a line for each narrowing policy."""
    for part in policy.parts:
        granted = list(part.allow)
        if part.preset is not None:
            granted.append(f"{', '.join(PRESETS[part.preset].tools)} (preset {part.preset})")
        line = f"it may call: {', '.join(granted) or 'nothing'}"
        if part.deny:
            line += f"; not {', '.join(part.deny)}"
        yield line if part is policy else f"and of that no more than this: {line}"
        if part.dry_run:
            yield "nothing that changes things is run (dry run)"
        if part.local_only:
            yield "nothing may use the network (local only)"
    if roots:
        yield f"in the folders: {', '.join(one_line(root, marks=True) for root in roots)}"


def _make_state(when: Schedule, arguments: Mapping[str, Any]) -> str:
    """Return the state that an approval is bound to: the schedule itself.

    A time that counts from now, such as *in 2 hours*, is later when the job is made than when it is
    approved. So in that case the approval is bound to the words.
    """
    words = str(arguments["when"])
    return f"job {normalize_text(words) if counts_from_now(words) else when}"


def _format_local(when: Schedule, moment: datetime | None) -> str:
    return str(Schedule(when.zone, run_at=moment))
