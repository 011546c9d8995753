"""Places of files, and who may read them."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from mlx_tools.errors import UsageError
from mlx_tools.paths import cache_dir, config_dir, data_dir, private_dir, state_dir

KINDS = {"CONFIG": config_dir, "DATA": data_dir, "STATE": state_dir, "CACHE": cache_dir}


@pytest.mark.parametrize("kind", KINDS)
def test_a_variable_names_another_folder(kind: str, tmp_path: Path) -> None:
    find = KINDS[kind]
    assert find({f"MLX_TOOLS_{kind}_DIR": str(tmp_path)}) == tmp_path
    assert find({f"MLX_TOOLS_{kind}_DIR": "~/x"}) == Path.home() / "x"
    assert find({f"MLX_TOOLS_{kind}_DIR": "x"}) == Path.cwd() / "x"
    assert find({f"MLX_TOOLS_{kind}_DIR": "  "}) == find({})
    assert find({}).name == "mlx-tools"
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="XDG variables are for Linux")
def test_on_linux_the_xdg_variables_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, find in KINDS.items():
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
        assert find({}) == tmp_path / kind / "mlx-tools"


def test_what_is_created_is_its_owners_alone_and_what_was_there_stays(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    made = private_dir(tmp_path / "a" / "b")
    for folder in (made, made.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert private_dir(made) == made


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError) as caught:
            private_dir(path)
        assert str(path) in caught.value.message
        assert caught.value.hint == "make it a folder that you may write to"


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_ours_that_cannot_be_made_names_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    variable = f"MLX_TOOLS_{kind}_DIR"
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    with pytest.raises(UsageError) as caught:
        private_dir(tmp_path / "file" / "below")
    assert variable in str(caught.value.hint)
