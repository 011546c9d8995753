"""Verdicts: the best style and strategy for a model, as measured.

`mlx_tools.app.probe` measures them. Each is a JSON file in the state folder; the embedded model's
verdict comes with mlx-tools. A file is replaced in one step, so a reader sees the old or the new
one. A file that cannot be read is ignored, and the caller gets a message about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import Struct, field, to_builtins

from mlx_tools.errors import ConfigError, MlxToolsError, UsageError
from mlx_tools.messages import Style
from mlx_tools.paths import private_dir, read_data, read_regular, state_dir, write_whole
from mlx_tools.process import clean

T = TypeVar("T")

StyleChoice = Literal["auto", "jsonl", "markdown-json", "xml", "native"]
StrategyChoice = Literal["auto", "free", "guided", "grammar"]

STRATEGIES: Final[tuple[StrategyChoice, ...]] = get_args(StrategyChoice)
STYLES: Final[tuple[StyleChoice, ...]] = get_args(StyleChoice)
DEFAULT_STYLE: Final[Style] = "jsonl"
"""The style of a model that was not measured."""

MAX_BYTES: Final = 1 << 20
"""The limit of a file in bytes: a verdict has a few kilobytes."""

WEAK_BELOW: Final = 0.5
"""A model is weak if its share of right answers in the probe is smaller than this.

Half: below it the model is wrong more often than right.
"""

_NATIVE: Final = "native-"
"""The beginning of the file names of native verdicts."""

SHIPPED: Final = "config/verdicts/{}.json"
"""The path of the verdicts that come with mlx-tools."""


class NoVerdict(ValueError):
    """The text is not a verdict of this format; the message says why."""


class StyleVerdict(Struct, frozen=True):
    """The result for one style."""

    strategy: StrategyChoice
    """The strategy to begin with; ``auto`` if no strategy is known to be better."""
    fallback: Literal["auto", "free", "guided"] = field(name="otherwise")
    """The strategy for backends without grammars, if ``strategy`` is ``grammar``."""
    reason: str = ""
    """The reason, in words."""


class Verdict(Struct, frozen=True, kw_only=True):
    """The measurement of one model, and the best style by it."""

    format: Literal[1] = 1
    model: str
    """The model's identity (`model_identity`)."""
    style: Style
    """The style to use."""
    styles: Mapping[Style, StyleVerdict]
    """The result for each style."""
    reason: str = ""
    """The reason for the style, in words."""
    measured_at: str = ""
    """The time by the wall clock (ISO 8601, UTC)."""
    questions: int = 0
    """The number of questions."""
    prompts: str = ""
    """A digest of the prompt texts (`mlx_tools.store.digest_words`)."""
    probe: str = ""
    """A digest of the questions."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings during the measurement."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    """Versions of the programs during the measurement."""
    rows: tuple[Mapping[str, Any], ...] = field(name="measured", default=())
    """The figures, one object for each style and strategy."""
    command: str = ""
    """The command to measure again, if the verdict comes with mlx-tools."""

    @property
    def strategy(self) -> StrategyChoice:
        """The strategy to begin with, for the style to use."""
        return self.styles[self.style].strategy

    @property
    def weak(self) -> bool:
        """True if less than half of the model's answers were right, in every style.

        The upper end of the interval counts, so that a few unlucky answers do not make a model
        weak.
        """
        ends = [row.get("correct_interval") for row in self.rows]
        uppers = [end[1] for end in ends if isinstance(end, list | tuple) and len(end) == 2]
        return bool(uppers) and max(uppers) < WEAK_BELOW

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a JSON object, which `parse_verdict` reads."""
        value = {"format": self.format, "strategy": self.strategy, **to_builtins(self)}
        if not self.command:
            del value["command"]
        return value


class NativeVerdict(Struct, frozen=True, kw_only=True):
    """The result of a trial of a server's own function calling with a model.

    `mlx_tools.backends.capabilities` makes the trial.
    """

    format: Literal[1] = 1
    server: str
    """The server's address, or a name for servers that mlx-tools starts."""
    model: str
    """The model's identity (`model_identity`)."""
    passed: bool
    """True if the server's function calling works with this model."""
    obeys: bool = False
    """True if the server obeys a tool choice."""
    completes: bool = False
    """True if the server also completes text."""
    reason: str = ""
    """The reason why the trial passed or failed."""
    measured_at: str = ""


def parse_verdict(text: bytes, model: str) -> Verdict:
    """Read the verdict on ``model`` in the text of a file.

    Raises:
        NoVerdict: the text is not a verdict on this model.
    """
    verdict = _parse(text, Verdict)
    if verdict.style not in verdict.styles:
        raise NoVerdict(f"styles: {verdict.style} is missing")
    # A file may have been copied or renamed: the field counts, not the file's name.
    if verdict.model != model:
        raise NoVerdict("it is on another model")
    return verdict


def _parse(text: bytes, kind: type[T]) -> T:
    if len(text) > MAX_BYTES:
        raise NoVerdict("it is too long")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise NoVerdict(str(error)) from None


# --- the choice of style and strategy ---------------------------------------------------------


class VerdictChoice(Struct, frozen=True, kw_only=True):
    """The verdict on a model, or None, and its source."""

    model: str | None = None
    """The model's identity, None if unknown."""
    verdict: Verdict | None = None
    source: Literal["", "stored", "shipped"] = ""
    place: str = ""
    """The path of the file."""
    problem: str = ""
    """One line about a file that was ignored, or empty."""


class PromptChoice(Struct, frozen=True):
    """The style and strategy of a run."""

    style: Style
    strategy: StrategyChoice
    reasons: Mapping[str, Any] = field(default_factory=dict)
    """The verdict and its reasons, for the session's header; empty if no verdict was used."""
    weak: bool = False
    """True if the verdict says that the model is weak."""


def decide(
    style: StyleChoice,
    strategy: StrategyChoice,
    verdict_choice: VerdictChoice,
    *,
    grammars: bool = False,
) -> PromptChoice:
    """Return the style and strategy of a run.

    A named style or strategy wins. ``auto`` is replaced by the verdict, otherwise by the defaults.

    Args:
        style: the wanted style.
        strategy: the wanted strategy.
        verdict_choice: the verdict on the model.
        grammars: True if the backend takes grammars.
    """
    verdict = verdict_choice.verdict
    if "auto" not in (style, strategy):
        return PromptChoice(cast(Style, style), strategy, weak=verdict is not None and verdict.weak)
    reasons: dict[str, Any] = (
        {"passed_over": verdict_choice.problem} if verdict_choice.problem else {}
    )
    if verdict is None:
        return PromptChoice(DEFAULT_STYLE if style == "auto" else style, strategy, reasons=reasons)
    chosen_style = verdict.style if style == "auto" else style
    reasons |= {
        "model": verdict.model,
        "source": verdict_choice.source,
        "measured_at": verdict.measured_at,
    }
    if style == "auto":
        reasons["style"] = verdict.reason
    if strategy == "auto":
        style_verdict = verdict.styles.get(chosen_style)
        if style_verdict is None:
            style_verdict = StyleVerdict("auto", "auto", f"{chosen_style} was not measured")
        # The verdict may have been measured with another backend, which takes grammars.
        is_usable = style_verdict.strategy != "grammar" or grammars
        strategy, reasons["strategy"] = (
            style_verdict.strategy if is_usable else style_verdict.fallback,
            style_verdict.reason,
        )
    return PromptChoice(chosen_style, strategy, reasons=reasons, weak=verdict.weak)


# --- files ------------------------------------------------------------------------------------


class VerdictStore(Struct, frozen=True):
    """A folder of verdicts, by default ``verdicts`` in the state folder."""

    folder: Path = field(default_factory=lambda: state_dir() / "verdicts")

    def path(self, model: str) -> Path:
        """Return the path of the file for a model's identity. Each model has its own."""
        # Two names may be the same after unsafe characters are replaced, but not their digests.
        digest = hashlib.sha256(model.encode(errors="surrogatepass")).hexdigest()[:12]
        readable = re.sub(r"[^A-Za-z0-9._]+", "-", model).strip("-.")[:60]
        return self.folder / f"{readable or 'model'}-{digest}.json"

    def get(self, model: str) -> VerdictChoice:
        """Return the stored verdict on ``model``.

        ``problem`` names a file that cannot be used.
        """
        path = self.path(model)
        try:
            verdict = parse_verdict(read_regular(path, MAX_BYTES), model)
        except FileNotFoundError:
            return VerdictChoice(model=model)
        except (OSError, NoVerdict) as error:
            reason = clean(getattr(error, "strerror", None) or str(error), 200)
            advice = "mlx-tools doctor --probe measures again"
            line = f"the verdict {path} is ignored: {reason}; {advice}"
            return VerdictChoice(model=model, place=str(path), problem=line)
        return VerdictChoice(model=model, verdict=verdict, source="stored", place=str(path))

    def save(self, verdict: Verdict) -> Path:
        """Store a verdict; it replaces the model's earlier one. Return the file's path.

        Raises:
            UsageError: the file cannot be written; the earlier verdict then stays.
        """
        return self._write(self.path(verdict.model), verdict.to_json())

    def native(self, server: str, model: str) -> NativeVerdict | None:
        """Return the native verdict on a server with a model, None if there is none."""
        verdict = self._read_native(self._native_path(server, model))
        is_same = verdict is not None and (verdict.server, verdict.model) == (server, model)
        return verdict if is_same else None

    def natives(self, model: str) -> tuple[NativeVerdict, ...]:
        """Return the native verdicts on a model, sorted by the server's name."""
        try:
            paths = sorted(self.folder.glob(f"{_NATIVE}*.json"))
        except OSError:
            return ()
        verdicts = (
            verdict
            for path in paths
            if (verdict := self._read_native(path)) and verdict.model == model
        )
        return tuple(sorted(verdicts, key=lambda verdict: verdict.server))

    def save_native(self, verdict: NativeVerdict) -> Path:
        """Store a native verdict; it replaces the earlier one. Raise as `save` does."""
        path = self._native_path(verdict.server, verdict.model)
        return self._write(path, to_builtins(verdict))

    def _native_path(self, server: str, model: str) -> Path:
        path = self.path(f"{model} {server}")
        return path.with_name(f"{_NATIVE}{path.name}")

    def _read_native(self, path: Path) -> NativeVerdict | None:
        try:
            return _parse(read_regular(path, MAX_BYTES), NativeVerdict)
        except (OSError, NoVerdict):
            return None  # as if it was never measured

    def _write(self, path: Path, value: Mapping[str, Any]) -> Path:
        private_dir(self.folder)
        try:
            write_whole(path, json.dumps(value, indent=1).encode() + b"\n")
        except OSError as error:
            raise UsageError(
                f"the verdict cannot be stored in {self.folder}: {error.strerror}",
                hint="free some space, or name another folder by MLX_TOOLS_STATE_DIR",
            ) from None
        return path


def find_verdict(model: str | None, store: VerdictStore | None = None) -> VerdictChoice:
    """Return the verdict on the model with this identity; never raise.

    A verdict that was measured on this machine comes before one that comes with mlx-tools.
    """
    if model is None:
        return VerdictChoice()
    try:
        stored = (store or VerdictStore()).get(model)
    except MlxToolsError as error:
        stored = VerdictChoice(model=model, problem=str(error))
    from mlx_tools.backends.models.embedded import EMBEDDED  # late: it imports much

    if stored.verdict is None and model in EMBEDDED:
        place = SHIPPED.format(model)
        with contextlib.suppress(ConfigError, NoVerdict):
            shipped = parse_verdict(read_data(place).encode(), model)
            return VerdictChoice(
                model=model, verdict=shipped, source="shipped", place=place, problem=stored.problem
            )
    return stored
