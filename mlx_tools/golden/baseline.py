"""A baseline of live checks: what passed how often, to compare later checks with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mlx_tools.app.statistics import Share, fisher
from mlx_tools.errors import UsageError
from mlx_tools.golden.results import Column, GoldenCheck

VERSION: Final = 1
SURE: Final = 0.05
"""A fall that chance alone brings about less often than this is a regression."""

_Key = tuple[str, Column]


@dataclass(frozen=True, slots=True)
class Regression:
    """What passes less often than it did: one transcript in one cell, or, with an empty ``name``, a
    whole cell. ``p`` is how often chance alone would bring so large a fall about."""

    name: str
    cell: Column
    before: Share
    after: Share
    p: float

    def to_json(self) -> dict[str, Any]:
        """The regression as ``--json`` prints it."""
        return {
            "name": self.name,
            **asdict(self.cell),
            "before": {"hits": self.before.hits, "samples": self.before.total},
            "after": {"hits": self.after.hits, "samples": self.after.total},
            "p": self.p,
        }


@dataclass(frozen=True, slots=True)
class Baseline:
    """By transcript and cell, how many samples passed. ``drawn``: they were drawn at random, so
    that one which fails may be chance; else the same model must write the same again."""

    shares: Mapping[_Key, Share]
    drawn: bool = False

    @classmethod
    def of(cls, checks: Iterable[GoldenCheck], *, drawn: bool) -> Baseline:
        """The baseline that these checks are."""
        return cls({(check.name, check.cell): check.share for check in checks}, drawn)

    def regressions(self, checks: Sequence[GoldenCheck]) -> list[Regression]:
        """What of ``checks`` is worse than here, whole cells first. A transcript that passed less
        often counts where that is no chance; where nothing is drawn at random, it always does.
        What the baseline does not know is passed over."""
        known = [check for check in checks if (check.name, check.cell) in self.shares]
        found = []
        for cell in dict.fromkeys(check.cell for check in known):
            own = [check for check in known if check.cell == cell]
            before = _sum(self.shares[check.name, cell] for check in own)
            after = _sum(check.share for check in own)
            if (p := fisher(before, after)) < SURE:
                found.append(Regression("", cell, before, after, p))
        for check in known:
            before, after = self.shares[check.name, check.cell], check.share
            fell = after.hits * before.total < before.hits * after.total
            p = fisher(before, after)
            if fell and (p < SURE or not self.drawn):
                found.append(Regression(check.name, check.cell, before, after, p))
        return found

    def write(self, path: Path) -> None:
        """Writes it to a file. Raises `UsageError`."""
        rows = [
            {"name": name, **asdict(cell), "hits": share.hits, "samples": share.total}
            for (name, cell), share in self.shares.items()
        ]
        value = {"golden_baseline": VERSION, "drawn": self.drawn, "checks": rows}
        try:
            path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """The baseline in a file. Raises `UsageError`."""
        try:
            value = json.loads(path.read_text("utf-8"))
            if value["golden_baseline"] != VERSION:
                raise UsageError(f"{path} is a baseline of another version")
            shares = {
                (row["name"], Column(row["model"], row["style"], row["strategy"])): Share(
                    int(row["hits"]), int(row["samples"])
                )
                for row in value["checks"]
            }
            return cls(shares, bool(value["drawn"]))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"{path} is no baseline", hint="golden run --live --save-baseline FILE writes one"
            ) from None


def _sum(shares: Iterable[Share]) -> Share:
    every = list(shares)
    return Share(sum(share.hits for share in every), sum(share.total for share in every))
