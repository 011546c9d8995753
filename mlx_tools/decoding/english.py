"""English words that are told apart by what they say of a request. Pure."""

from __future__ import annotations

from typing import Final

_NO_VALUES: Final = (
    "under while least including include includes happening using over within without than"
    " per less same such well good via upon during through across whose having being going"
    " given following around near between about after before until since because however"
    " respectively also currently three four five six seven eight nine ten eleven twelve"
    " looking interested wondering curious like want need help please i'm i'd i've i'll what's"
    " that's it's let's there's here's who's where's how's we're we'd we'll you're they're ones"
    " later second third lastly finally accordingly considering regarding another"
)
NO_VALUES: Final = frozenset(_NO_VALUES.split(" "))
"""Words that begin and end no value of their own."""

_VERBS: Final = (
    "calculate compute search show list play book order buy sell send create generate"
    " update retrieve fetch determine convert estimate analyze analyse check add delete"
    " remove set turn schedule translate compare identify predict locate display look help"
    " plan write read open start stop run call solve draw plot count sort return given"
    " suppose assume during after before since today tomorrow yesterday next last also then"
    " while using based first second hello hi hey thanks ok okay sure yes no recommend"
    " suggest explain describe review rate mix assess evaluate obtain query save store"
    " cancel confirm notify remind track change adjust"
)
VERBS: Final = frozenset(_VERBS.split(" "))
"""Words that requests begin with, and with a capital for that alone."""

_SHORT: Final = "a i in of on to at by is it an as if or we my be do no so up us km"
SHORT: Final = frozenset(_SHORT.split(" "))
"""Short words that are no part of a formula."""

_PREPOSITIONS: Final = (
    "from to in at on for by with of about between and named called into as than over under"
    " per near within during after before since until against titled is are be"
)
PREPOSITIONS: Final = frozenset(_PREPOSITIONS.split(" "))
"""Words before a value that tell what it is for."""

_FIRST: Final = "start from initial min lower begin first source origin base low"
FIRST: Final = frozenset(_FIRST.split(" "))
"""Words in the name of what comes first of two."""

_LAST: Final = "end to final max upper last second destination target high"
LAST: Final = frozenset(_LAST.split(" "))
"""Words in the name of what comes last of two."""
