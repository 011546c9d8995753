"""What an argument says of itself: what kind of thing it is, what its values look like. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from mlx_tools.decoding.amounts import dimensions, singular
from mlx_tools.decoding.sayings import is_moment
from mlx_tools.decoding.shape import Schema
from mlx_tools.lexical import stems

OTHER: Final = "other"
"""The class of an argument whose words tell none."""

_CLASSES: Final = {
    "place": "city location country state place region address destination origin town area venue"
    " park province continent street county airport station neighborhood site where",
    "person": "author artist player actor director person patient composer president leader"
    " recipient customer employee student sculptor painter inventor scientist writer user singer",
    "organisation": "company team manufacturer brand store bank organization league restaurant"
    " hotel university school shop airline publisher club institution vendor",
    "time": "date time day month year season period duration week hour deadline timeframe birthday"
    " era century start_date end_date",
    "kind": "type genre category kind style class cuisine mode variety color size",
    "code": "id code number key ticker symbol phone zip identifier email url path uuid sku isbn"
    " version model plate address",
    "prose": "message body text content query note description comment prompt question caption",
    "formula": "function expression equation polynomial formula",
    "unit": "unit currency measure scale",
    "title": "title name movie book song album game show subject species work event",
}
_CLASS_OF: Final = {word: name for name, words in _CLASSES.items() for word in words.split(" ")}
_TYPES: Final = {
    "integer": "numeral",
    "int": "numeral",
    "long": "numeral",
    "float": "numeral",
    "double": "numeral",
    "number": "numeral",
    "bigint": "numeral",
    "boolean": "truth",
    "array": "bracketed",
    "arraylist": "bracketed",
    "list": "bracketed",
    "dict": "bracketed",
    "hashmap": "bracketed",
    "object": "bracketed",
}
_NAMES: Final = "|".join(_TYPES)
_TYPED: Final = re.compile(
    rf"\A(?:\w+ )?({_NAMES})(?: of [\w<>]+)?\."
    rf"|\b({_NAMES})\b(?: type\b| in string| as (?:a )?string)",
    re.IGNORECASE,
)
"""Arguments that are texts to the schema, and whose description tells of another type."""

_WORD: Final = re.compile(r"[^\W_]+")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_QUOTED: Final = re.compile(r"(?<!\w)['\"‘“`]([^'\"’”`\n]{1,60})['\"’”`](?!\w)")
_EXAMPLE: Final = re.compile(
    r"(?:\be\.?\s?g\.?,?:?|\bfor example,?:?|\bsuch as|\bexamples?:?|\blike|\bi\.e\.,?)\s+"
    r"([^.;()\n]{1,60}(?:\.\d[^.;()\n]{0,20})?)",
    re.IGNORECASE,
)
_LISTING: Final = re.compile(
    r"(?:one of|options?(?: are| include)?|values?(?: are| include)?|either|can be|supports?"
    r"|choices?(?: are)?|supported \w+(?: are| include)?)\s*:?\s+([^.\n]{1,200})",
    re.IGNORECASE,
)
_DEFAULT: Final = re.compile(
    r"\bdefaults?\b(?:\s+(?:value|is|to|set|of|as|:|=))*\s*['\"]?([\w.%-]+)?", re.IGNORECASE
)
_PLACES: Final = frozenset(("path", "filepath", "file", "filename"))
_FILE: Final = re.compile(r"[\w-]/[\w-]|[\w-]\.[A-Za-z]\w{0,4}\Z", re.ASCII)
_WHOLE: Final = re.compile(r"\bwhole (?:text|sentences?)\b", re.IGNORECASE)
_MOST_SAMPLES: Final = 8
_OPTIONAL: Final = re.compile(r"\boptional", re.IGNORECASE)


@dataclass(frozen=True)
class About:
    """What is known of an argument: its name, its description, its schema's ``format`` and
    ``type``, whether it is required, and the texts among its schema's ``examples``."""

    name: str = ""
    description: str = ""
    form: str = ""
    kind: str = ""
    required: bool = True
    default: Any = field(default=None, compare=False)
    samples: tuple[str, ...] = ()

    @cached_property
    def named(self) -> frozenset[str]:
        """The stems of its name, single letters too."""
        return frozenset(stems(self.name)) | {word for word in self.raw if len(word) == 1}

    @cached_property
    def described(self) -> frozenset[str]:
        """The stems of its description, less those of its name."""
        return frozenset(stems(self.description)) - self.named

    @cached_property
    def raw(self) -> frozenset[str]:
        """All words of its name, in the singular, without its case."""
        return frozenset(_words(self.name))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """What kind of thing it is, by the words of its name, else by its description's first."""
        own = dict.fromkeys(_CLASS_OF[word] for word in _words(self.name) if word in _CLASS_OF)
        if self.kind == "string" and (told := _TYPED.search(self.description)):
            return (_TYPES[(told[1] or told[2]).lower()],)
        if set(own) <= {"title", "code"} and own:
            said = [_CLASS_OF[word] for word in _words(self.description) if word in _CLASS_OF]
            own |= dict.fromkeys(said[:2])
        if not own:
            said = [_CLASS_OF[word] for word in _words(self.description) if word in _CLASS_OF]
            own = dict.fromkeys(said[:1])
        return tuple(own) or (OTHER,)

    @cached_property
    def units(self) -> frozenset[str]:
        """The words of its name and description, in the singular: among them its unit."""
        return self.raw | frozenset(_words(self.description))

    @cached_property
    def measures(self) -> frozenset[str]:
        """What it measures, by its name, else by its description: see `amounts.dimensions`."""
        return dimensions(self.raw) or dimensions(self.units)

    @cached_property
    def examples(self) -> tuple[str, ...]:
        """What its description gives as examples of values."""
        found = list(_QUOTED.findall(self.description))
        parts = _EXAMPLE.findall(self.description)
        found += [part.strip(" ,'\"`") for part in parts if not _QUOTED.search(part)]
        return tuple(dict.fromkeys(text.strip() for text in found if text.strip()))

    @cached_property
    def listed(self) -> tuple[str, ...]:
        """The values that its description lists without saying so in the schema."""
        if "truth" in self.classes:
            return ("true", "false")
        found = list(_QUOTED.findall(self.description))
        for part in _LISTING.findall(self.description):
            if not _QUOTED.search(part):
                items = re.split(r",\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+|/", part)
                found += [item.strip(" '\"`") for item in items if len(item.split()) <= 3]
        if len(found) < 2:
            return ()
        return tuple(dict.fromkeys(text.strip() for text in found if text.strip()))

    @cached_property
    def is_path(self) -> bool:
        """Whether it says where a file is, by its name."""
        return bool(self.raw & _PLACES)

    def told_of(self, value: str) -> frozenset[str]:
        """The stems of what its description says of one of its values: *list: the files there*."""
        found = re.search(rf"(?<!\w){re.escape(value)}['\"]?: ([^.;\n]+)", self.description)
        return frozenset(stems(found[1])) if found is not None else frozenset()

    @cached_property
    def shapes(self) -> frozenset[str]:
        """What its examples are spelled like: see `spelling`."""
        return frozenset(spelling(example) for example in self.examples)

    @cached_property
    def is_moment(self) -> bool:
        """Whether its values are times to come, by its schema's examples."""
        return any(is_moment(sample) for sample in self.samples)

    @cached_property
    def is_whole_text(self) -> bool:
        """Whether it asks for a whole text, or whole sentences: for more than a name or a word."""
        return bool(_WHOLE.search(self.description))

    @cached_property
    def says_default(self) -> bool:
        """Whether it says what holds where it is left out."""
        return self.default is not None or bool(_DEFAULT.search(self.description))

    @cached_property
    def default_word(self) -> str:
        """The first word of its default, in small letters; empty where none is told."""
        if self.default is not None:
            return str(self.default).lower()
        found = _DEFAULT.search(self.description)
        return (found[1] or "").rstrip(".").lower() if found is not None else ""

    @cached_property
    def says_optional(self) -> bool:
        """Whether its description calls it optional."""
        return bool(_OPTIONAL.search(self.description))


def about(name: str, schema: Schema, *, required: bool = True) -> About:
    """What a member's name and its schema, references followed, say of it."""
    if not isinstance(schema, Mapping):
        return About(name, required=required)
    said, form, kind = schema.get("description"), schema.get("format"), schema.get("type")
    return About(
        name,
        said if isinstance(said, str) else "",
        form if isinstance(form, str) else "",
        kind if isinstance(kind, str) else "",
        required,
        schema.get("default"),
        _samples(schema.get("examples")),
    )


def _samples(examples: Any) -> tuple[str, ...]:
    known = examples if isinstance(examples, list) else []
    return tuple(text for text in known[:_MOST_SAMPLES] if isinstance(text, str))


def is_file(text: str) -> bool:
    """Whether a text is spelled like a file: *notes/plan*, *plan.txt*."""
    return " " not in text and "//" not in text and bool(_FILE.search(text))


def spelling(text: str) -> str:
    """What a text looks like: *C# Major* is ``A# Aa``, *2 weeks* is ``9 a``."""
    text = re.sub(r"[0-9]+", "9", text.strip())
    text = re.sub(r"[^\W\d_][^\W\d_]*", _spelled, text)
    return re.sub(r"\b(Aa|a)(?: \1)+\b", r"\1", text)


def _spelled(match: re.Match[str]) -> str:
    word = match[0]
    if word.isupper():
        return "A"
    return "Aa" if word[0].isupper() else "a"


def _words(text: str) -> list[str]:
    return [singular(word) for word in _WORD.findall(_HUMP.sub(" ", text).replace("_", " "))]
