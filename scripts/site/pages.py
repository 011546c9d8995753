"""Hooks of mkdocs, which calls them by their names: the menu, and pages from outside docs/.

The menu is made of the index page, docs/README.md, so each page is named in one place. Files that a
page links to outside docs/ become files of the site, with the same text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[2]
INDEX: Final = "docs/README.md"
RENAMED: Final = {"README.md": "start.md"}
"""Files whose name in the site would be that of a page in docs/."""

LINK: Final = re.compile(
    r"""(\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(|<img\ src=")  # the text, which may hold brackets
        ([^)#\s"]+)  # the address
        """,
    re.VERBOSE,
)
"""A link or a picture, of Markdown or HTML, up to the end of the file's name."""


def site_path(path: str) -> str:
    """Return the place in the site of a file, by its path in the checkout."""
    return path.removeprefix("docs/") if path.startswith("docs/") else RENAMED.get(path, path)


def checkout_path(place: str) -> str:
    """Return the path in the checkout of a file, by its place in the site."""
    original = next((path for path, renamed in RENAMED.items() if renamed == place), place)
    inside = f"docs/{place}"
    return inside if (ROOT / inside).exists() else original


def targets(path: str, text: str) -> list[str]:
    """Return the paths of the files that a page links to; no addresses of the web."""
    addresses = [match[2] for match in LINK.finditer(text) if ":" not in match[2]]
    return [posixpath.normpath(posixpath.join(posixpath.dirname(path), a)) for a in addresses]


def menu() -> list[dict[str, Any]]:
    """Return the sections of the index page with the pages that each names."""
    index = (ROOT / INDEX).read_text(encoding="utf-8")
    sections: list[dict[str, Any]] = [{"Overview": site_path(INDEX)}]
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        pages = dict.fromkeys(map(site_path, targets(INDEX, part)))
        sections.append({part.splitlines()[0]: list(pages)})
    return sections


def on_config(config: Any) -> Any:
    """Set the menu."""
    config["nav"] = menu()
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/ that pages link to, and those that these pages link to."""
    present = {file.src_uri for file in files}
    waiting = [file for file in files if file.is_documentation_page()]
    while waiting:
        page = waiting.pop()
        for path in targets(checkout_path(page.src_uri), page.content_string):
            place = site_path(path)
            if place in present or not (ROOT / path).is_file():
                continue  # mkdocs itself names a link that leads nowhere
            present.add(place)
            file = File.generated(config, place, content=(ROOT / path).read_bytes())
            files.append(file)
            if file.is_documentation_page():
                waiting.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Write the links of a page as they are in the site."""
    place = page.file.src_uri
    path = checkout_path(place)

    def rewrite(match: re.Match[str]) -> str:
        if ":" in match[2]:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        address = posixpath.relpath(site_path(target), posixpath.dirname(place) or ".")
        return f"{match[1]}{address}"

    return LINK.sub(rewrite, markdown)
