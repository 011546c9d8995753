"""What checking golden transcripts came to: values that are printed, stored, reported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.app.statistics import Share
from mlx_tools.errors import UsageError
from mlx_tools.golden.difference import ROOMS, Difference

VERSION: Final = 1
"""The format of a file of results."""

Mode = Literal["replay", "live"]


@dataclass(frozen=True, slots=True)
class Column:
    """What was checked with: a column of the matrix. A replay has none of the three."""

    model: str = ""
    style: str = ""
    strategy: str = ""

    @property
    def label(self) -> str:
        """The cell in words."""
        return " · ".join(filter(None, (self.model, self.style, self.strategy))) or "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of a transcript. ``records`` are those of the run, as JSON, the header first.

    ``error`` is why it could not be run to its end, or the transcript not be read. ``seconds`` is
    how long a live run took.
    """

    differences: tuple[Difference, ...] = ()
    records: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    seconds: float | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing was otherwise than it should be."""
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

    @property
    def share(self) -> Share:
        """How many of the runs passed."""
        return Share(sum(sample.passed for sample in self.samples), len(self.samples))

    @property
    def passed(self) -> bool:
        """Whether all runs passed."""
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


def write_results(checks: Iterable[GoldenCheck], path: Path) -> None:
    """Writes checks, with their runs, to a file: a JSON object a line. Raises `UsageError`."""
    try:
        with path.open("w", encoding="utf-8") as out:
            out.write(json.dumps({"golden_results": VERSION}) + "\n")
            for check in checks:
                out.write(encode_check(check) + "\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def read_results(path: Path) -> list[GoldenCheck]:
    """The checks of a file that `write_results` wrote. Raises `UsageError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        head = json.loads(lines[0])
        if not isinstance(head, dict) or head.get("golden_results") != VERSION:
            raise UsageError(f"{path} holds no results that this version reads")
        return [decode_check(line) for line in lines[1:]]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise UsageError(
            f"{path} holds no results of golden transcripts, or is damaged",
            hint="mlx-tools golden run --out FILE writes such a file",
        ) from None


def encode_check(check: GoldenCheck) -> str:
    """A check with its runs, as a line of ASCII."""
    return json.dumps(asdict(check), ensure_ascii=True)


def decode_check(line: str) -> GoldenCheck:
    """The check that `encode_check` wrote. Raises ValueError, KeyError or TypeError on anything
    else."""
    value = json.loads(line)
    samples = tuple(_sample(sample) for sample in value["samples"])
    features = tuple(value["features"])
    own = {**value, "cell": Column(**value["cell"]), "features": features, "samples": samples}
    return GoldenCheck(**own)


def _sample(value: Mapping[str, Any]) -> Sample:
    differences: Sequence[Any] = value["differences"]
    found = tuple(Difference(**difference) for difference in differences)
    return Sample(**{**value, "differences": found, "records": tuple(value["records"])})
