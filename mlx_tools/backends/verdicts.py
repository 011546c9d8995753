"""What was measured of a model: which style and which strategy it follows best; what that decides,
and where it is kept.

It is measured by `mlx_tools.evaluate.probe`, and kept in a JSON file for each model in the state
folder; the embedded one's comes along. A file is replaced as a whole, so whoever reads while
another writes reads the old or the new one. One that cannot be read is passed over, and the caller
is told in a line.
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
"""The style where nothing was measured."""

MAX_BYTES: Final = 1 << 20
"""No verdict is this long: a file that is longer is not read."""

WEAK_BELOW: Final = 0.5
"""A model that is surely right on less than this share of the probe's questions is weak: it is
wrong more often than right."""

_NATIVE: Final = "native-"
"""How files begin that are on a server's own calling."""

SHIPPED: Final = "config/verdicts/{}.json"


class NoVerdict(ValueError):
    """A text is no verdict of this format; says why."""


class StyleVerdict(Struct, frozen=True):
    """What follows for one style.

    ``strategy`` is the one to begin with: ``auto`` where nothing is known to be better.
    ``fallback`` takes its place where that is ``grammar`` and the backend takes none. ``reason``
    says why, in words.
    """

    strategy: StrategyChoice
    fallback: Literal["auto", "free", "guided"] = field(name="otherwise")
    reason: str = ""


class Verdict(Struct, frozen=True, kw_only=True):
    """What was measured of one model, and what follows.

    ``model`` is what identifies it (`model_identity`), ``style`` the one to use, ``styles`` what
    follows for each. ``measured_at`` is the wall clock (ISO 8601, UTC). ``prompts`` and ``probe``
    are digests: of the words that the model reads in every run, and of the questions. ``settings``
    and ``versions`` say under what it was measured; ``rows`` holds the figures, an object for
    each style and strategy. ``command`` measures it again, where it comes with mlx-tools.
    """

    format: Literal[1] = 1
    model: str
    style: Style
    styles: Mapping[Style, StyleVerdict]
    reason: str = ""
    measured_at: str = ""
    questions: int = 0
    prompts: str = ""
    probe: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = field(name="measured", default=())
    command: str = ""

    @property
    def strategy(self) -> StrategyChoice:
        """The strategy to begin with, in the style to use."""
        return self.styles[self.style].strategy

    @property
    def weak(self) -> bool:
        """Whether the model was right on less than half of the questions, whatever the style.

        The upper end of the interval decides: a few unlucky answers do not make a model weak.
        """
        ends = [row.get("correct_interval") for row in self.rows]
        uppers = [end[1] for end in ends if isinstance(end, list | tuple) and len(end) == 2]
        return bool(uppers) and max(uppers) < WEAK_BELOW

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON types: what `parse_verdict` reads."""
        value = {"format": self.format, "strategy": self.strategy, **to_builtins(self)}
        if not self.command:
            del value["command"]
        return value


class NativeVerdict(Struct, frozen=True, kw_only=True):
    """Whether a server's own function calling works with a model (`mlx_tools.backends.capabilities`
    asks): ``passed``, and why or why not.

    ``obeys``: a tool choice is obeyed. ``completes``: the server completes text too. ``server`` is
    the address, or what stands for servers of our own.
    """

    format: Literal[1] = 1
    server: str
    model: str
    passed: bool
    obeys: bool = False
    completes: bool = False
    reason: str = ""
    measured_at: str = ""


def parse_verdict(text: bytes, model: str) -> Verdict:
    """The verdict on ``model`` in a file. Raises `NoVerdict` for anything else."""
    verdict = _parsed(text, Verdict)
    if verdict.style not in verdict.styles:
        raise NoVerdict(f"styles: {verdict.style} is missing")
    if verdict.model != model:
        raise NoVerdict("it is on another model")
    return verdict


def _parsed(text: bytes, kind: type[T]) -> T:
    if len(text) > MAX_BYTES:
        raise NoVerdict("it is too long")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise NoVerdict(str(error)) from None


# --- what it decides --------------------------------------------------------------------------


class VerdictChoice(Struct, frozen=True, kw_only=True):
    """What is known of a model: its verdict, or None.

    ``model`` is what identifies the model, None where nothing does. ``source`` is ``stored`` or
    ``shipped``. ``place`` is the file; ``problem`` is one line about a file that was passed over.
    """

    model: str | None = None
    verdict: Verdict | None = None
    source: Literal["", "stored", "shipped"] = ""
    place: str = ""
    problem: str = ""


class PromptChoice(Struct, frozen=True):
    """The style and strategy of a run. ``reasons`` is what the header keeps of it: what a verdict
    decided, and which; empty where none did. ``weak``: the verdict says that the model is."""

    style: Style
    strategy: StrategyChoice
    reasons: Mapping[str, Any] = field(default_factory=dict)
    weak: bool = False


def decide(
    style: StyleChoice,
    strategy: StrategyChoice,
    verdict_choice: VerdictChoice,
    *,
    grammars: bool = False,
) -> PromptChoice:
    """The style and strategy of a run, where ``auto`` leaves them to what is known of the model.

    What is named wins. ``grammars``: the backend can hold a model to one.
    """
    verdict = verdict_choice.verdict
    if "auto" not in (style, strategy):
        return PromptChoice(cast(Style, style), strategy, weak=verdict is not None and verdict.weak)
    why: dict[str, Any] = {"passed_over": verdict_choice.problem} if verdict_choice.problem else {}
    if verdict is None:
        return PromptChoice(DEFAULT_STYLE if style == "auto" else style, strategy, reasons=why)
    chosen = verdict.style if style == "auto" else style
    why |= {
        "model": verdict.model,
        "source": verdict_choice.source,
        "measured_at": verdict.measured_at,
    }
    if style == "auto":
        why["style"] = verdict.reason
    if strategy == "auto":
        known = verdict.styles.get(chosen)
        if known is None:
            known = StyleVerdict("auto", "auto", f"{chosen} was not measured")
        usable = known.strategy != "grammar" or grammars
        strategy, why["strategy"] = known.strategy if usable else known.fallback, known.reason
    return PromptChoice(chosen, strategy, reasons=why, weak=verdict.weak)


# --- where it is kept -------------------------------------------------------------------------


class VerdictStore(Struct, frozen=True):
    """A folder of verdicts, by default ``verdicts`` in the state folder."""

    folder: Path = field(default_factory=lambda: state_dir() / "verdicts")

    def path(self, model: str) -> Path:
        """The file of the model with this identity: readable, and never that of another model."""
        digest = hashlib.sha256(model.encode(errors="surrogatepass")).hexdigest()[:12]
        readable = re.sub(r"[^A-Za-z0-9._]+", "-", model).strip("-.")[:60]
        return self.folder / f"{readable or 'model'}-{digest}.json"

    def get(self, model: str) -> VerdictChoice:
        """The verdict on ``model``, if one is kept; ``problem`` tells of a file of no use."""
        path = self.path(model)
        try:
            verdict = parse_verdict(read_regular(path, MAX_BYTES), model)
        except FileNotFoundError:
            return VerdictChoice(model=model)
        except (OSError, NoVerdict) as error:
            why = clean(getattr(error, "strerror", None) or str(error), 200)
            line = (
                f"the verdict {path} is passed over: {why}; mlx-tools doctor --probe measures again"
            )
            return VerdictChoice(model=model, place=str(path), problem=line)
        return VerdictChoice(model=model, verdict=verdict, source="stored", place=str(path))

    def save(self, verdict: Verdict) -> Path:
        """Keeps a verdict in place of the model's earlier one, and returns its file.

        Raises `UsageError` where it cannot be written; the earlier one then still stands.
        """
        return self._write(self.path(verdict.model), verdict.to_json())

    def native(self, server: str, model: str) -> NativeVerdict | None:
        """The verdict on this server's own calling with this model, None where none is kept."""
        found = self._native_in(self._native_path(server, model))
        own = found is not None and (found.server, found.model) == (server, model)
        return found if own else None

    def natives(self, model: str) -> tuple[NativeVerdict, ...]:
        """Those on a model, whatever its server, by the server's name."""
        try:
            paths = sorted(self.folder.glob(f"{_NATIVE}*.json"))
        except OSError:
            return ()
        found = (one for path in paths if (one := self._native_in(path)) and one.model == model)
        return tuple(sorted(found, key=lambda one: one.server))

    def save_native(self, verdict: NativeVerdict) -> Path:
        """Keeps a verdict in place of the earlier one. Raises as `save` does."""
        path = self._native_path(verdict.server, verdict.model)
        return self._write(path, to_builtins(verdict))

    def _native_path(self, server: str, model: str) -> Path:
        path = self.path(f"{model} {server}")
        return path.with_name(f"{_NATIVE}{path.name}")

    def _native_in(self, path: Path) -> NativeVerdict | None:
        try:
            return _parsed(read_regular(path, MAX_BYTES), NativeVerdict)
        except (OSError, NoVerdict):
            return None  # it is measured again

    def _write(self, path: Path, value: Mapping[str, Any]) -> Path:
        private_dir(self.folder)
        try:
            write_whole(path, json.dumps(value, indent=1).encode() + b"\n")
        except OSError as error:
            raise UsageError(
                f"the verdict cannot be kept in {self.folder}: {error.strerror}",
                hint="free some space, or name another folder by MLX_TOOLS_STATE_DIR",
            ) from None
        return path


def find_verdict(model: str | None, store: VerdictStore | None = None) -> VerdictChoice:
    """What is known of the model with this identity: what was measured here, else what comes along,
    which is a verdict on the embedded model. Never raises."""
    if model is None:
        return VerdictChoice()
    try:
        found = (store or VerdictStore()).get(model)
    except MlxToolsError as error:
        found = VerdictChoice(model=model, problem=str(error))
    from mlx_tools.backends.models.embedded import EMBEDDED  # which knows how to download

    if found.verdict is None and model in EMBEDDED:
        place = SHIPPED.format(model)
        with contextlib.suppress(ConfigError, NoVerdict):
            shipped = parse_verdict(read_data(place).encode(), model)
            return VerdictChoice(
                model=model, verdict=shipped, source="shipped", place=place, problem=found.problem
            )
    return found
