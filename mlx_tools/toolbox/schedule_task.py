"""``schedule_task``: makes a job, after approval.

The job may do no more than the session that made it: it has that session's policy, and asks for its
own approvals when it runs. What the session has read may stand in the task, so where the policy
holds the network back after a private read, the job has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field

from mlx_tools.errors import MlxToolsError, UsageError
from mlx_tools.messages import Effects
from mlx_tools.policy import PRESETS, Policy, restriction
from mlx_tools.toolbox.clock import local_zone
from mlx_tools.toolbox.schedule.job_store import Job, JobStore, utc_now
from mlx_tools.toolbox.schedule.when import Schedule, counts_from_now, parse_when, plain
from mlx_tools.toolbox.text_files import one_line
from mlx_tools.tools import Preview, Tool, ToolError, current_context, words_of

EFFECTS: Final[Effects] = frozenset(("write",))
SHOWN_TIMES: Final = 3


class Jobs(Struct, frozen=True, kw_only=True):
    """Where jobs are kept, and what the jobs of this program's sessions have in common.

    ``zone`` gives the name of the zone that times are in, ``configured_policy`` is what is
    configured for all sessions; ``roots`` and ``options`` are those of `Job`.
    """

    store: JobStore
    zone: Callable[[], str] = local_zone
    configured_policy: Policy | None = None
    roots: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    now: Callable[[], datetime] = utc_now


def schedule_task(jobs: Jobs | None) -> Tool:
    """The tool for these jobs. Without any it can only fail."""
    words = words_of("schedule_task")

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()
        own, when = _read(jobs, arguments)
        if context.expected is not None and context.expected != _state(when, arguments):
            raise ToolError("it means another time by now than was approved", code="not_allowed")
        if context.cancelled:
            raise ToolError("the call came to its end before; no job was made")
        with _map_errors():
            job = own.store.add(
                Job(
                    task=arguments["task"],
                    said=arguments["when"],
                    when=when,
                    policy=_policy_of(context.policy).to_json(),
                    configured_policy={}
                    if own.configured_policy is None
                    else own.configured_policy.to_json(),
                    roots=own.roots,
                    options=own.options,
                    by=f"session {context.session}" if context.session else "a call",
                )
            )
        due = _local(when, when.next_after(own.now()))
        return words.notices["made"].format(id=job.id, due=due)

    def preview(arguments: Mapping[str, Any]) -> Preview:
        own, when = _read(jobs, arguments)
        lines = [f"a job is made: {one_line(arguments['task'], marks=True)}", f"when: {when}"]
        moment: datetime | None = own.now()
        for _ in range(SHOWN_TIMES):
            if (moment := moment and when.next_after(moment)) is not None:
                lines += [f"due: {_local(when, moment)}"]
        lines += _powers(_policy_of(current_context().policy), own.roots)
        lines.append("that is what this session may; it asks for its own approvals")
        return Preview("\n".join(lines), _state(when, arguments))

    return Tool(words.spec(EFFECTS, needs_approval=True), run, preview=preview)


def _policy_of(session: Policy) -> Policy:
    """The policy of a job that is made under ``session``."""
    if all(part.network_after_read == "allow" for part in session.parts):
        return session
    return session.narrowed_by(restriction(local_only=True))


@contextlib.contextmanager
def _map_errors() -> Iterator[None]:
    """Makes of our own errors what a model reads."""
    try:
        yield
    except UsageError as error:
        raise ToolError(str(error), code="invalid_arguments") from None
    except MlxToolsError as error:
        raise ToolError(str(error)) from None


def _read(jobs: Jobs | None, arguments: Mapping[str, Any]) -> tuple[Jobs, Schedule]:
    """What is asked for. Raises ToolError for a task that is none, and a time that is none."""
    if jobs is None:
        raise ToolError("there is no place for jobs")
    with _map_errors():
        when = parse_when(arguments["when"], jobs.zone(), jobs.now())
        Job(task=arguments["task"], said=arguments["when"], when=when)
    return jobs, when


def _powers(policy: Policy, roots: Sequence[str]) -> Iterator[str]:
    """What a job may do under this policy, for a person; each narrowing on a line of its own."""
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


def _state(when: Schedule, arguments: Mapping[str, Any]) -> str:
    """What an approval of it is for: the time itself, but for one that counts from when the job is
    made, which is later than when it is approved."""
    said = str(arguments["when"])
    return f"job {plain(said) if counts_from_now(said) else when}"


def _local(when: Schedule, moment: datetime | None) -> str:
    return str(Schedule(when.zone, at=moment))
