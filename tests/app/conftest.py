"""A place of its own for a configuration: the files of a user and of a project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.app import config
from mlx_tools.app.config import ConfigErrors, Configuration
from tests.command_line import home as home
from tests.command_line import run as run


class Place:
    """A user's file, a project's file and a working directory, all in one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "config" / "config.toml"
        self.project = folder / "home" / "project" / "mlx-tools.toml"
        self.home = folder / "home"
        self.cwd = self.project.parent / "src" / "deep"
        self.user.parent.mkdir()
        self.cwd.mkdir(parents=True)

    def load(
        self,
        user: str = "",
        project: str = "",
        environ: Mapping[str, str] | None = None,
        options: Mapping[str, str | bool | Sequence[str]] | None = None,
    ) -> Configuration:
        for path, text in ((self.user, user), (self.project, project)):
            path.unlink(missing_ok=True)
            if text:
                path.write_text(text, encoding="utf-8")
                path.chmod(0o600)
        return self.read(environ=environ or {}, options=options or {})

    def read(self, **more: Any) -> Configuration:
        """The configuration of the files as they are."""
        more = {"environ": {}, **more}
        return config.load(cwd=self.cwd, user_file=self.user, home=self.home, **more)

    def problems(self, *args: object, **more: object) -> tuple[str, ...]:
        with pytest.raises(ConfigErrors) as caught:
            self.load(*args, **more)  # type: ignore[arg-type]
        return caught.value.problems


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
