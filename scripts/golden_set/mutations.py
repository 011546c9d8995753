"""The mutations: what is changed, which transcripts must notice it, and in which room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mlx_tools.golden import Room
from mlx_tools.policy import is_glob
from mlx_tools.protocol import DIALECTS
from mlx_tools.transcript.records import (
    AnswerRecord,
    DecisionRecord,
    MendRecord,
    ObservationRecord,
)

from .mutating import (
    Facts,
    Holds,
    Mutation,
    contains_text,
    has,
    has_all,
    has_in_prompt,
    has_tool,
    lacks,
)


def mutations() -> list[Mutation]:
    """All of them, by theme."""
    return [*_words(), *_tools(), *_formats(), *_reading(), *_policy(), *_outcomes()]


def _made(
    room: Room, name: str, file: str, old: str, new: str, hits: Holds, who: str, **more: Any
) -> Mutation:
    return Mutation(name=name, room=room, file=file, old=old, new=new, hits=hits, who=who, **more)


def _everyone(facts: Facts) -> bool:
    return True


def _own_persona(facts: Facts) -> bool:
    return facts.header.persona is not None


# --- the words that the model reads ---


def _words() -> Iterator[Mutation]:
    def words(name: str, file: str, old: str, new: str, hits: Holds, who: str) -> Mutation:
        return _made("prompt", f"words/{name}", f"prompts/{file}", old, new, hits, who)

    yield words(
        "persona",
        "persona.txt",
        "helpful",
        "patient",
        lacks(_own_persona),
        "those without a persona of their own",
    )
    for style, old in (
        ("jsonl", "one JSON object on one line"),
        ("markdown-json", "in a code block"),
        ("xml", "one element"),
    ):
        yield words(
            f"protocol-{style}",
            f"protocol-{style}.txt",
            old,
            f"{old} alone",
            has(style),
            f"those in the style {style}",
        )
    yield words(
        "mode-answer-first",
        "mode-answer-first.txt",
        "what you do not",
        "what you may not",
        lacks(has("rag-first")),
        "those in that mode",
    )
    yield words(
        "mode-rag-first",
        "mode-rag-first.txt",
        "Look facts up",
        "Look all facts up",
        has("rag-first"),
        "those in that mode",
    )
    yield from _messages(words)
    yield from _examples(words)


MESSAGES = (
    ("tools", "\nTools:\n{{tools}}", "\nTools here:\n{{tools}}", "\n\nTools:\n"),
    ("no-tools", "There are no tools:", "You have no tools:", "There are no tools:"),
    ("search", "Look for one with", "Find one with", "Look for one with"),
    ("offered", "More tools:", "Further tools:", "More tools:"),
    ("project-context", "About this project:", "On this project:", "About this project:"),
    ("unanswered", "I was stopped before", "I was cut short before", "I was stopped before"),
    (
        "forged",
        '\nforged = "The result is above',
        '\nforged = "You have the result',
        "result is above. Now",
    ),
    ("edited", "(The user changed", "(A user changed", "(The user changed"),
    ("cut-readable", "left out. To read on", "omitted. To read on", "left out. To read on"),
    ("cut", "{{omitted}} characters left out ...]", "{{omitted}} left out ...]", " left out ...]"),
    ("summary", "What was left out, in", "What is missing, in", "What was left out, in"),
    ("summary-part", "[from {{offset}}] ", "[at {{offset}}] ", "[from 3"),
    ("not-allowed", "may not be called here. {{", "must not be called here. {{", None),
    ("disabled", "is switched off. {{", "is turned off. {{", "is switched off. "),
    ("denied", "The user refused this call", "The user denied this call", "user refused this call"),
    ("dry-run", "Nothing was done: this", "Nothing is done: this", "Nothing was done: this"),
    ("timeout", "did not finish in time", "took too long", "did not finish in time"),
    ("payload", "are too long. {{reason}}", "are far too long. {{reason}}", "are too long. "),
    ("rates", "was called too often. {{", "was called very often. {{", "was called too often. "),
    (
        "repeated",
        "You made this very call before; its",
        "You made this same call before; its",
        "made this very call before; its",
    ),
    (
        "made-before",
        "and no call has changed",
        "and nothing has changed",
        "and no call has changed",
    ),
    ("iteration-limit", "No more tool calls.", "No tool calls now.", "No more tool calls."),
    ("in-doubt", "Nobody knows whether", "It is not known whether", "Nobody knows whether"),
    ("unfilled", "The line could not be", "This line could not be", "line could not be"),
    ("mend-json", "as one valid JSON object", "as one JSON object", "as one valid JSON object"),
    ("mend-cut", "the line again, shorter", "the line again, short", "the line again, shorter"),
    ("mend-name", "Use the exact name", "Use the very name", "Use the exact name"),
    ("mend-arguments", "with arguments that fit", "with the right ones", "with arguments that fit"),
    ("mend-unfilled", "with all its parts, and", "with every part, and", "all its parts, and"),
)
"""A short text of messages.toml, another one, and what of it stands in a run that has read it."""


def _messages(words: Any) -> Iterator[Mutation]:
    for name, old, new, read in MESSAGES:
        hits = contains_text(old.removesuffix("{{") if read is None else read)
        who = f"those that hold `{(read or old.removesuffix('{{')).strip()}`"
        yield words(f"messages-{name}", "messages.toml", old, new, hits, who)
    yield words(
        "messages-hidden",
        "messages.toml",
        'hidden = "{{count}} more tools are',
        'hidden = "{{count}} tools are',
        has_all(
            contains_text("more tools are not listed here."),
            lacks(contains_text("Look for one with")),
        ),
        "those whose catalog hides tools, and that cannot search",
    )


def _examples(words: Any) -> Iterator[Mutation]:
    for name, old, new in (
        ("direct", "The capital of Italy is Rome.", "It is Rome."),
        ("generic", 'question = "Use {{name}} with {{arguments}}."', None),
        ("sample", 'string = "example"', 'string = "sample"'),
        ("calculator", "48 plus 36 is 84.", "48 plus 36 makes 84."),
        ("clock", "It is 09:26 on Friday, 14 March 2025.", "It is 09:26 on Friday."),
    ):
        shown = {"generic": "Use look with ", "sample": '"example"'}.get(name, old)
        if name == "generic":
            new = 'question = "Try {{name}} with {{arguments}}."'
            hits: Holds = lambda facts: any(  # noqa: E731
                turn["role"] == "user" and turn["content"].startswith("Use ") and " with " in text
                for turn in facts.header.examples
                for text in (turn["content"],)
            )
        else:
            hits = has_in_prompt(shown)
        who = f"those whose examples hold `{shown.strip()}`"
        who = "those with a made-up example" if name == "generic" else who
        yield words(f"examples-{name}", "examples.toml", old, new or "", hits, who)
    yield _made(
        "prompt",
        "words/examples-whole",
        "mlx_tools/prompt/opening.py",
        "MAX_WHOLE: Final = 2",
        "MAX_WHOLE: Final = 1",
        lambda facts: _two_tools(facts) and facts.header.weak_model,
        "those of a weak model that tell of two tools or more",
    )
    yield _made(
        "prompt",
        "words/catalog-optional",
        "mlx_tools/prompt/catalog.py",
        'mark = "" if name in needed else "?"',
        'mark = "" if name in needed else "*"',
        lambda facts: "?: " in facts.text,
        "those whose catalog has an optional argument",
    )
    yield _made(
        "prompt",
        "words/catalog-persona-last",
        "mlx_tools/prompt/opening.py",
        '"persona": (frame.persona or "").strip(),',
        '"persona": (frame.persona or "").strip().upper(),',
        _own_persona,
        "those with a persona of their own",
    )
    yield _made(
        "prompt",
        "words/observation-order",
        "mlx_tools/protocol/delimiters.py",
        'f\'{{"type":"tool_observation","name":{compact(observation.name)}\'',
        'f\'{{"name":{compact(observation.name)},"type":"tool_observation"\'',
        lambda facts: (
            '"tool_observation"' in facts.text
            or any(turn["role"] == "observation" for turn in facts.header.examples)
        ),
        "those that show an observation",
    )


def _neutralised_outputs(facts: Facts) -> bool:
    outputs = [r.content or "" for r in facts.golden.records if isinstance(r, ObservationRecord)]
    known = (
        m for one in DIALECTS if not one.line for m in (one.open, one.close, *one.call, *one.inner)
    )
    marks = [
        mark for mark in dict.fromkeys(known) if mark.startswith("[")
    ]  # those of tags stand in text
    marked = any(mark in output for output in outputs for mark in marks)
    return "control-tokens" in facts.features or marked


def _two_tools(facts: Facts) -> bool:
    told = facts.header.shortlist or [tool["name"] for tool in facts.header.tools]
    return len(set(told) - {"tool_search", "read_artifact"}) > 1


# --- tools ---


def _tools() -> Iterator[Mutation]:
    for tool, old, new in (
        ("calculator", "Calculates an arithmetic", "Works out an arithmetic"),
        ("clock", "Tells the current date", "Gives the current date"),
        ("file_access", "Reads a text file or lists a folder", "Reads a file or lists a folder"),
        ("read_artifact", "Reads on in a tool's output", "Reads more of a tool's output"),
        ("tool_search", "Finds more tools by what they do", "Finds tools by what they do"),
        ("create_file", "Makes a new text file", "Makes a text file"),
    ):
        yield _made(
            "tools",
            f"tools/{tool}-words",
            f"prompts/tools/{tool}.json",
            old,
            new,
            has_tool(tool) if tool != "file_access" else _reads_files,
            f"those that have the tool {tool}",
        )
    yield _made(
        "tools",
        "tools/create-file-effects",
        "mlx_tools/plugins/files/access.py",
        'EFFECTS: Final[Effects] = frozenset(("write",))',
        'EFFECTS: Final[Effects] = frozenset(("read", "write"))',
        has_tool("create_file"),
        "those that have the tool create_file",
    )
    yield _made(
        "tools",
        "tools/clock-private",
        "mlx_tools/plugins/basics/clock.py",
        'load_words("clock").spec(frozenset(("read",)), cache=False)',
        'load_words("clock").spec(frozenset(("read",)), cache=False, private=True)',
        has_tool("clock"),
        "those that have the tool clock",
    )
    yield _made(
        "tools",
        "tools/observation-cut",
        "mlx_tools/controller/outputs.py",
        "head, tail = room - room // 3, room // 3",
        "head, tail = room - room // 4, room // 4",
        has("artifact"),
        "those in which an output was cut",
    )


def _reads_files(facts: Facts) -> bool:
    writable = any(root.endswith(":rw") for root in facts.header.roots)
    return "file_access" in facts.tools and not writable


# --- chat formats, and what is broken in texts of others ---


def _formats() -> Iterator[Mutation]:
    file = "mlx_tools/prompt/chat_format.py"
    for name, old, new in (
        ("chatml", '_turns("<|im_start|>ROLE\\n"', '_turns("<|im_start|>the ROLE\\n"'),
        ("llama3", 'ROLE<|end_header_id|>\\n\\n"', 'ROLE<|end_header_id|>\\n"'),
        (
            "gemma",
            '"assistant": ("<start_of_turn>model\\n"',
            '"assistant": ("<start_of_turn>bot\\n"',
        ),
        ("mistral", '"user": ("[INST] "', '"user": ("[INST]"'),
        ("phi", '"end_tokens": ("<|end|>", "<|endoftext|>")', '"end_tokens": ("<|end|>",)'),
        ("plain", '"answer_header": "Assistant: "', '"answer_header": "Assistant:  "'),
    ):
        yield _made(
            "prompt",
            f"formats/{name}",
            file,
            old,
            new,
            has_all(has(f"format-{name}"), lacks(has("template"))),
            f"those in the named format {name}",
        )
    yield _made(
        "prompt",
        "formats/template-trims",
        "mlx_tools/prompt/chat_template.py",
        'if role == "system" and not has_system:',
        'if role == "system":',
        has("format-own"),
        "the one whose template trims the system text",
    )
    yield _made(
        "prompt",
        "formats/template-thought",
        "mlx_tools/prompt/chat_template.py",
        "opens = reasoning is not None and ask.rfind(reasoning[0]) > ask.rfind(reasoning[1])",
        "opens = False",
        has("format-thinks"),
        "those whose template opens a thought",
    )
    yield _made(
        "prompt",
        "formats/tool-markers",
        "mlx_tools/prompt/neutralise.py",
        '"[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"',
        '"[AVAILABLE_TOOLS]",',
        _everyone,
        "all: each format has the known control tokens",
    )
    yield _made(
        "prompt",
        "formats/header-blank",
        "mlx_tools/prompt/render.py",
        "elif header[len(ask) :].isspace() and reply[:1].isspace():",
        "elif False:",
        has("format-mistral", "format-plain"),
        "those whose model writes the blank after its header itself",
    )
    yield _made(
        "prompt",
        "neutral/mark",
        "mlx_tools/prompt/neutralise.py",
        'MARKS: Final = ("·", ',
        "MARKS: Final = (",
        lambda facts: "·" in facts.text,
        "those in whose prompt a control token was broken",
    )
    yield _made(
        "prompt",
        "neutral/observations",
        "mlx_tools/prompt/render.py",
        "return before + self.neutraliser.in_json(body) + after",
        "return before + body + after",
        _neutralised_outputs,
        "those with a control token or a mark of calls in an output",
    )
    yield _made(
        "prompt",
        "neutral/questions",
        "mlx_tools/prompt/render.py",
        "return self.neutraliser.plain(text)",
        "return text",
        lambda facts: any(
            token in question.content
            for question in facts.questions
            for token in ("<|im_end|>", "[[/ASK]]")
        ),
        "those with a control token in a question",
    )


# --- reading ---


def _reading() -> Iterator[Mutation]:
    for repair, file, old, new in REPAIRS:
        yield _made(
            "reading",
            f"repairs/{repair}",
            f"mlx_tools/{file}.py",
            old,
            new,
            has(repair),
            f"those with the repair {repair}",
        )
    for name, file, old, new, hits, who in RULES:
        yield _made("reading", f"reading/{name}", f"mlx_tools/{file}.py", old, new, hits, who)
    for name, file, old, new, hits, who in MENDS:
        yield _made("reading", f"mends/{name}", f"mlx_tools/{file}.py", old, new, hits, who)


def _chosen(facts: Facts) -> bool:
    """Return True if a token was chosen by its likelihood."""
    return any(
        isinstance(r, MendRecord) and r.alternatives and r.replacement for r in facts.golden.records
    )


MENDS: tuple[tuple[str, str, str, str, Holds, str], ...] = (
    (
        "value",
        "decoding/value",
        'return self._kind("value")',
        'return self._kind("key")',
        has("mended-value"),
        "those with a value that was mended",
    ),
    (
        "escape",
        "decoding/constrained_turn",
        "if open_object.answer_end >= 0 and len(self.mends) < MAX_QUOTES:",
        "if False:",
        lambda facts: facts.name == "mends/quote-in-an-answer",
        "the one with a quote in its answer",
    ),
    (
        "likeliest",
        "decoding/constrained_turn",
        "return self._apply_mend(fitting + self._find_required_after(fitting), alternatives)",
        'return self._apply_mend("", alternatives)',
        _chosen,
        "those with a token that was chosen by its likelihood",
    ),
    (
        "name-once",
        "decoding/constrained_turn",
        "if self._has_mended_name and not (is_data",
        "if False and not (is_data",
        lambda facts: facts.name == "mends/no-such-tool",
        "the one that names no tool twice",
    ),
    (
        "anew",
        "decoding/constrained_turn",
        "if restarted:",
        "if False:",
        lambda facts: facts.name == "mends/begun-anew",
        "the one that begins its line anew",
    ),
    (
        "blanks",
        "decoding/value",
        "MAX_BLANKS: Final = 64",
        "MAX_BLANKS: Final = 128",
        lambda facts: facts.name == "mends/blanks",
        "the one with too many blanks",
    ),
)
"""A rule of mending, its module, the change, and who must notice it."""

REPAIRS = (
    (
        "single_quotes",
        "parsing/scan",
        """self.fixes.append(Fix(pos, pos + 1, '"', "single_quotes"))""",
        "pass",
    ),
    ("python_literal", "parsing/scan", '{"True": "true", ', "{"),
    (
        "unquoted_key",
        "parsing/scan",
        "if not _IDENTIFIER.fullmatch(word):",
        "if True:",
    ),
    (
        "raw_newline",
        "parsing/scan",
        'elif self._newlines if char in "\\r\\n" else self._controls:',
        'elif char not in "\\r\\n" and self._controls:',
    ),
    (
        "raw_control",
        "parsing/scan",
        'elif self._newlines if char in "\\r\\n" else self._controls:',
        'elif self._newlines and char in "\\r\\n":',
    ),
    (
        "invalid_escape",
        "parsing/scan",
        '"\\\\\\\\", "invalid_escape"), fixes)',
        '"", "invalid_escape"), fixes)',
    ),
    (
        "trailing_comma",
        "parsing/scan",
        'self._comma + 1, "", "trailing_comma"))',
        'self._comma, "", ""))',
    ),
    (
        "missing_comma",
        "parsing/scan",
        'Fix(pos, pos, ",", "missing_comma")',
        'Fix(pos, pos, "", "")',
    ),
    ("comment", "parsing/scan", 'end, " ", "comment"))', 'end, ";", "comment"))'),
    (
        "inline",
        "protocol/objects",
        '(*repairs, "inline") if self.inline',
        "repairs if self.inline",
    ),
    ("missing_closers", "protocol/objects", "if not self.scanner.closable:", "if True:"),
    (
        "envelope_alias",
        "protocol/objects",
        'frozenset(("name", "arguments", "parameters", "type", *_IDS))',
        'frozenset(("name", "parameters", "type", *_IDS))',
    ),
    ("arguments_string", "protocol/objects", 'named = ("arguments_string",)', "named = ()"),
    (
        "missing_arguments",
        "protocol/objects",
        'arguments, repairs = {}, (*repairs, "missing_arguments")',
        "pass",
    ),
    (
        "id_string",
        "protocol/objects",
        'str(call_id), (*repairs, "id_string")',
        "str(call_id), repairs",
    ),
    ("tool_name", "protocol/validate", "if len(meant) == 1 else", "if len(meant) == 9 else"),
    (
        "coerced_integer",
        "schema/validator",
        'yield int(value), "coerced_integer"\n        elif',
        "pass\n        elif",
    ),
    ("coerced_number", "schema/validator", 'yield number, "coerced_number"', "pass"),
    (
        "coerced_boolean",
        "schema/validator",
        'if value.lower() in ("true", "false"):',
        'if value in ("true", "false"):',
    ),
    ("wrapped_list", "schema/validator", 'yield [value], "wrapped_list"', "return"),
    (
        "dialect",
        "protocol/turn",
        'repairs = call.repairs if native else (*call.repairs, "dialect")',
        "repairs = call.repairs",
    ),
    (
        *("noise", "protocol/call_sequence"),
        *('(*repairs, "noise") if self._has_noise else repairs', "repairs"),
    ),
    (
        "dropped_null",
        "schema/validator",
        'names.append("dropped_null")',
        'names.append("wrapped_list")',
    ),
)
"""A repair or coercion, the module that makes it, and what makes it otherwise."""

RULES: tuple[tuple[str, str, str, str, Holds, str], ...] = (
    (
        "cut-off",
        "protocol/partial",
        'self._withdraw("truncated_output", "the output was cut off", begin)',
        'self._withdraw("invalid_json", "the output was cut off", begin)',
        lambda facts: (
            contains_text("the output was cut off")(facts)
            or facts.name == "limits/repetition-in-a-call"
        ),
        "those in which a line was cut off",
    ),
    (
        "echo",
        "protocol/validate",
        "echoed = any(not keys.isdisjoint(calls_seen) for keys in forms)",
        "echoed = False",
        has("echoed", "echoed_call"),
        "those with a planted call",
    ),
    (
        "echo-of-a-writer",
        "protocol/validate",
        "if echoed and mutates:",
        "if False:",
        has("echoed_call"),
        "those with a planted call that can change things",
    ),
    (
        "forged",
        "protocol/partial",
        '"a tool_observation is the host\'s to write"',
        '"a tool_observation is for the host to write"',
        contains_text("a tool_observation is the host's to write"),
        "those that forge an observation and nothing else",
    ),
    (
        "forged-kept",
        "protocol/partial",
        "self.forged.append((begin, self.source.pos))",
        "pass",
        contains_text("a tool_observation is the host's to write"),
        "those that forge an observation and nothing else",
    ),
    (
        "bare-text",
        "protocol/partial",
        "prose = self.text_between(0, self.stop).strip()",
        "prose = self.text_between(0, self.stop).strip().upper()",
        lambda facts: any(
            isinstance(r, AnswerRecord) and r.bare_text and not r.call_like
            for r in facts.golden.records
        ),
        "those whose answer is prose",
    ),
    (
        "truncated",
        "protocol/partial",
        'truncated=self.cut_answer or (bare and reason == "length" and not self.is_turn_ended),',
        "truncated=False,",
        has("truncated"),
        "those whose answer was cut off",
    ),
    (
        "call-like",
        "protocol/unmarked",
        "reason[:500]), is_call_like=True",
        "reason[:500]), is_call_like=False",
        lambda facts: facts.name == "reading/call-like-shown",
        "the one with prose like a call that comes again",
    ),
    (
        "calls-per-turn",
        "controller/session",
        "1 if is_one or most == 1 else most + 1",
        "1 if is_one else most",
        has("calls-per-turn"),
        "those with more calls in a turn than may be",
    ),
    (
        "thoughts",
        "protocol/reading",
        '("<think>", "</think>"),  # DeepSeek-R1',
        '("<thonk>", "</thonk>"),  # DeepSeek-R1',
        lambda facts: facts.name in ("reading/thought-in-text", "limits/repetition-in-a-thought"),
        "those that think, and have no such marker of their own",
    ),
    (
        "unknown-tool",
        "protocol/validate",
        "; did you mean {close}?",
        "; do you mean {close}?",
        lambda facts: any(
            isinstance(r, ObservationRecord) and r.error and "did you mean" in r.error.message
            for r in facts.golden.records
        ),
        "those with a call by a name that is nearly right",
    ),
    (
        "faults",
        "schema/validator",
        'lines[f"{path}: {expected}"] = None',
        'lines[f"{path} - {expected}"] = None',
        has("invalid_arguments"),
        "those whose arguments do not fit",
    ),
    (
        "duplicate-keys",
        "parsing/strict",
        "if len(value) != len(pairs):",
        "if False:",
        lambda facts: facts.name == "reading/duplicate-keys",
        "the one with a key that stands twice",
    ),
    (
        "sources",
        "protocol/objects",
        "FinalAnswer(content, tuple(sources or ()), repairs)",
        "FinalAnswer(content, (), repairs)",
        has("sources"),
        "those whose answer names sources",
    ),
)
"""A rule, the module that it stands in, the change, and who must notice it."""


# --- policy ---


def _policy() -> Iterator[Mutation]:
    rules = "mlx_tools/policy/decision.py"
    presets = "mlx_tools/policy/rules.py"
    for name, file, old, new, hits, who in (
        (
            "preset-basic",
            presets,
            '("calculator", "clock", "file_access", "search_files", "read_artifact"),',
            '("clock", "file_access", "search_files", "read_artifact"),',
            lambda f: f.policy["preset"] == "readonly_basic" and _called(f, "calculator"),
            "those that call the calculator by this preset",
        ),
        (
            "preset-files",
            presets,
            '("file_access", "search_files", "format_xml", "read_artifact"), _READ',
            '("calculator", "file_access", "search_files", "read_artifact"), _READ',
            lambda f: f.policy["preset"] == "readonly_files" and _called(f, "calculator"),
            "those that call the calculator in spite of this preset",
        ),
        ("deny", rules, "if denied is not None:", "if False:", has("deny-deny"), _by("deny")),
        (
            "ask",
            rules,
            "if pattern := first_match(part.ask, spec):",
            "if pattern := None:",
            has("ask-ask"),
            _by("ask"),
        ),
        (
            "needs-approval",
            rules,
            "if spec.needs_approval:",
            "if False:",
            has("ask-needs_approval"),
            _by("needs_approval"),
        ),
        (
            "ask-effects",
            rules,
            "if asking := effects.intersection(part.ask_effects):",
            "if asking := effects.intersection(()):",
            has("ask-ask_effects"),
            _by("ask_effects"),
        ),
        (
            "approval-template",
            rules,
            "return rule == _NEEDS_APPROVAL or",
            "return False and",
            has("allow-template"),
            _by("template"),
        ),
        (
            "dry-run",
            rules,
            "part.dry_run for part",
            "False for part",
            has("dry_run"),
            _by("dry_run"),
        ),
        (
            "local-only",
            rules,
            'if policy.local_only and "network" in effects:',
            "if False:",
            has("local-only"),
            _by("local_only"),
        ),
        (
            "secret",
            rules,
            "if facts.secrets and network:",
            "if False:",
            has("secret"),
            _by("secret"),
        ),
        (
            "placeholder",
            rules,
            "if facts.placeholder and mutates:",
            "if False:",
            has("placeholder"),
            _by("placeholder"),
        ),
        (
            "network-after-read",
            "mlx_tools/transcript/call_history.py",
            "spec is None or spec.private or record.nested > 0",
            "False",
            has("network-after-read"),
            _by("network_after_read"),
        ),
        (
            "rate",
            "mlx_tools/policy/rules.py",
            "if len(counted) < self.calls:",
            "if len(counted) <= self.calls:",
            # Not by the feature: a call over the limit of a turn has the same code.
            lambda facts: any(
                isinstance(r, DecisionRecord) and r.code == "rate_limited"
                for r in facts.golden.records
            ),
            "those in which a rate is used up",
        ),
        (
            "consent",
            rules,
            "and effects <= facts.consented:",
            "and effects < facts.consented:",
            has("for-session"),
            "those with a consent for the session",
        ),
        (
            "unclean",
            rules,
            'if runs == "with_approval":',
            "if False:",
            lambda facts: any(
                isinstance(r, DecisionRecord) and r.rule == "unclean" for r in facts.golden.records
            ),
            _by("unclean"),
        ),
        (
            "echoed",
            rules,
            'return _ask("echoed", echo)',
            'return _ask("copied", echo)',
            has("ask-echoed"),
            _by("echoed"),
        ),
        (
            "glob",
            "mlx_tools/policy/rules.py",
            "return any(fnmatchcase(alias, pattern) for alias in {name, *list_names(name)})",
            "return pattern == '*'",
            _has_glob,
            "those that need a glob",
        ),
        (
            "narrowing",
            "mlx_tools/policy/rules.py",
            "parts = (self, *narrowing)",
            "parts = (self,)",
            lambda f: f.name in ("policy/narrowed", "approvals/narrowed-since", "sessions/gone-on"),
            "those in which a narrower policy denies a call",
        ),
        (
            "words",
            rules,
            "is not among the allowed tools",
            "is none of the allowed tools",
            has("deny-default"),
            "those that call what nothing allows",
        ),
        (
            "payload",
            "mlx_tools/controller/turn.py",
            "elif len(json_bytes(record.arguments)) > session.limits.max_argument_bytes:",
            "elif False:",
            has("payload_too_large"),
            "those with arguments that are too long",
        ),
        (
            "repeated",
            "mlx_tools/transcript/call_history.py",
            "times = times + 1 if at == (self.changes if mutates else self.mutations) else 1",
            "times = 1",
            has("repeated"),
            "those that make a call again",
        ),
    ):
        follows = FOLLOWS.get(name, ())
        yield _made("policy", f"policy/{name}", file, old, new, hits, who, follows=follows)


FOLLOWS: Final[Mapping[str, tuple[Room, ...]]] = {
    "ask-effects": ("outcome",),
    "network-after-read": ("outcome",),
    "unclean": ("outcome",),
    "repeated": ("tools",),
}
"""The further rooms in which a change of policy shows: a run that does not stop to ask ends
otherwise, and a call that is not seen to come again has the plain output."""


def _by(rule: str) -> str:
    return f"those that the rule {rule} decides about"


def _has_glob(facts: Facts) -> bool:
    policy = facts.policy
    patterns = [*policy["allow"], *policy["deny"], *policy["ask"], *policy.get("rate_limits", {})]
    return any(is_glob(pattern) and pattern != "*" for pattern in patterns)


def _called(facts: Facts, tool: str) -> bool:
    return any(call.name == tool for call in facts.calls)


# --- limits, and what a run comes to ---


def _outcomes() -> Iterator[Mutation]:
    session, outcome = "mlx_tools/controller/session.py", "mlx_tools/transcript/outcome.py"
    for name, file, old, new, hits, who in (
        (
            "format-errors",
            session,
            "if self.format_errors >= limits.max_format_errors:",
            "if self.format_errors > limits.max_format_errors:",
            has("format_errors"),
            "those that too many faults of format end",
        ),
        (
            "iterations",
            session,
            "used = self.state is State.COMPLETING and self.iterations >= self.max_iterations",
            "used = self.state is State.COMPLETING and self.iterations > self.max_iterations",
            has("iterations"),
            "those that use all their turns",
        ),
        (
            "iterations-end",
            session,
            "if self.iterations > self.max_iterations:",
            "if self.iterations > self.max_iterations + 1:",
            lambda f: f.name == "limits/does-not-finish",
            "the one that does not finish though told to",
        ),
        (
            "mends",
            outcome,
            '"mends": count_mends(run),',
            '"mends": 0,',
            lambda f: any("mends" in outcome for outcome in f.golden.golden.outcomes),
            "those with a mend",
        ),
        (
            "denied",
            outcome,
            '"echoed_call", "rate_limited")',
            '"echoed_call")',
            has("rate_limited"),
            "those with a call that a rate denied",
        ),
        (
            "dry-run",
            outcome,
            'return "dry_run"',
            'return "ok"',
            has("dry_run"),
            "those with a dry run",
        ),
        (
            "pending",
            outcome,
            'return "pending" if paused else "denied"',
            'return "denied"',
            lambda f: any("pending" in outcome for outcome in f.golden.golden.outcomes),
            "those in which a call waits",
        ),
        (
            "stopped-by",
            outcome,
            "repeated = [*calls][-1] if stopped and calls else None",
            "repeated = None",
            lambda f: any(o.get("reason") == "repeated_call" for o in f.golden.golden.outcomes),
            "the one that a repeated call ends",
        ),
        (
            "repairs",
            outcome,
            '"repairs": dict(Counter(',
            '"repairs": dict.fromkeys(Counter(',
            lambda f: any(o.get("repairs") for o in f.golden.golden.outcomes),
            "those with a repair",
        ),
    ):
        yield _made("outcome", f"outcome/{name}", file, old, new, hits, who)
