"""Checks of golden transcripts: a file replayed, what came of it, and the words for that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mlx_tools.app import Share
from mlx_tools.errors import MlxToolsError
from mlx_tools.golden.difference import ROOMS, Difference, difference_lines
from mlx_tools.golden.file import Golden, read_golden
from mlx_tools.golden.replaying import replay
from mlx_tools.golden.steps import spelled
from mlx_tools.transcript import Record

Mode = Literal["replay", "live"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the matrix: the means of a check. A replay has none of the three."""

    model: str = ""
    style: str = ""
    strategy: str = ""

    @property
    def label(self) -> str:
        """The cell in words."""
        return " · ".join(filter(None, (self.model, self.style, self.strategy))) or "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of a transcript. ``records`` are those of the run, the header first.

    ``error`` is why it could not be run to its end, or the transcript not be read. ``seconds`` is
    how long a live run took.
    """

    differences: tuple[Difference, ...] = ()
    records: tuple[Record, ...] = ()
    error: str = ""
    seconds: float | None = None

    @property
    def passed(self) -> bool:
        """True where nothing was otherwise than it should be."""
        return not self.differences and not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCheck:
    """All runs of one transcript in one cell. ``path`` is the file's, as it was named."""

    name: str
    path: str
    mode: Mode = "replay"
    cell: Column = Column()  # frozen, so all may share it
    source: str = ""
    about: str = ""
    features: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()

    @classmethod
    def of(cls, golden: Golden, path: Path | None = None, **own: Any) -> GoldenCheck:
        """The check of a golden transcript."""
        about, path = golden.golden, path or golden.path
        return cls(
            name=golden.name,
            path="" if path is None else str(path),
            source=about.source,
            about=about.about,
            features=about.features,
            **own,
        )

    @property
    def share(self) -> Share:
        """The share of the runs that passed."""
        return Share(sum(sample.passed for sample in self.samples), len(self.samples))

    @property
    def passed(self) -> bool:
        """True where all runs passed."""
        return all(sample.passed for sample in self.samples)

    @property
    def rooms(self) -> tuple[str, ...]:
        """The rooms that differences come from, each once."""
        found = {d.room for sample in self.samples for d in sample.differences}
        return tuple(room for room in ROOMS if room in found)

    def to_json(self) -> dict[str, Any]:
        """The check as ``--json`` prints it: all but the runs' own records."""
        return {
            "name": self.name,
            "path": self.path,
            "mode": self.mode,
            **asdict(self.cell),
            "source": self.source,
            "features": list(self.features),
            "passed": self.passed,
            "samples": len(self.samples),
            "hits": self.share.hits,
            "rooms": list(self.rooms),
            "differences": [
                {"sample": number, **difference.to_json()}
                for number, sample in enumerate(self.samples, start=1)
                for difference in sample.differences
            ],
            "errors": [sample.error for sample in self.samples if sample.error],
        }


def sum_of(shares: Iterable[Share]) -> Share:
    """All of these shares together."""
    every = list(shares)
    return Share(sum(share.hits for share in every), sum(share.total for share in every))


def replay_file(path: Path, *, with_records: bool = False) -> GoldenCheck:
    """Replays one file. What cannot be read or replayed is a check that failed, with the error.

    ``with_records`` keeps the records, for a report.
    """
    records: tuple[Record, ...] = ()
    golden = None
    try:
        golden = read_golden(path)
        records = golden.all if with_records else ()
        sample = Sample(differences=replay(golden).differences, records=records)
    except MlxToolsError as error:
        sample = Sample(error=str(error).removeprefix(f"{path}: "), records=records)
    if golden is None:
        return GoldenCheck(name=path.stem, path=str(path), samples=(sample,))
    return GoldenCheck.of(golden, path, samples=(sample,))


def failure_text(check: GoldenCheck) -> str:
    """The findings of a replay that did not pass, for a person at a terminal: nothing in it steers
    that, or cannot be sent as UTF-8."""
    (sample,) = check.samples
    return spelled("\n".join(filter(None, [sample.error, *difference_lines(sample.differences)])))
