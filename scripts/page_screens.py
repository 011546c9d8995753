"""Takes the pictures of docs/gateway.md: the page itself, in Chromium, on a scripted model.

python scripts/page_screens.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from mlx_tools.testing import ScriptedServer, answer, call
from scripts.browser import Browser
from scripts.generated_part import ROOT

FOLDER: Final = ROOT / "docs" / "page"
PLAN: Final = "# Beds\n\n1. beans\n2. kale\n3. carrots\n"
SCRIPT: Final = (
    call("file_access", operation="read", path="beds.md"),
    call("file_access", operation="write", path="beds.md", content=PLAN.replace("kale", "lettuce")),
    answer("Lettuce grows in bed 2 now."),
)


def main() -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as name, ScriptedServer(*SCRIPT, model="demo") as server:
        folder = Path(name)
        (folder / "garden").mkdir()
        (folder / "garden" / "beds.md").write_text(PLAN)
        program = [sys.executable, "-P", "-m", "mlx_tools", "serve"]
        told = {f"XDG_{kind}_HOME": name for kind in ("CONFIG", "STATE", "DATA")}
        how: dict[str, Any] = {"cwd": folder, "stderr": subprocess.PIPE}
        how["env"] = {**os.environ, **told}
        options = ["--port", "0", "--url", server.url, "--chat-format", "chatml"]
        options += ["--tools", "file_access,calculator", "--root", f"{folder / 'garden'}:rw"]
        link = subprocess.run([*program, "page"], stdout=subprocess.PIPE, **how)
        key = link.stdout.decode().strip().partition("#")[2]
        with subprocess.Popen([*program, *options], **how) as gateway, Browser() as browser:
            try:
                assert gateway.stderr is not None
                lines = (line.decode() for line in gateway.stderr)
                found = (re.search(r"served at (http://\S+/)v1", line) for line in lines)
                _take(browser, f"{next(filter(None, found))[1]}#{key}")
            finally:
                gateway.terminate()


def _take(browser: Browser, link: str) -> None:
    browser.look(width=900, height=800)
    browser.open(link)
    browser.sees("Your question")
    browser.type("Grow lettuce in place of kale.", into="Your question")
    browser.press("Enter")
    browser.sees("Approve")
    browser.picture(FOLDER / "approval.png", whole=True)
    browser.look(width=390, height=844, dark=True)
    browser.run("document.querySelector('.wait').scrollIntoView()")
    browser.picture(FOLDER / "small.png")


if __name__ == "__main__":
    main()
