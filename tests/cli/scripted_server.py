"""A completions server on loopback that says what it is told to: real HTTP, no model.

with ScriptedServer(Completion('{"type":"final_answer","content":"Hi."}')) as server:
    main(["ask", "--url", server.url, "Hello?"])
    assert "Hello?" in server.prompts[0]
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Completion:
    """One scripted completion, sent in pieces of ``size`` characters, ``delay`` seconds apart.

    ``finish_reason`` None breaks the stream off after the text; ``status`` other than 200 answers
    with an error whose message is the text.
    """

    def __init__(
        self,
        text: str,
        *,
        finish_reason: str | None = "stop",
        usage: dict[str, Any] | None = None,
        size: int = 7,
        delay: float = 0.0,
        status: int = 200,
    ) -> None:
        self.text = text
        self.finish_reason = finish_reason
        self.usage = usage
        self.size = size
        self.delay = delay
        self.status = status


def call(name: str, **arguments: Any) -> Completion:
    """The completion of a model that calls one tool."""
    message = {"type": "tool_call", "name": name, "arguments": arguments}
    return Completion(json.dumps(message, separators=(",", ":")), usage=USAGE)


def answer(text: str) -> Completion:
    """The completion of a model that answers."""
    message = {"type": "final_answer", "content": text}
    return Completion(json.dumps(message, ensure_ascii=False), usage=USAGE)


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 40},
}

Script = Completion | Callable[[str], Completion]


class ScriptedServer:
    """Serves the scripted completions one after the other; out of script, it answers 500.

    It knows no likelihoods: a request for some gets none, and nothing of the script. The page
    ``hanging`` is answered when the server ends.
    """

    def __init__(self, *script: Script, model: str = "scripted", hanging: str = "") -> None:
        self.hanging = hanging
        self._ended = threading.Event()
        self._script = list(script)
        self._lock = threading.Lock()
        self.model = model
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
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
        """The prompts that were asked, in order."""
        return [body["prompt"] for body in self.bodies]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take no connection any more; what is being answered is. A script may ask for it."""
        self._server.shutdown()
        self._server.server_close()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _next(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            if not self._script:
                return Completion("the script is at its end", status=500)
            script = self._script.pop(0)
        return script(body["prompt"]) if callable(script) else script

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                if self.path == outer.hanging:
                    outer._ended.wait(30)
                if self.path == "/health":
                    self._json(200, {"status": "ok"})
                elif self.path == "/v1/models":
                    self._json(200, {"object": "list", "data": [{"id": outer.model}]})
                else:
                    self._json(404, {"error": "no such page"})

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path != "/v1/completions":
                    self._json(404, {"error": "no such page"})
                    return
                body = json.loads(raw)
                if not body.get("prompt"):
                    self._json(400, {"error": "prompt is missing"})
                    return
                if "logprobs" in body:
                    self._json(200, {"choices": [{"text": "", "finish_reason": "length"}]})
                    return
                completion = outer._next(body, dict(self.headers.items()))
                if completion.status != 200:
                    self._json(completion.status, {"error": completion.text})
                    return
                self._stream(completion)

            def _json(self, status: int, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _stream(self, completion: Completion) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    for start in range(0, len(completion.text), completion.size):
                        self._event(completion.text[start : start + completion.size], None)
                        time.sleep(completion.delay)
                    if completion.finish_reason is None:
                        return
                    self._event("", completion.finish_reason)
                    if completion.usage is not None:
                        self._data({"choices": [], "usage": completion.usage})
                    self.wfile.write(b"data: [DONE]\n\n")
                except OSError:  # the client has read enough
                    return

            def _event(self, text: str, finish_reason: str | None) -> None:
                self._data({"choices": [{"text": text, "finish_reason": finish_reason}]})

            def _data(self, value: Any) -> None:
                self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
                self.wfile.flush()

        return Handler
