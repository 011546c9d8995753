"""Results of checking golden transcripts: values that are printed, stored, reported, compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.app.statistics import Share, fisher
from mlx_tools.errors import UsageError
from mlx_tools.golden.difference import ROOMS, Difference
from mlx_tools.golden.file import Golden

VERSION: Final = 1
"""The format of a file of results, and of a baseline."""

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
    value["samples"] = tuple(
        Sample(
            **sample
            | {
                "differences": tuple(Difference(**one) for one in sample["differences"]),
                "records": tuple(sample["records"]),
            }
        )
        for sample in value["samples"]
    )
    cell, features = Column(**value["cell"]), tuple(value["features"])
    return GoldenCheck(**value | {"cell": cell, "features": features})


def sum_of(shares: Iterable[Share]) -> Share:
    """All of these shares together."""
    every = list(shares)
    return Share(sum(share.hits for share in every), sum(share.total for share in every))


# --- a baseline of live checks --------------------------------------------------------------------

SURE: Final = 0.05
"""A fall that chance alone brings about less often than this is a regression."""


@dataclass(frozen=True, slots=True)
class Regression:
    """A fall in how often one transcript in one cell passes, or, with an empty ``name``, a whole
    cell. ``p`` is how often chance alone would bring so large a fall about."""

    name: str
    cell: Column
    before: Share
    after: Share
    p: float

    def to_json(self) -> dict[str, Any]:
        """The regression as ``--json`` prints it."""
        shares = {
            key: {"hits": share.hits, "samples": share.total}
            for key, share in (("before", self.before), ("after", self.after))
        }
        return {"name": self.name, **asdict(self.cell), **shares, "p": self.p}


@dataclass(frozen=True, slots=True)
class Baseline:
    """By transcript and cell, how many samples passed. ``drawn``: they were drawn at random, so
    that one which fails may be chance; else the same model must write the same again."""

    shares: Mapping[tuple[str, Column], Share]
    drawn: bool = False

    @classmethod
    def of(cls, checks: Iterable[GoldenCheck], *, drawn: bool) -> Baseline:
        """The baseline that these checks are."""
        return cls({(check.name, check.cell): check.share for check in checks}, drawn)

    def regressions(self, checks: Sequence[GoldenCheck]) -> list[Regression]:
        """The parts of ``checks`` that are worse than here, whole cells first. A transcript that
        passed less often counts where that is no chance; where nothing is drawn at random, it
        always does. What the baseline does not know is passed over."""
        known = [check for check in checks if (check.name, check.cell) in self.shares]
        found = []
        for cell in dict.fromkeys(check.cell for check in known):
            own = [check for check in known if check.cell == cell]
            before = sum_of(self.shares[check.name, cell] for check in own)
            after = sum_of(check.share for check in own)
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
