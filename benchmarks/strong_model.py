"""A strong model by script: it knows the right calls, and writes them as a trained model would.

To ask whether a mechanism harms a model that is right, without having one. It is told what it
wants (`Wish`), the form in which it writes (`DIALECTS`, spacing, order of keys), and how sure it is
of each token. From any beginning of its turn it goes on sensibly: with its own text where that
begins so, with a form that the host began (JSON lines, fences, tags; other values and spacing too),
else with its text on a new line.

    model = StrongModel(Wish((ToolCall("clock", {}),)), dialect="hermes", probability=0.97)
    propose = Proposer(model, settings=RunSettings(chat_format=NAMED_FORMATS["chatml"]))

`StrongModel` is a backend in this process; `StrongServer` serves one over HTTP, as mlx-lm's does.
Beside it `RandomBytes` and `RandomTokens`, which know nothing, and `Mangled`, whose every twentieth
byte is another one. Same seed, same text; nothing sleeps unless a latency is given.
"""

from __future__ import annotations

import codecs
import json
import math
import random
import re
import threading
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol, Self

import anyio
from strong_text import (
    BEGUN_BY_HOST,
    BETWEEN,
    DIALECTS,
    FIXED,
    THOUGHTS,
    Ending,
    Pen,
    Spacing,
    Writer,
    turn_parts,
)

from mlx_tools.backends import Chunk, CompletionRequest, TokenScore
from mlx_tools.errors import BackendRefused, UsageError
from mlx_tools.messages import FinishReason, ToolCall, Usage


@dataclass(frozen=True, slots=True)
class Wish:
    """The wish of the model: calls first, where there are any, and an answer after them."""

    calls: tuple[ToolCall, ...] = ()
    answer: str = "Nothing of that needs a tool."


# --- tokens -------------------------------------------------------------------------------------

_SPECIAL: Final = (
    r"</?(?:tool_call|think)>|<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|\[TOOL_CALLS\]|\[ARGS\]"
)
_SPLIT: Final = re.compile(
    rf"{_SPECIAL}| ?[^\W\d_]{{1,7}}|\d|\n+|[ \t\r]+| ?[^\w\s]{{1,3}}|_|.", re.S
)
_MARKER: Final = re.compile(_SPECIAL)


def tokens_of(text: str, *, markers: bool = True) -> list[bytes]:
    """A text in tokens, much as byte pairs cut it: words with the blank before them, runs of
    punctuation, single digits; characters past U+FFFF in two. ``markers`` are one token each."""
    pieces = _SPLIT.findall(text)
    if not markers:
        pieces = [
            part
            for piece in pieces
            for part in (
                _SPLIT.findall(piece[:1]) + _SPLIT.findall(piece[1:])
                if _MARKER.fullmatch(piece)
                else [piece]
            )
        ]
    found: list[bytes] = []
    for piece in pieces:
        data = piece.encode("utf-8", "replace")
        cut = 2 if any(char > "\uffff" for char in piece) else len(data)
        found += [part for part in (data[:cut], data[cut:]) if part]
    return found


def token_id(token: bytes) -> int:
    """The number of a token."""
    return zlib.crc32(token) % 49_000 + 100


@cache
def _alphabet() -> Mapping[int, str]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + number) for number, byte in enumerate(others)
    }


def spelled(token: bytes) -> str:
    """A token in the spelling of byte-level tokenizers, in which mlx-lm's server names it."""
    text = token.decode("utf-8", "replace")
    return text if _MARKER.fullmatch(text) else "".join(_alphabet()[byte] for byte in token)


@dataclass(frozen=True, slots=True)
class Token:
    """One that was generated: its bytes, empty for the end of the turn, and the likeliest ones."""

    data: bytes
    likely: tuple[tuple[bytes, float], ...] = ()

    @property
    def ends(self) -> bool:
        return not self.data


END: Final = b""
END_ID: Final = 2


# --- models -------------------------------------------------------------------------------------


class Model(Protocol):
    """A writer of tokens from a prompt on, until one ends the turn."""

    def tokens(self, asked: Asked) -> Iterator[Token]: ...


@dataclass(slots=True)
class Asked:
    """One request, and what came of it.

    ``forbidden`` are token ids. ``text`` is what was sent, ``written`` what the model wrote,
    ``count`` its tokens. ``closed``: the client did not wait for the end. ``deadly``: the prompt is
    exactly that of a finished completion and its text, which kills a stock server. ``offered`` are
    the tokens whose likelihoods were told. ``thinking``: its last token is kept back as a thought.
    """

    prompt: str
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int | None = None
    likely: int = 0
    forbidden: frozenset[int] = frozenset()
    text: str = ""
    written: str = ""
    count: int = 0
    finish: FinishReason | None = None
    closed: bool = True
    deadly: bool = False
    cached: int = 0
    thinking: bool = False
    offered: list[str] = field(default_factory=list)

    def chance(self, seed: int) -> random.Random:
        """Chance that is the same for the same request."""
        return random.Random(f"{seed}|{self.seed}|{self.temperature}|{self.prompt}")


@dataclass(slots=True)
class Serving:
    """The work of a server around a model, in this process or over HTTP.

    ``likelihoods``: it gives them where they are asked for. ``whole``: it sends a completion in one
    piece. ``cuts``: as mlx-lm's it takes text between ``<tool_call>`` and ``</tool_call>``, one
    token each, for a call of the native kind, and between ``<think>`` and ``</think>`` for a
    thought, and keeps it back. ``strips``: it loses a blank that begins a completion. ``latency``
    is of each request, in seconds. ``asked`` holds the requests.
    """

    likelihoods: bool = True
    whole: bool = False
    cuts: bool = False
    strips: bool = False
    latency: float = 0.0
    asked: list[Asked] = field(default_factory=list)
    _finished: set[str] = field(default_factory=set)

    def begin(self, asked: Asked) -> None:
        """Take a request down."""
        asked.deadly = asked.prompt in self._finished
        asked.cached = max(
            (_common(one.prompt + one.written, asked.prompt) for one in self.asked[-10:]), default=0
        )
        self.asked.append(asked)

    def pieces(self, model: Model, asked: Asked) -> Iterator[tuple[str, Token]]:
        """The data sent of each token, and the token; ``asked`` knows the end afterwards."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        written = codecs.getincrementaldecoder("utf-8")("replace")
        inside = thinks = cut = False
        for token in model.tokens(asked):
            asked.count += 1
            asked.offered += [data.decode("utf-8", "replace") for data, _ in token.likely]
            asked.written += written.decode(token.data)
            asked.thinking = self.cuts and token.data in (b"<think>", b"</think>")
            if self.cuts and token.data in (b"<tool_call>", b"</tool_call>"):
                inside, cut = token.data == b"<tool_call>", True
                text = ""
            elif asked.thinking:
                thinks = token.data == b"<think>"
                text = ""
            else:
                asked.thinking = thinks
                text = "" if inside or thinks else decoder.decode(token.data)
            if self.strips and not asked.text:
                text = text.removeprefix(" ")
            if token.ends or asked.count >= asked.max_tokens:
                asked.finish = "length" if not token.ends else "tool_calls" if cut else "stop"
                asked.closed = False
                text += decoder.decode(b"", True)
                # the same prompt twice is safe; so is one that lacks a token of half a character
                if asked.written and not written.getstate()[0]:
                    self._finished.add(asked.prompt + asked.written)
            asked.text += text
            yield text, token
            if asked.finish is not None:
                return

    def usage(self, asked: Asked) -> Usage:
        """The cost of a completion, in tokens."""
        count = len(_SPLIT.findall(asked.prompt))
        cached = len(_SPLIT.findall(asked.prompt[: asked.cached]))
        return Usage(count, min(cached, count - 1), asked.count)


def _common(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


class Served:
    """A model in this process: a backend.

    ``sleep`` passes the time of a latency; ``serving`` says how it is served.
    """

    model = "strong"

    def __init__(
        self,
        model: Model,
        serving: Serving | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.serving = serving or Serving()
        self._model = model
        self._sleep = sleep

    @property
    def asked(self) -> list[Asked]:
        """The requests so far."""
        return self.serving.asked

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        """The completion, a chunk a token; whole where likelihoods are asked for."""
        if request.grammar is not None:
            raise UsageError("this model cannot be held to a grammar")
        if not request.prompt:
            raise BackendRefused("the prompt is empty")
        asked = Asked(
            request.prompt,
            request.max_tokens,
            request.temperature,
            request.seed,
            request.top_logprobs if self.serving.likelihoods else 0,
            frozenset(token for token, bias in request.logit_bias.items() if bias < -50),
        )
        self.serving.begin(asked)
        if self.serving.latency:
            await self._sleep(self.serving.latency)
        if request.top_logprobs or self.serving.whole:
            rows = [_scores(token) for _, token in self.serving.pieces(self._model, asked)]
            yield self._last(asked, asked.text, tuple(rows) if asked.likely else ())
            return
        for text, _ in self.serving.pieces(self._model, asked):
            if asked.finish is not None:
                yield self._last(asked, text, ())
            elif text:
                yield Chunk(text)

    def _last(self, asked: Asked, text: str, scores: Any) -> Chunk:
        edited = asked.finish == "tool_calls"
        return Chunk(text, asked.finish, self.serving.usage(asked), edited, scores)


def _scores(token: Token) -> tuple[TokenScore, ...]:
    return tuple(
        TokenScore(data.decode("utf-8", "replace"), logprob, data, token_id(data))
        if data
        else TokenScore("<|im_end|>", logprob, id=END_ID)
        for data, logprob in token.likely
    )


class StrongModel(Served):
    """A model that knows what it wants.

    ``wish`` is what it wants, or a function from the prompt to that. ``probability`` is that of
    each token that it wants; the rest is spread over words of the request, quotes and commas. At
    temperature 0 it takes the likeliest. ``lead`` stands before its calls, and ``thought`` is
    thought before all, in the form of `THOUGHTS` that ``thinks_as`` names; ``assistant`` is what
    opens its turn in the prompt, ``observed`` what shows that its calls were answered, so that it
    answers too. What it writes after a whole call in a form that the host began is in its own form
    again; where it is ``stubborn`` it knows no other form, and begins its own on a new line.
    """

    def __init__(
        self,
        wish: Wish | Callable[[str], Wish],
        *,
        dialect: str = "jsonl",
        spacing: Spacing = "compact",
        escapes: bool = False,
        probability: float = 0.97,
        stubborn: bool = False,
        lead: str = "",
        thought: str = "",
        thinks_as: str = "",
        seed: int = 0,
        assistant: str = "<|im_start|>assistant\n",
        observed: Sequence[str] = ("tool_observation", "tool_response", "[TOOL_RESULTS]"),
        serving: Serving | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        super().__init__(self, serving, sleep=sleep)
        self._wish = wish
        self._dialect = DIALECTS[dialect]
        self._others = [DIALECTS[name] for name in BEGUN_BY_HOST if name != dialect]
        self._writer = Writer(Pen(spacing, escapes))
        self._probability = probability
        self._stubborn, self._lead, self._thought = stubborn, lead, thought
        self._thinks = THOUGHTS[thinks_as]
        self._seed = seed
        self._assistant, self._observed = assistant, observed

    # --- what it would write

    def rest(self, prompt: str) -> str:
        """The rest of its turn, which it goes on with."""
        before, _, turn = prompt.rpartition(self._assistant)
        wish = self._wish(prompt) if callable(self._wish) else self._wish
        last = before.rpartition(self._assistant)[2]
        if any(mark in last for mark in self._observed):
            wish = Wish((), wish.answer)
        opens, closes = self._thinks
        begins, ends = opens.strip("\n"), closes.strip("\n")
        thought = f"{opens}{self._thought}{closes}" if self._thought else ""
        if turn.count(begins) > turn.count(ends):
            thought = thought or opens + closes.lstrip("\n")
            begun = turn[turn.rfind(begins) :]
            left = thought[len(begun) :] if thought.startswith(begun) else closes
            return left + self._own(wish)
        if ends in turn:
            turn = turn.rpartition(ends)[2]
            blank = len(closes) - len(closes.rstrip("\n"))
            if not turn.strip("\n"):
                return "\n" * (blank - len(turn)) + self._own(wish)
            turn = turn.lstrip("\n")
        elif thought.startswith(turn) and thought:
            return thought[len(turn) :] + self._own(wish)
        return self._goes_on(turn, wish, before)

    def _own(self, wish: Wish) -> str:
        return (self._lead if wish.calls else "") + self._text(wish.calls, wish.answer)

    def _text(self, calls: Sequence[ToolCall], answer: str) -> str:
        return self._writer.pen.parts(turn_parts(self._dialect, calls, answer))

    def _goes_on(self, turn: str, wish: Wish, before: str) -> str:
        own = self._own(wish)
        if own.startswith(turn):
            return own[len(turn) :]
        starts = [0, *(found.end() for found in re.finditer("\n", turn))]
        for start in starts:
            begun = turn[start:]
            if begun and own.startswith(begun):
                return own[len(begun) :]
            rest = None if self._stubborn else self._line(turn, start, wish, before)
            if rest is not None:
                return rest
        return ("" if turn.endswith("\n") else "\n") + self._text(wish.calls, wish.answer)

    def _line(self, turn: str, start: int, wish: Wish, before: str) -> str | None:
        """The rest where messages begin at ``start``; None where none do."""
        left, at, made = list(wish.calls), start, 0
        while True:
            at = BETWEEN.match(turn, at).end()  # type: ignore[union-attr]
            if at == len(turn):
                return self._more(left, turn) if made else None
            end, call = self._message(turn, at, wish, left, before)
            if end is None:
                return self._more(left, turn) if made else None
            if call is None:  # an answer, or all calls at once
                return end if isinstance(end, str) else ""
            if call in left:
                left.remove(call)
            if isinstance(end, str):
                return end + self._more(left, end or turn)
            at, made = end, made + 1

    def _more(self, left: Sequence[ToolCall], turn: str) -> str:
        if not left:
            return ""
        return ("" if turn.endswith("\n") else "\n") + self._text(left, "")

    def _message(
        self, turn: str, at: int, wish: Wish, left: Sequence[ToolCall], before: str
    ) -> tuple[Ending, ToolCall | None]:
        """The end of the message that begins ``at``, and which call it is, None for an answer."""
        forced = () if left else (ToolCall(_some_tool(before), {}),)
        for fixed in FIXED:
            for dialect in (self._dialect, *self._others):
                if dialect.opening:
                    end = self._writer.parts(turn_parts(dialect, left, ""), turn, at, fixed)
                    if end is not None and left:
                        return (end, None)
                    continue
                answers = self._writer.parts(dialect.answer(wish.answer), turn, at, fixed)
                if not left and answers is not None:
                    return answers, None
                for call in (*left, *forced):
                    end = self._writer.parts(dialect.call(call, 0), turn, at, fixed)
                    if end is not None:
                        return end, call
                if answers is not None:
                    return answers, None
        return None, None

    # --- token by token

    def tokens(self, asked: Asked) -> Iterator[Token]:
        """Its tokens, what it wants first of all."""
        chance = asked.chance(self._seed)
        others = self._other_tokens(asked.prompt) if asked.likely or asked.temperature else []
        written = bytearray()
        while True:
            rest = self.rest(asked.prompt + written.decode("utf-8", "replace"))
            markers = not any(
                token_id(marker.encode()) in asked.forbidden for marker in _MARKER.findall(rest)
            )
            for wanted in [*tokens_of(rest, markers=markers), END]:
                likely = self._likely(wanted, others, chance)
                taken = _drawn(likely, asked.temperature, chance)
                yield Token(taken, tuple(likely[: asked.likely]))
                written += taken
                if not taken:
                    return
                if taken != wanted:
                    break

    def _other_tokens(self, prompt: str) -> list[bytes]:
        """Other words that come to its mind: the request's words, quotes and commas."""
        request = prompt.rpartition(self._assistant)[0][-400:]
        words = [token for token in tokens_of(request) if token.strip(b" \n")]
        return list(dict.fromkeys([*words[-24:], b'"', b",", b'","', b" ", b"}", b"\n"]))

    def _likely(
        self, wanted: bytes, others: Sequence[bytes], chance: random.Random
    ) -> list[tuple[bytes, float]]:
        """The tokens with their logarithms, likeliest first."""
        rest = [token for token in others if token != wanted]
        if not rest:
            return [(wanted, math.log(self._probability))]
        rest = chance.sample(rest, len(rest))
        shares = [0.7**number for number in range(len(rest))]
        scale = (1 - self._probability) / sum(shares)
        found = [
            (token, math.log(scale * share)) for token, share in zip(rest, shares, strict=True)
        ]
        return [(wanted, math.log(self._probability)), *found]


def _some_tool(prompt: str) -> str:
    """A tool of the catalog, for a model that is made to call one."""
    found = re.search(r"^([A-Za-z_][\w.-]*)\(", prompt, re.MULTILINE)
    return found[1] if found else "tool"


def _drawn(
    likely: Sequence[tuple[bytes, float]], temperature: float, chance: random.Random
) -> bytes:
    if not temperature:
        return max(likely, key=lambda pair: pair[1])[0]
    weights = [math.exp(logprob / temperature) for _, logprob in likely]
    return chance.choices([token for token, _ in likely], weights)[0]


class RandomBytes(Served):
    """A model that writes any bytes, as a server decodes them, and ends at any."""

    def __init__(self, seed: int = 0, *, serving: Serving | None = None) -> None:
        super().__init__(self, serving)
        self._seed = seed

    def tokens(self, asked: Asked) -> Iterator[Token]:
        """Bytes, all equally likely."""
        chance = asked.chance(self._seed)
        while chance.random() > 1 / 200:
            data = [chance.randbytes(1) for _ in range(max(1, asked.likely))]
            yield Token(data[0], tuple((one, -5.5) for one in data) if asked.likely else ())
        yield Token(END)


class RandomTokens(Served):
    """A model that writes tokens of the prompt, of messages and of JSON in any order."""

    def __init__(self, seed: int = 0, *, serving: Serving | None = None) -> None:
        super().__init__(self, serving)
        self._seed = seed

    def tokens(self, asked: Asked) -> Iterator[Token]:
        """Tokens, all equally likely."""
        chance = asked.chance(self._seed)
        known = list(dict.fromkeys(tokens_of(asked.prompt[-2000:])))
        known += tokens_of('{"type":"tool_call","name":"","arguments":{}}\n') * 3
        known += tokens_of(
            '{"type":"final_answer","content":"[1.5e3,true,null]"}\\u00e4</tool_call>'
        )
        known += [b"<tool_call>", b"```", "ä".encode()[:1], "🐝".encode()[:2], b'{"', b'":', b"}}"]
        while chance.random() > 1 / 200:
            data = chance.sample(known, min(len(known), max(1, asked.likely)))
            yield Token(data[0], tuple((one, -4.0) for one in data) if asked.likely else ())
        yield Token(END)


class Mangled(Served):
    """A strong model of whose bytes every so many is another one, by chance.

    It would begin its text anew each time it is asked: only ``model.rest`` is taken of the other.
    """

    def __init__(
        self, model: StrongModel, *, every: int = 20, seed: int = 0, serving: Serving | None = None
    ) -> None:
        super().__init__(self, serving)
        self._strong, self._every, self._seed = model, every, seed

    def tokens(self, asked: Asked) -> Iterator[Token]:
        """The strong model's tokens, with changed bytes."""
        chance = asked.chance(self._seed)
        for token in tokens_of(self._strong.rest(asked.prompt)):
            data = bytes(
                chance.randrange(256) if chance.random() < 1 / self._every else byte
                for byte in token
            )
            likely = ((data, -0.2), (b'"', -3.0), (b",", -3.2), (b"}", -3.4))
            yield Token(data, likely[: asked.likely])
        yield Token(END, ((END, -0.2), (b'"', -3.0))[: asked.likely])


# --- over HTTP ----------------------------------------------------------------------------------

FINGERPRINT: Final = "0.32.2-0.32.4-Linux-x86_64-with-glibc2.36-cpu"
MOST_LIKELY: Final = 11


class StrongServer:
    """A model behind HTTP, as mlx-lm's server has it.

        with StrongServer(StrongModel(wish)) as server:
            backend = CompletionsBackend(server.url)

    ``sleep`` passes the time of a latency.
    """

    def __init__(self, model: Served, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.model = model
        self.bodies: list[dict[str, Any]] = []
        self.sleep = sleep
        self.lock = threading.Lock()
        outer = self

        class Handler(_Handler):
            server_of = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def url(self) -> str:
        """The address, without ``/v1``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_of: StrongServer

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json(200, {"status": "ok"})
        elif self.path.startswith("/v1/models"):
            one = {"id": self.server_of.model.model, "object": "model", "created": 0}
            self._json(200, {"object": "list", "data": [one]})
        else:
            self._json(404, {"error": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self.path != "/v1/completions":
            self._json(404, {"error": "Not Found"})
            return
        outer, serving = self.server_of, self.server_of.model.serving
        wanted = int(body.get("top_logprobs") or 0)
        if not body.get("prompt") or wanted > MOST_LIKELY:
            self._json(400, {"error": "no prompt, or too many likelihoods"})
            return
        asked = Asked(
            body["prompt"],
            int(body.get("max_tokens", 512)),
            float(body.get("temperature", 0.0)),
            body.get("seed"),
            wanted if serving.likelihoods and not body.get("stream") else 0,
            frozenset(int(key) for key, value in body.get("logit_bias", {}).items() if value < -50),
        )
        with outer.lock:
            outer.bodies.append(body)
            serving.begin(asked)
        if serving.latency:
            outer.sleep(serving.latency)
        try:
            (self._streamed if body.get("stream") else self._whole)(asked, body)
        except OSError:  # the client has read enough
            self.close_connection = True

    def _whole(self, asked: Asked, body: Mapping[str, Any]) -> None:
        serving = self.server_of.model.serving
        rows = [token for _, token in serving.pieces(self.server_of.model._model, asked)]
        choice: dict[str, Any] = {"index": 0, "finish_reason": asked.finish, "text": asked.text}
        if asked.likely:
            tables = [_table(token) for token in rows]
            content = [table[0] | {"top_logprobs": table} for table in tables if table]
            choice["logprobs"] = {"content": content}
        self._json(
            200, _head("text_completion") | {"choices": [choice], "usage": self._usage(asked)}
        )

    def _streamed(self, asked: Asked, body: Mapping[str, Any]) -> None:
        serving = self.server_of.model.serving
        self.send_response(200)
        self.send_header("Content-type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        self.wfile.write(b": keepalive 1/1\n\n")
        pieces = serving.pieces(self.server_of.model._model, asked)
        if serving.whole:
            pieces = iter([("".join(text for text, _ in pieces), Token(END))])
        for text, _ in pieces:
            choice = {"index": 0, "finish_reason": None, "text": text}
            if text or asked.thinking:
                self._event(_head("text_completion") | {"choices": [choice]})
        last = {"index": 0, "finish_reason": asked.finish, "text": ""}
        self._event(_head("text_completion") | {"choices": [last]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event(_head("chat.completion") | {"choices": [], "usage": self._usage(asked)})
        self.wfile.write(b"data: [DONE]\n\n")

    def _usage(self, asked: Asked) -> dict[str, Any]:
        usage = self.server_of.model.serving.usage(asked)
        return {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": (usage.prompt_tokens or 0) + (usage.completion_tokens or 0),
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }

    def _event(self, value: Mapping[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _head(kind: str) -> dict[str, Any]:
    return {
        "id": "cmpl-strong",
        "system_fingerprint": FINGERPRINT,
        "object": kind,
        "model": "default_model",
        "created": 0,
    }


def _table(token: Token) -> list[dict[str, Any]]:
    return [
        {
            "id": token_id(data) if data else END_ID,
            "token": spelled(data) or "<|im_end|>",
            "logprob": logprob,
        }
        for data, logprob in token.likely
    ]
