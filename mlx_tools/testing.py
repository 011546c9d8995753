"""Fakes for tests of programs that use mlx-tools.

There are models with scripted answers, in this process or behind HTTP, a person with scripted
decisions, a clock that can be moved on, and a gateway without a server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from msgspec import Struct

from mlx_tools.backends import Chunk, CompletionRequest, TokenCounter, TokenScore
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest, RunSettings
from mlx_tools.messages import FinishReason, Usage
from mlx_tools.policy import Limits
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store import load_words

if TYPE_CHECKING:
    from mlx_tools.app import Configuration
    from mlx_tools.gateway import Gateway, TurnRunner


def call(name: str, /, **arguments: Any) -> str:
    """Return the line of a call."""
    return json.dumps({"type": "tool_call", "name": name, "arguments": arguments})


def answer(content: str = "done") -> str:
    """Return the line of an answer."""
    return json.dumps({"type": "final_answer", "content": content})


class Script(Struct, frozen=True):
    """One scripted completion."""

    text: str
    finish_reason: FinishReason | None = "stop"
    """None leaves the stream open at its end, like a server that has more to send."""
    pieces: int = 0
    """Characters of each chunk, 0 for a single chunk."""
    usage: Usage | None = None
    scores: Sequence[tuple[str, float]] = ()
    """The likeliest tokens, each with the logarithm of its probability.

    They are the answer to a request for likelihoods.
    """


class ScriptedBackend:
    """A backend that returns the scripted completions, one after the other.

    Each script is a text, a `Script`, an exception to raise, or a function from the prompt to one
    of these. A request for likelihoods gets those of the next `Script`, if it has some. A request
    after the last script raises AssertionError, which a run turns into a `BackendError`.
    """

    model = "scripted"

    def __init__(self, *scripts: str | Script | Exception | Callable[[str], str | Script]) -> None:
        self._scripts = list(scripts)
        self.requests: list[CompletionRequest] = []
        """The requests so far."""

    @property
    def prompts(self) -> list[str]:
        """The prompts so far."""
        return [request.prompt for request in self.requests]

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        """Return the next scripted completion."""
        self.requests.append(request)
        if request.top_logprobs:
            scores = getattr(self._scripts[0], "scores", ()) if self._scripts else ()
            if scores:
                self._scripts.pop(0)
            alternatives = tuple(TokenScore(token, logprob) for token, logprob in scores)
            text = (
                alternatives[0].text if alternatives else "?"
            )  # a server that is asked for likelihoods also writes a token
            yield Chunk(text, "length", scores=(alternatives,) if alternatives else ())
            return
        if not self._scripts:
            raise AssertionError("the script has no completion left for this request")
        script = self._scripts.pop(0)
        if callable(script):
            script = script(request.prompt)
        if isinstance(script, Exception):
            raise script
        if isinstance(script, str):
            script = Script(script)
        step = script.pieces or max(len(script.text), 1)
        for start in range(0, len(script.text), step):
            yield Chunk(script.text[start : start + step])
        if script.finish_reason is not None:
            yield Chunk("", script.finish_reason, script.usage)


class ScriptedApprover:
    """An approver with scripted answers; the last one is repeated.

    An answer is True, False, None (nobody is there), or an `ApprovalAnswer`.
    """

    def __init__(self, *answers: bool | ApprovalAnswer | None) -> None:
        self._answers = list(answers)
        self.requests: list[ApprovalRequest] = []
        """The requests so far."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """Return one scripted answer for each request."""
        self.requests += requests
        answers = [
            self._answers.pop(0) if len(self._answers) > 1 else self._answers[0] for _ in requests
        ]
        return [
            item if isinstance(item, ApprovalAnswer) else ApprovalAnswer(item, "as scripted")
            for item in answers
        ]


# --- a clock --------------------------------------------------------------------------------------


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the machine's and the skipped seconds."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


def run(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Run an asynchronous function on a loop on which time can be skipped.

    Return its result.
    """
    return anyio.run(function, *arguments, backend_options={"loop_factory": SkippingLoop})


async def skip(seconds: float) -> None:
    """Let ``seconds`` pass at once."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    loop.skipped += seconds
    for _ in range(3):  # timers that are now due run, and so do the tasks that they wake
        await anyio.sleep(0)


# --- a gateway ------------------------------------------------------------------------------------


def make_turn_runner(
    backend: Any, *, style: str = "jsonl", strategy: str = "auto", **settings: Any
) -> TurnRunner:
    """Return a model of a gateway, whose completions a backend writes.

    Args:
        backend: the backend, such as a `ScriptedBackend`.
        style: the style of its calls.
        strategy: how turns are held to the protocol.
        settings: further fields of its `RunSettings`.
    """
    from mlx_tools.gateway import PromptProfile, TurnRunner

    chat_format = settings.pop("chat_format", NAMED_FORMATS["chatml"])
    run_settings: Any = {"chat_format": chat_format, "style": style, "model": "scripted"}
    profile: Any = {"chat_format": chat_format, "style": style, "strategy": strategy}
    made = PromptProfile(
        settings=RunSettings(**run_settings | settings), words=load_words(), **profile
    )
    return TurnRunner(backend, made, Limits(), TokenCounter())


def make_gateway(
    model: TurnRunner, configuration: Configuration, names: Sequence[str] = ("scripted",)
) -> Gateway:
    """Return a gateway of one model.

    `mlx_tools.gateway.application` makes an ASGI application of it. Its clocks stand still, its ids
    count up, and its notes go nowhere.

    Args:
        model: the model, which has the first of the names.
        configuration: its settings.
        names: the names of the models that it serves.
    """
    from mlx_tools.app import RunOptions
    from mlx_tools.gateway import Admission, Clock, Gateway, Meters, ServedModels

    numbers, notes = itertools.count(1), list[str]()
    models = ServedModels(
        RunOptions(configuration=configuration),
        notes.append,
        open_runners={names[0]: model},
        names=tuple(names),
    )
    return Gateway(
        configuration,
        models,
        Admission(4, 8, lambda: 0.0),
        Meters(),
        notes.append,
        now=lambda: 1_700_000_000.0,
        new_id=lambda: f"{next(numbers):08x}",
        clock=Clock(now=lambda: 0.0),  # no stop of this process is taken for a silence
    )


# --- a server -------------------------------------------------------------------------------------

USAGE: Final = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 40},
}


class ChatCall(Struct, frozen=True):
    """A call in a scripted chat answer; ``arguments`` are JSON text, right or wrong."""

    name: str
    arguments: str
    id: str = "call_1"


class Completion(Struct, frozen=True):
    """One scripted completion, sent in pieces of ``size`` characters.

    There are ``delay`` seconds between two pieces.

    In answer to a chat request the text is the content, and ``calls`` and ``reasoning`` are sent
    too.
    """

    text: str
    finish_reason: str | None = "stop"
    """None breaks the stream off after the text."""
    usage: dict[str, Any] | None = None
    size: int = 7
    delay: float = 0.0
    status: int = 200
    """Any other than 200 answers with an error whose message is the text."""
    calls: Sequence[ChatCall] = ()
    reasoning: str = ""


class ScriptedServer:
    """A completions server on loopback with scripted completions.

    It speaks real HTTP and has no model. Each script is a `Completion`, a text (which costs
    `USAGE`), or a function from the prompt to one of these. After the last one the server answers
    500. It knows no likelihoods: a request for some gets none, and uses no script.

        with ScriptedServer(answer("Hi.")) as server:
            main(["ask", "--url", server.url, "Hello?"])
            assert "Hello?" in server.prompts[0]

    Args:
        script: the completions.
        model: the models that it lists, one name or several.
        hanging: a page that is answered only when the server ends.
        chat: True to offer a chat interface too.
        context: the size of the context in tokens that it reports.
    """

    def __init__(
        self,
        *script: str | Completion | Callable[[str], str | Completion],
        model: str | Sequence[str] = "scripted",
        hanging: str = "",
        chat: bool = False,
        context: int | None = None,
    ) -> None:
        self.hanging = hanging
        self.posts = ("/v1/completions", "/v1/chat/completions")[: 1 + chat]
        self.has_ended = threading.Event()
        self._script = list(script)
        self.lock = threading.Lock()
        """Held while a request is recorded and its completion chosen."""
        self.models = (model,) if isinstance(model, str) else tuple(model)
        self.context = context
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        handler = type("Handler", (_Handler,), {"scripted": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def url(self) -> str:
        """The address, without ``/v1``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def prompts(self) -> list[str]:
        """The prompts of all requests, in order."""
        return [body["prompt"] for body in self.bodies if "prompt" in body]

    @property
    def chats(self) -> list[list[dict[str, Any]]]:
        """The messages of all chat requests, in order."""
        return [body["messages"] for body in self.bodies if "messages" in body]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Accept no more connections; answers under way continue. A script may call this."""
        self._server.shutdown()
        self._server.server_close()

    def __exit__(self, *_: object) -> None:
        self.has_ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        """Record a request and return the next completion."""
        with self.lock:
            self.bodies.append(body)
            self.headers.append(headers)
            if not self._script:
                return Completion("the script is at its end", status=500)
            script = self._script.pop(0)
        prompt = body.get("prompt") or json.dumps(body.get("messages"))
        completion = script(prompt) if callable(script) else script
        return Completion(completion, usage=USAGE) if isinstance(completion, str) else completion


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # each piece is sent at once
    scripted: ScriptedServer

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        if self.path == self.scripted.hanging:
            self.scripted.has_ended.wait(30)
        if self.path == "/health":
            self._json(200, {"status": "ok"})
        elif self.path == "/v1/models":
            context = self.scripted.context
            limit = {} if context is None else {"max_model_len": context}
            rows = [{"id": name} | limit for name in self.scripted.models]
            self._json(200, {"object": "list", "data": rows})
        else:
            self._json(404, {"error": "no such page"})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path not in self.scripted.posts:
            self._json(404, {"error": "no such page"})
            return
        body = json.loads(raw)
        if not (body.get("prompt") or body.get("messages")):
            self._json(400, {"error": "prompt is missing"})
            return
        if "logprobs" in body:
            self._json(200, {"choices": [{"text": "", "finish_reason": "length"}]})
            return
        completion = self.scripted.next(body, dict(self.headers.items()))
        if completion.status != 200:
            self._json(completion.status, {"error": completion.text})
            return
        self._stream(completion, chat="messages" in body)

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, completion: Completion, *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        unsent = b""
        try:
            for choice in _deltas(completion) if chat else _texts(completion):
                self.wfile.write(unsent)
                unsent = _event({"choices": [{"finish_reason": None} | choice]})
                if completion.delay:
                    self.wfile.write(unsent)
                    unsent = b""
                    time.sleep(completion.delay)
            if completion.finish_reason is not None:
                end: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
                unsent += _event({"choices": [end | {"finish_reason": completion.finish_reason}]})
                if completion.usage is not None:
                    unsent += _event({"choices": [], "usage": completion.usage})
                unsent += b"data: [DONE]\n\n"
            # The end comes with the last piece: a client whose message is whole waits only a moment
            # for the usage, and a busy machine may stop this thread for longer.
            self.wfile.write(unsent)
        except OSError:  # the client has read enough
            return


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _texts(completion: Completion) -> Iterator[dict[str, Any]]:
    for piece in _pieces(completion.text, completion.size):
        yield {"text": piece}


def _deltas(completion: Completion) -> Iterator[dict[str, Any]]:
    """Yield the completion as deltas of the chat interface."""
    for piece in _pieces(completion.reasoning, completion.size):
        yield {"delta": {"reasoning_content": piece}}
    for piece in _pieces(completion.text, completion.size):
        yield {"delta": {"role": "assistant", "content": piece}}
    for index, call in enumerate(completion.calls):
        function = {"name": call.name, "arguments": ""}
        first = {"index": index, "id": call.id, "type": "function", "function": function}
        yield {"delta": {"content": None, "tool_calls": [first]}}
        for piece in _pieces(call.arguments, completion.size):
            rest = {"index": index, "function": {"arguments": piece}}
            yield {"delta": {"tool_calls": [rest]}}
