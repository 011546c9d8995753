"""A headless Chromium, driven as a person drives one: by what is seen, with its mouse and keys.

Controls are found by what they are and the name that stands on them. It speaks the browser's
own debugging protocol over a WebSocket, so that nothing but Chromium is needed.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from websockets.sync.client import connect

PROGRAM: Final = shutil.which("chromium")
PATIENCE: Final = 60.0
"""Seconds for anything to come, on a machine that has much else to do."""

_OPTIONS: Final = (
    *("--headless=new", "--remote-debugging-port=0", "--no-sandbox", "--disable-gpu"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-default-apps", "--disable-extensions", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--force-device-scale-factor=1", "--mute-audio", "--lang=en"),
)
_KEYS: Final = {"Enter": (13, "\r"), "Tab": (9, ""), "Space": (32, " ")}

_ROLES: Final = {
    "button": "button",
    "link": "a[href]",
    "summary": "summary",
    "textbox": "textarea, input:not([type=hidden], [type=search])",
    "searchbox": "input[type=search]",
}
_FIND: Final = """(selector, name) => {
  const named = (one) => (one.labels?.[0] ?? one).textContent.trim().startsWith(name);
  const all = [...document.querySelectorAll(selector)];
  const found = all.find((one) => one.checkVisibility() && named(one));
  if (document.readyState !== "complete" || !found) return null;
  found.scrollIntoView({ block: "center", behavior: "instant" });
  const { left, top, width, height } = found.getBoundingClientRect();
  const [x, y] = [left + width / 2, top + height / 2];
  if (!found.contains(document.elementFromPoint(x, y))) return null;
  window.missed = true;
  const clicked = ({ target }) => {
    const hit = target.closest(selector);
    if (hit && named(hit)) window.missed = false;
  };
  document.addEventListener("click", clicked, { capture: true, once: true });
  return [x, y];
}"""
"""The middle of a control, None while it is not there or something lies over it. A click there has
``missed`` where the page moved meanwhile."""


class Browser:
    """A browser with one page. ``asked`` are the addresses that it asked for, ``faults`` what it
    complained of: errors of scripts, what the content security policy refused."""

    def __init__(self) -> None:
        if PROGRAM is None:
            raise FileNotFoundError("chromium is not installed")
        self.asked: list[str] = []
        self.faults: list[str] = []
        self._program, self._number, self._session = PROGRAM, 0, ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._begin(stack)
            self._stack = stack.pop_all()
        return self

    def _begin(self, stack: ExitStack) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        command = [self._program, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        no = subprocess.DEVNULL
        process = stack.enter_context(subprocess.Popen(command, stdout=no, stderr=no))
        stack.callback(process.kill)
        port = Path(folder, "DevToolsActivePort")
        self.until(lambda: port.exists() and len(port.read_text().split()) == 2, "Chromium")
        number, path = port.read_text().split()
        address = f"ws://127.0.0.1:{number}{path}"
        self._socket = stack.enter_context(connect(address, max_size=None, proxy=None))
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    # --- the protocol ---

    def send(self, method: str, **values: Any) -> Any:
        """Tell the browser to do something, and return the result. Raises `RuntimeError`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        message |= {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps(message))
        while True:
            got = json.loads(self._socket.recv(timeout=PATIENCE))
            if got.get("id") == self._number:
                break
            self._note(got.get("method", ""), got.get("params", {}))
        if "error" in got:
            raise RuntimeError(f"{method}: {got['error']['message']}")
        return got["result"]

    def _note(self, method: str, values: Any) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(values["request"]["url"])
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            entry = values["entry"]
            if entry["source"] != "network":  # a status that was meant is none
                self.faults.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(values["exceptionDetails"]))

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        got = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in got:
            raise RuntimeError(json.dumps(got["exceptionDetails"])[:2000])
        return got["result"].get("value")

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait until something holds, and return it. Raises `TimeoutError`."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                if found := holds():
                    return found
            except RuntimeError:  # the page was just left
                pass
            if time.monotonic() > end:
                says = f"; the page says: {self.text[:3000]}" if self._session else ""
                raise TimeoutError(f"{what} is not there{says}")
            time.sleep(0.02)

    # --- what a person does ---

    def open(self, address: str) -> None:
        """Go to an address, and wait until its page is there."""
        self.send("Page.navigate", url=address)
        self.until(lambda: self.run("document.readyState") == "complete", address)

    def look(self, *, width: int = 1100, height: int = 800, dark: bool = False) -> None:
        """Set the size of the screen, in pixels, and its colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def click(self, role: str, name: str) -> None:
        """Click on the middle of the control that has this role and name."""
        self.until(lambda: self._clicked(role, name), f"{role} {name!r}")

    def _clicked(self, role: str, name: str) -> bool:
        place = self.run(f"({_FIND})({json.dumps(_ROLES[role])}, {json.dumps(name)})")
        for kind in ("mousePressed", "mouseReleased") if place else ():
            at = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, **at)
        return bool(place) and not self.run("window.missed ?? false")

    def type(self, text: str, *, into: str = "", role: str = "textbox") -> None:
        """Type a text, in the place of all that stands in the field with this name."""
        if into:
            self.click(role, into)
            self.run("document.activeElement.select()")
        self.send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key."""
        code, text = _KEYS[key]
        said = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        self.send("Input.dispatchKeyEvent", type="keyDown", **said)
        self.send("Input.dispatchKeyEvent", type="keyUp", **said)

    @property
    def text(self) -> str:
        """The text of the page."""
        return str(self.run("document.body?.innerText ?? ''"))

    def sees(self, text: str) -> None:
        """Wait until the page shows this text. Raises `TimeoutError`."""
        self.until(lambda: text in self.text, repr(text))

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A picture of the page, or of all of it, in a file."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": size | {"scale": 1}} if whole else {}
        got = self.send("Page.captureScreenshot", captureBeyondViewport=whole, **clip)
        path.write_bytes(base64.b64decode(got["data"]))
