"""A script with the options of mlx-lm's server, and the faults that a test asks for.

``FAKE_FAULT`` names the fault; ``FAKE_ONCE`` is a file that is made when the fault has shown, and
the fault shows only where it is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
for option in ("model", "host", "allowed-origins", "log-level"):
    parser.add_argument(f"--{option}")
parser.add_argument("--port", type=int)
options, others = parser.parse_known_args()
state = {"status": "ok"}


def fault(name: str) -> bool:
    """Return True if this fault is due now."""
    once = os.environ.get("FAKE_ONCE")
    if os.environ.get("FAKE_FAULT") != name or (once and Path(once).exists()):
        return False
    if once:
        Path(once).touch()
    return True


class Handler(BaseHTTPRequestHandler):
    """Answers ``/health`` and completions."""

    def do_GET(self) -> None:
        self.send_response(200 if state["status"] == "ok" else 503)
        origin = "*" if os.environ.get("FAKE_FAULT") == "stranger" else options.allowed_origins
        self.send_header("Access-Control-Allow-Origin", origin)
        self.end_headers()
        self.wfile.write(json.dumps(state).encode())

    def refuse(self, status: int, why: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps({"error": why}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["prompt"] != "1"  # which is what a server of ours is tried with
        if asked and fault("exit"):
            os.kill(os.getpid(), signal.SIGKILL)
        if asked and fault("crash"):
            os._exit(7)
        if asked and fault("memory"):
            print("[METAL] Command buffer execution failed: Insufficient Memory", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        if asked and fault("hangs"):
            state["status"] = "unavailable"
            time.sleep(600)
        if asked and fault("slow"):
            time.sleep(600)
        if asked and fault("drops"):
            return
        if asked and fault("fails"):
            self.refuse(500, "out of memory")
            return
        if asked and fault("die"):
            state["status"] = "unavailable"
        if state["status"] != "ok" or fault("refuse"):
            self.refuse(404, "generation thread died")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        first = " ".join(others) if asked and fault("arguments") else f"pid {os.getpid()}"
        for text in (first, "."):
            event = {"choices": [{"text": text, "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
            if asked and fault("midway"):
                os.kill(os.getpid(), signal.SIGKILL)
        self.wfile.write(b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")


if fault("ends"):
    print("Traceback: something long")
    sys.exit("FileNotFoundError: no \x1b[31msafetensors\x1b[0m found")
if fault("taken"):
    sys.exit("OSError: [Errno 98] Address already in use")
if fault("silent"):
    time.sleep(600)
ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
