"""Decisions of policy on calls, and a person's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from mlx_tools import ApprovalAnswer, Policy, Registry, Tool, UsageError
from mlx_tools.controller import ApprovalRequest
from mlx_tools.plugins.basics.calculator import calculator
from mlx_tools.policy import ApprovalTemplate, CallContext, compute_pin
from mlx_tools.policy.redact import make_placeholder

from .reading import answer, call
from .scene import FREELY, Approver, Scene, Stage, make_limits
from .tools import KEY, asking, changing, diary, look, save, send, store

YES = ApprovalAnswer(True)
ASKS = Policy(allow=["*"], ask=["save"])
SAVE = call("save", path="a.txt", text="tea")


class _One:
    """One template, as a file of them is asked."""

    def __init__(self, template: ApprovalTemplate) -> None:
        self._template = template

    def find(self, call: CallContext) -> ApprovalTemplate | None:
        return self._template if self._template.covers(call) else None


class _Meanwhile(Approver):
    """Has something happen while a person decides."""

    def __init__(self, answers: Sequence[ApprovalAnswer], happen: Callable[[], Any]) -> None:
        super().__init__(answers)
        self._happen = happen

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """One answer a request."""
        self._happen()
        return await super().decide(requests)


def scenes() -> Iterator[Scene]:
    """All of this theme."""
    yield from _policies()
    yield from _network()
    yield from _rates()
    yield from _approvals()
    yield from _resumed()
    yield from _in_doubt()


def _policies() -> Iterator[Scene]:
    yield Scene(
        name="policy/preset-readonly-basic",
        about="A preset lets its tools run, and no other.",
        features=("preset",),
        tools=lambda: [calculator(), look()],
        says=[call("calculator", expression="2 ** 0.5 + 1/3"), call("look", text="a"), answer()],
        policy=Policy(preset="readonly_basic"),
    )
    yield Scene(
        name="policy/preset-readonly-files",
        about="The preset for files does not hold the calculator.",
        features=("preset",),
        tools=lambda: [calculator()],
        says=[call("calculator", expression="1 + 1"), answer("I may not.")],
        policy=Policy(preset="readonly_files"),
    )
    yield Scene(
        name="policy/deny-before-ask",
        about="What is denied is denied, though it is allowed and asked about as well.",
        features=("deny",),
        tools=lambda: [look(), save()],
        says=[SAVE, answer("I may not save.")],
        policy=Policy(allow=["*"], ask=["save"], deny=["sa*"]),
        answers=[YES],
    )
    yield Scene(
        name="policy/glob",
        about="A glob allows the tools whose names it matches.",
        features=("glob",),
        tools=lambda: [look(), save()],
        says=[call("look", text="a"), SAVE, answer()],
        policy=Policy(allow=["l[mno]o?"]),
    )
    yield Scene(
        name="policy/narrowed",
        about="A policy that narrows another one takes away, and grants nothing.",
        features=("narrowed",),
        tools=lambda: [look(), save()],
        says=[call("look", text="a"), SAVE, answer()],
        policy=Policy(allow=["save", "look"]).intersect(Policy(allow=["look", "send"])),
    )
    yield Scene(
        name="policy/dry-run",
        about="A dry run reads, and changes nothing.",
        features=("dry-run",),
        tools=lambda: [look(), save(), store()],
        says=[
            call("look", text="a"),
            SAVE,
            f"{call('store', path='b')}\n{call('store', path='b', text='c')}",
            answer("Nothing was saved."),
        ],
        policy=Policy(allow=["*"], dry_run=True),
    )
    reads, writes = call("store", path="b"), call("store", path="b", text="c")
    yield Scene(
        name="policy/ask-effects",
        about="What writes asks a person, and what reads does not, of one tool too.",
        features=("ask-effects",),
        tools=lambda: [save(), store()],
        says=[reads, writes, SAVE, answer("It is written.")],
        answers=[YES, ApprovalAnswer(False, "not that one")],
        limits=make_limits(max_iterations=5),
    )

    async def with_template(stage: Stage) -> str:
        spec = stage.registry.get("save").spec
        yes = ApprovalTemplate(
            id="7c0ffee5",
            tool=spec.name,
            pin=compute_pin(spec, None),
            arguments={"path": "a*", "text": "*"},
            made_at="1999-12-31T00:00:00+00:00",
            expires_at="2099-01-01T00:00:00+00:00",
        )
        return await stage.ask_all(stage.controller(*stage.scene.says, templates=_One(yes)))

    yield Scene(
        name="policy/approval-template",
        about="An approval template lets through the calls that it describes, and no other.",
        features=("approval-template",),
        tools=lambda: [save(needs_approval=True)],
        says=[SAVE, call("save", path="b.txt", text="tea")],
        play=with_template,
    )
    yield Scene(
        name="policy/placeholder",
        about="What was taken out of an observation must not be written back into a file.",
        features=("placeholder",),
        tools=lambda: [save()],
        says=[call("save", path="a", text=f"key: {make_placeholder('jwt')}"), answer("I may not.")],
    )

    async def switched_off(stage: Stage) -> str:
        stage.registry.disable("look", "it is switched off here")
        return await stage.ask_all(stage.controller(*stage.scene.says))

    yield Scene(
        name="policy/disabled",
        about="A tool that is switched off is told to be so, with the reason.",
        tools=lambda: [look(), save()],
        says=[call("look", text="a"), answer("It is off.")],
        play=switched_off,
    )


def _network() -> Iterator[Scene]:
    yield Scene(
        name="policy/local-only",
        about="Where nothing may leave the machine, no tool may use the network.",
        features=("local-only",),
        tools=lambda: [look(), send()],
        says=[call("send", text="hello"), answer("I may not send.")],
        policy=Policy(allow=["*"], local_only=True),
    )
    yield Scene(
        name="policy/secret-for-the-network",
        about="No call may carry a secret into the network.",
        features=("secret",),
        tools=lambda: [send()],
        says=[call("send", text=f"the key is {KEY}"), answer("I may not send that.")],
    )
    for says in ("ask", "deny"):
        yield Scene(
            name=f"policy/network-after-read-{says}",
            about=f"Once private data was read, calls into the network are held to: {says}.",
            features=("network-after-read", "private"),
            tools=lambda: [diary(), send()],
            says=[
                call("send", text="before"),
                call("diary"),
                call("send", text="after"),
                answer("So far."),
            ],
            policy=Policy(allow=["*"], network_after_read=says),
        )


def _rates() -> Iterator[Scene]:
    yield Scene(
        name="policy/rate-of-a-tool",
        about="A tool may be called so often and no more, in two calls of one turn as well.",
        features=("rates",),
        tools=lambda: [look()],
        says=[
            call("look", text="a"),
            f"{call('look', text='b')}\n{call('look', text='c')}",
            answer(),
        ],
        policy=Policy(allow=["*"], rate_limits={"lo*": "2/minute"}),
    )
    yield Scene(
        name="policy/rate-of-the-session",
        about="All tools together may be called so often and no more.",
        features=("rates",),
        tools=lambda: [look(), save()],
        says=[call("look", text="a"), SAVE, answer()],
        policy=Policy(allow=["*"], session_rate_limit="1/hour"),
    )


def _approvals() -> Iterator[Scene]:
    def scene(name: str, about: str, *answers: ApprovalAnswer, **more: object) -> Scene:
        values = {"says": [SAVE, answer()], "tools": lambda: [save(), look()], "policy": ASKS}
        values |= more
        return Scene(name=f"approvals/{name}", about=about, answers=answers, **values)  # type: ignore[arg-type]

    yield scene("approved", "A person lets a call run.", YES)
    yield scene(
        "refused", "A person refuses a call, and says why.", ApprovalAnswer(False, "not that one")
    )
    yield scene(
        "edited",
        "A person gives the call other arguments, and the model is told of it.",
        ApprovalAnswer(True, arguments={"path": "b.txt", "text": "coffee"}),
        features=("edited",),
    )
    yield scene(
        "batch",
        "Of three calls in one turn one runs at once, one is approved and one refused.",
        YES,
        ApprovalAnswer(False, "once is enough"),
        says=[
            "\n".join((SAVE, call("look", text="a"), call("save", path="b.txt", text="more"))),
            answer("One of them."),
        ],
        features=("batch", "parallel"),
    )
    yield scene(
        "for-the-session",
        "What was approved for the session is not asked about again.",
        ApprovalAnswer(True, for_session=True),
        says=[SAVE, call("save", path="b.txt", text="more"), answer()],
        features=("for-session",),
    )
    yield scene("paused", "Nobody is there to be asked: the run waits.", says=[SAVE])
    yield scene(
        "always-asked",
        "A tool that always needs approval is asked about though the policy does not ask.",
        YES,
        policy=Policy(allow=["*"]),
        tools=lambda: [save(needs_approval=True)],
    )

    async def changed(stage: Stage) -> str:
        states = ["one", "two", "two"]
        stage.registry.add(changing(states))
        approver = _Meanwhile([YES, YES], lambda: states.pop(0))
        return await stage.ask_all(stage.controller(SAVE, answer(), approver=approver))

    yield scene(
        "changed",
        "What the call would act on has changed since it was approved: it is asked about again.",
        tools=list,
        play=changed,
        features=("changed",),
    )


def _resumed() -> Iterator[Scene]:
    async def resumed(stage: Stage) -> str:
        session = await stage.ask_all(stage.controller(SAVE))
        await stage.controller(answer()).resume(session, approvals=True)
        return session

    async def expired(stage: Stage) -> str:
        session = await stage.ask_all(stage.controller(SAVE))
        stage.later = timedelta(days=8)
        try:
            await stage.controller(answer()).resume(session, approvals=True)
        except UsageError:
            await stage.controller(answer()).resume(session, approvals=True)
        return session

    async def narrowed(stage: Stage) -> str:
        session = await stage.ask_all(stage.controller(SAVE))
        policy = Policy(allow=["look"])
        await stage.controller(answer("It is denied now."), policy=policy).resume(session)
        return session

    async def within(stage: Stage) -> str:
        session = await stage.ask_all(stage.controller(call("ask_around", text="Save it."), SAVE))
        said = {"c1/c1": True}
        await stage.controller(answer("saved"), answer()).resume(session, approvals=said)
        return session

    for name, about, play in (
        ("resumed", "A run that waited goes on in another process, approved.", resumed),
        (
            "expired",
            "An approval that comes too late holds for nothing: it is asked anew.",
            expired,
        ),
        ("narrowed-since", "What was asked about is denied by the policy of today.", narrowed),
    ):
        yield Scene(
            name=f"approvals/{name}",
            about=about,
            features=("resumed",),
            tools=lambda: [save(), look()],
            policy=ASKS,
            play=play,
        )

    async def gone_on(stage: Stage) -> str:
        session = await stage.ask_all(stage.controller(call("look", text="it"), answer("Seen.")))
        policy = Policy(allow=["look"])
        controller = stage.controller(SAVE, answer("It is denied now."), policy=policy)
        async with await controller.reopen(session) as conversation:
            await conversation.run("Save it.")
        return session

    async def carried(stage: Stage) -> str:
        first = stage.controller(call("look", text="it"), answer("Seen."), answer("Red."))
        session = await stage.ask_all(first)
        async with await first.reopen(session) as conversation:
            await conversation.run("Which colour has it?")
        again = stage.controller(answer("Blue."))
        async with await again.carry_over(session, without_last=True) as conversation:
            await conversation.run("Which colour has it, really?")
            return conversation.session

    for name, about, feature, play in (
        (
            "gone-on",
            "A session that was answered goes on in another process, under a narrower policy.",
            "resumed",
            gone_on,
        ),
        (
            "carried-over",
            "A session goes on from what was said in another one, but for its last question.",
            "carried",
            carried,
        ),
    ):
        yield Scene(
            name=f"sessions/{name}",
            about=about,
            features=(feature,),
            tools=lambda: [save(), look()],
            policy=ASKS,
            play=play,
        )
    yield Scene(
        name="nested/approval-within",
        about="A call in a run within a call waits for a person, and the outer run with it.",
        features=("nested", "resumed"),
        tools=lambda: [asking(), look(), save()],
        policy=ASKS,
        play=within,
    )


def _in_doubt() -> Iterator[Scene]:
    async def broken_off(stage: Stage) -> str:
        """A session whose last words are that a call was started."""
        kept: list[bytes] = []

        async def run(arguments: object) -> str:
            (path,) = (stage.folder / "sessions").glob("*/transcript.jsonl")
            kept.append(path.read_bytes())
            return "saved"

        stage.registry = Registry([Tool(save().spec, run)])
        session = await stage.ask_all(stage.controller(SAVE, answer()))
        stage.path(session).write_bytes(kept[0])
        return session

    async def refused(stage: Stage) -> str:
        session = await broken_off(stage)
        no = {"c1": ApprovalAnswer(False, "I looked: it is there")}
        await stage.controller(answer("It is there.")).resume(session, approvals=no)
        return session

    async def again(stage: Stage) -> str:
        session = await broken_off(stage)
        await stage.controller().resume(session)
        yes = {"c1": ApprovalAnswer(True)}
        await stage.controller(answer("It is there now.")).resume(session, approvals=yes)
        return session

    for name, about, play in (
        ("refused", "Nobody knows whether a call was done; a person says to leave it.", refused),
        ("again", "Nobody knows whether a call was done; a person lets it run again.", again),
    ):
        yield Scene(
            name=f"approvals/in-doubt-{name}",
            about=about,
            features=("in-doubt", "resumed"),
            tools=lambda: [save()],
            policy=FREELY,
            play=play,
        )
