"""Drives Debian's chromium over its debugging pipe: what a page does is asked of a real browser.

JSON messages over a pipe, a NUL behind each, are all there is to it, so no package is needed: the
one that is used most brings Node along, 40 MB of wheel, and wants a browser of its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--disable-extensions", "--hide-scrollbars", "--mute-audio"),
    *(
        "--no-default-browser-check",
        "--remote-debugging-pipe",
        "--host-resolver-rules=MAP * 0.0.0.0",
    ),
)
PATIENCE = 120.0
"""Seconds that one answer may take: a browser that hangs must not hang the tests."""

_WIRED = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, which reads from its descriptor 3 and writes to 4."""


def find_chromium() -> str | None:
    """The browser's command, or None."""
    return next(filter(None, map(shutil.which, COMMANDS)), None)


class Page:
    """A tab of the browser; ``seen`` are the events that came of it."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.seen: list[dict[str, Any]] = []

    def send(self, method: str, **params: Any) -> Any:
        """A command's result."""
        return self._browser.send(method, self._session, **params)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page. The page's own policy does not bind it."""
        out = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in out, out
        return out["result"].get("value")

    def open(self, url: str) -> None:
        """Opens an address, and waits until the page has loaded."""
        self.seen.clear()
        self.send("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.seen):
            self._browser.take()

    def size(self, width: int, height: int = 900) -> None:
        """The size of its window in pixels; less than 500 is a phone."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def media(self, scheme: str, kind: str = "screen") -> None:
        """Light or dark, screen or print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=kind, features=features)

    def scripts(self, allowed: bool) -> None:
        """Whether the pages that are opened from now on may run scripts."""
        self.send("Emulation.setScriptExecutionDisabled", value=not allowed)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Takes a picture of the page."""
        out = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(out["data"]))

    def of(self, *methods: str) -> list[dict[str, Any]]:
        """The events of these kinds."""
        return [event["params"] for event in self.seen if event["method"] in methods]


class Browser:
    """A running browser."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, of: int) -> None:
        self._process = process
        self._to, self._of = to, of
        self._number = 0
        self._rest = b""
        self._pages: dict[str, Page] = {}
        self._answers: dict[int, dict[str, Any]] = {}

    def page(self) -> Page:
        """A new tab that tells what it loads, logs and throws."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        return page

    def send(self, method: str, session: str = "", **params: Any) -> Any:
        """A command's result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while number not in self._answers:
            self.take()
        answer = self._answers.pop(number)
        assert "error" not in answer, answer
        return answer["result"]

    def take(self) -> None:
        """Takes what the browser says next."""
        end = monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._of], [], [], max(0.0, end - monotonic()))
            data = os.read(self._of, 1 << 20) if ready else b""
            assert data, "the browser hangs, or has died"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        if "id" in message:
            self._answers[message["id"]] = message
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page.seen.append(message)


@contextlib.contextmanager
def started(command: str, folder: Path) -> Iterator[Browser]:
    """A browser with ``folder`` for its files, stopped with all its processes at the end."""
    read_of, to = os.pipe()
    of, write_to = os.pipe()
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", _WIRED, str(read_of), str(write_to)),
            *(command, *FLAGS, f"--user-data-dir={folder}"),
        ],
        pass_fds=(read_of, write_to),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read_of)
    os.close(write_to)
    try:
        yield Browser(process, to, of)
    finally:
        os.close(to)
        os.close(of)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
