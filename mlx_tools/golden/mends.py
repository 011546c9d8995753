"""A mended turn drawn once more from its records, with no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_tools.controller.step import Complete
from mlx_tools.decoding import Draw, HeldTurn, Score
from mlx_tools.messages import FinishReason
from mlx_tools.transcript.records import MendRecord


def redrawn(
    due: Complete, mends: Sequence[MendRecord], text: str, reason: FinishReason | None
) -> tuple[HeldTurn, Mapping[int, str]]:
    """The turn that ``due`` comes to, with what was recorded in place of a backend: ``mends``, in
    order, and the ``text`` of the turn in the end. With it, what stood of the turn at each draw, by
    the number of the mend that ended it."""
    turn = HeldTurn(due.rules, due.tools, due.strategy, due.turn)
    stood: dict[int, str] = {}
    while turn.due is not None and (done := len(turn.mends)) < len(mends):
        mend, draw = mends[done], turn.due
        if isinstance(draw, Score):
            _score(turn, mend)
            continue
        if mend.anew and not mend.drawn and not mend.put:  # what is drawn next says so itself
            if done + 1 == len(mends):
                break
            done += 1
            mend = mends[done]
        stood[done] = turn.text
        for piece in mend.drawn:
            turn.feed(piece)
        if turn.due is draw and mend.ended is not None:
            turn.end(mend.ended, cut_out=mend.kind == "envelope" and not mend.drawn)
        if turn.due is draw and len(turn.mends) < done + 1:
            return turn, stood  # what was mended then fits now
    last = turn.due
    if isinstance(last, Draw):
        all_there = len(turn.mends) >= len(mends)
        if all_there and not turn.unfilled:
            stood[len(mends)] = turn.text
        turn.feed(text[len(turn.text) :] if all_there else text)
        if turn.due is last and reason is not None and not turn.closing:
            turn.end(reason)
        elif turn.due is last:
            turn.close(reason)
    return turn, stood


def _score(turn: HeldTurn, mend: MendRecord) -> None:
    if mend.behind and mend.alternatives is not None and not turn.asks_behind:
        turn.ask_behind()
        return
    asked = mend.alternatives
    likely = None if asked is None else [(one["token"], one["logprob"]) for one in asked]
    turn.scored(likely, mend.scored)
