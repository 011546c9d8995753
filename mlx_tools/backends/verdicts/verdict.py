"""A verdict as a value: what was measured, what follows from it, and how it decides.

Pure. `mlx_tools.evaluate.probe` measures and judges; here is only what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, cast, get_args

from mlx_tools.messages import Style

StyleChoice = Literal["auto", "jsonl", "markdown-json", "xml", "native"]
StrategyChoice = Literal["auto", "free", "guided", "grammar"]

STRATEGIES: Final[tuple[StrategyChoice, ...]] = get_args(StrategyChoice)
STYLES: Final[tuple[StyleChoice, ...]] = get_args(StyleChoice)
DEFAULT_STYLE: Final[Style] = "jsonl"
"""The style where nothing was measured."""

FORMAT: Final = 1
_NAMED: Final[tuple[Style, ...]] = get_args(Style)

T = TypeVar("T")


class NoVerdict(ValueError):
    """A value is no verdict of this format; says why."""


@dataclass(frozen=True, slots=True)
class StyleVerdict:
    """What follows for one style.

    ``strategy`` is the one to begin with: ``auto`` where nothing is known to be better.
    ``otherwise`` takes its place where that is ``grammar`` and the backend takes none. ``reason``
    says why, in words.
    """

    strategy: StrategyChoice
    otherwise: StrategyChoice
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was measured of one model, and what follows.

    ``model`` is what identifies it (`mlx_tools.backends.models.identity`), ``style`` the one to
    use, ``styles`` what follows for each. ``measured_at`` is the wall clock (ISO 8601, UTC).
    ``prompts`` and ``probe`` are digests: of the words that the model reads in every run, and of
    the questions. ``settings`` and ``versions`` say under what it was measured; ``measured`` holds
    the figures, an object for each style and strategy. ``command`` measures it again, where it
    comes with mlx-tools.
    """

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
    measured: tuple[Mapping[str, Any], ...] = ()
    command: str = ""

    @property
    def strategy(self) -> StrategyChoice:
        """The strategy to begin with, in the style to use."""
        return self.styles[self.style].strategy

    def strategy_for(self, style: Style, *, grammars: bool) -> tuple[StrategyChoice, str]:
        """The strategy to begin with in ``style``, and why; ``auto`` for a style that was not
        measured. ``grammars``: the backend can hold a model to one."""
        known = self.styles.get(style)
        if known is None:
            return "auto", f"{style} was not measured"
        usable = known.strategy != "grammar" or grammars
        return known.strategy if usable else known.otherwise, known.reason

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON types: what `from_json` reads."""
        head = {"command": self.command} if self.command else {}
        return head | {
            "format": FORMAT,
            "model": self.model,
            "style": self.style,
            "strategy": self.strategy,
            "reason": self.reason,
            "styles": {
                style: {"strategy": one.strategy, "otherwise": one.otherwise, "reason": one.reason}
                for style, one in self.styles.items()
            },
            "measured_at": self.measured_at,
            "questions": self.questions,
            "prompts": self.prompts,
            "probe": self.probe,
            "settings": dict(self.settings),
            "versions": dict(self.versions),
            "measured": [dict(one) for one in self.measured],
        }

    @classmethod
    def from_json(cls, value: Any) -> Verdict:
        """The verdict that `to_json` wrote. Raises `NoVerdict` for anything else."""
        if not isinstance(value, dict):
            raise NoVerdict("it is no JSON object")
        if (found := value.get("format")) != FORMAT or isinstance(found, bool):
            raise NoVerdict(f"it is of format {found!r}, not {FORMAT}")
        styles = {
            _one_of(_NAMED, style, "styles"): _style(one)
            for style, one in _typed(value, "styles", dict).items()
        }
        style = _one_of(_NAMED, value.get("style"), "style")
        if style not in styles:
            raise NoVerdict(f"styles: {style} is missing")
        measured = _typed(value, "measured", list)
        if not all(isinstance(one, dict) for one in measured):
            raise NoVerdict("measured: not all are objects")
        questions = _typed(value, "questions", int)
        if isinstance(questions, bool) or questions < 0:
            raise NoVerdict("questions: no number from 0")
        return cls(
            model=_typed(value, "model", str),
            reason=_typed(value, "reason", str),
            measured_at=_typed(value, "measured_at", str),
            prompts=_typed(value, "prompts", str),
            probe=_typed(value, "probe", str),
            settings=_typed(value, "settings", dict),
            versions=_typed(value, "versions", dict),
            style=style,
            styles=styles,
            questions=questions,
            measured=tuple(measured),
            command=_typed({"command": "", **value}, "command", str),
        )


def _style(value: Any) -> StyleVerdict:
    if not isinstance(value, dict):
        raise NoVerdict("styles: no object")
    strategy = _one_of(STRATEGIES, value.get("strategy"), "strategy")
    otherwise = _one_of(STRATEGIES, value.get("otherwise"), "otherwise")
    if otherwise == "grammar":
        raise NoVerdict("otherwise: it cannot be grammar")
    return StyleVerdict(strategy, otherwise, _typed(value, "reason", str))


def _typed(value: Mapping[str, Any], key: str, kind: type[T]) -> T:
    found = value.get(key)
    if not isinstance(found, kind):
        raise NoVerdict(f"{key}: {'missing' if key not in value else 'of another type'}")
    return found


def _one_of(allowed: tuple[T, ...], value: Any, key: str) -> T:
    for one in allowed:
        if one == value:
            return one
    raise NoVerdict(f"{key}: none of {', '.join(map(str, allowed))}")


# --- what it decides --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundVerdict:
    """What is known of a model: its verdict, or None.

    ``model`` is what identifies the model, None where nothing does. ``source`` is ``stored`` or
    ``shipped``. ``place`` is the file; ``problem`` is one line about a file that was passed over.
    """

    model: str | None = None
    verdict: Verdict | None = None
    source: Literal["", "stored", "shipped"] = ""
    place: str = ""
    problem: str = ""

    def wants_grammar(self, style: StyleChoice, strategy: StrategyChoice) -> bool:
        """Whether it depends on the backend's taking grammars what is decided."""
        if self.verdict is None or strategy != "auto":
            return False
        known = self.verdict.styles.get(self.verdict.style if style == "auto" else style)
        return known is not None and known.strategy == "grammar"


@dataclass(frozen=True, slots=True)
class Decided:
    """The style and strategy of a run. ``why`` is what the header keeps of it: what a verdict
    decided, and which; empty where none did."""

    style: Style
    strategy: StrategyChoice
    why: Mapping[str, Any] = field(default_factory=dict)


def decide(
    style: StyleChoice,
    strategy: StrategyChoice,
    found: FoundVerdict,
    *,
    grammars: bool = False,
) -> Decided:
    """The style and strategy of a run, where ``auto`` leaves them to what is known of the model.

    What is named wins. ``grammars``: the backend can hold a model to one.
    """
    verdict = found.verdict
    if "auto" not in (style, strategy):
        return Decided(cast(Style, style), strategy)
    why: dict[str, Any] = {"passed_over": found.problem} if found.problem else {}
    if verdict is None:
        return Decided(DEFAULT_STYLE if style == "auto" else style, strategy, why=why)
    chosen = verdict.style if style == "auto" else style
    why |= {"model": verdict.model, "source": found.source, "measured_at": verdict.measured_at}
    if style == "auto":
        why["style"] = verdict.reason
    if strategy == "auto":
        strategy, why["strategy"] = verdict.strategy_for(chosen, grammars=grammars)
    return Decided(chosen, strategy, why=why)
