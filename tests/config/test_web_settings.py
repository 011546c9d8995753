"""The settings of the web tools: what holds, who may set it, and how they reach the tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_tools.app.config import ConfigErrors, Configuration, load
from mlx_tools.app.wiring import registry_of
from mlx_tools.errors import UsageError
from mlx_tools.toolbox.web_tools import WebOptions

USER = """
[web]
timeout_ms = 5000
max_kb = 100
domains = ["Example.org", "*.b.net"]
blocked_domains = ["bad.example.org"]
search_engines = ["wikipedia"]
"""


def loaded(
    folder: Path, user: str = "", project: str | None = None, **environ: str
) -> Configuration:
    work = folder / "work"
    work.mkdir(parents=True)
    (folder / "config.toml").write_text(user)
    if project is not None:
        (work / "mlx-tools.toml").write_text(project)
    return load(cwd=work, user_file=folder / "config.toml", home=folder, environ=environ)


def test_the_defaults_of_the_settings_are_those_of_the_library(tmp_path: Path) -> None:
    own, library = loaded(tmp_path).settings.web, WebOptions()
    assert own.timeout_ms == library.seconds * 1000
    assert own.max_kb * 1000 == library.max_bytes
    assert (own.domains, own.blocked_domains) == (library.domains, library.blocked_domains)
    assert own.search_engines == library.engines


def test_the_settings_reach_the_tools(tmp_path: Path) -> None:
    configuration = loaded(tmp_path, USER)
    assert registry_of(configuration).all_specs()["fetch_url"]
    options = WebOptions(domains=configuration.settings.web.domains, max_bytes=100_000)
    fetcher = options.fetcher()
    assert fetcher.domains == ("example.org", "b.net") and fetcher.max_bytes == 100_000


def test_the_environment_writes_lists_with_commas(tmp_path: Path) -> None:
    variables = {
        "MLX_TOOLS_WEB_DOMAINS": "a.org, b.org",
        "MLX_TOOLS_WEB_BLOCKED_DOMAINS": "c.org",
        "MLX_TOOLS_WEB_SEARCH_ENGINES": "brave",
        "MLX_TOOLS_WEB_MAX_KB": "7",
    }
    own = loaded(tmp_path, USER, None, **variables).settings.web
    assert own.domains == ("a.org", "b.org") and own.max_kb == 7
    assert own.blocked_domains == ("bad.example.org", "c.org")
    assert own.search_engines == ("brave",)


@pytest.mark.parametrize(
    "line",
    [
        *('domains = ["https://a.org"]', 'domains = ["a b"]', 'domains = "a.org"', "domains = [1]"),
        *('blocked_domains = ["a.org:80"]', 'search_engines = ["auto"]', "search_engines = []"),
        *("timeout_ms = 0", "max_kb = 0", "max_kb = 20001", "nonsense = 1"),
    ],
)
def test_what_is_no_value_is_a_fault_that_names_the_key(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        loaded(tmp_path, f"[web]\n{line}\n")
    (problem,) = caught.value.problems
    assert f"web.{line.split(' ')[0]}" in problem and "allowed" in problem


def test_a_projects_file_can_only_tighten(tmp_path: Path) -> None:
    tighter = '[web]\nmax_kb = 50\nblocked_domains = ["x.org"]\n'
    own = loaded(tmp_path / "a", USER, tighter).settings.web
    assert own.max_kb == 50 and own.blocked_domains == ("bad.example.org", "x.org")
    for line in ("max_kb = 200", "domains = []", 'search_engines = ["brave"]', "timeout_ms = 9000"):
        with pytest.raises(ConfigErrors):
            loaded(tmp_path / line.split(" ")[0], USER, f"[web]\n{line}\n")


def test_a_domain_that_is_none_is_the_callers_fault() -> None:
    with pytest.raises(UsageError, match=r"web\.blocked_domains"):
        WebOptions(blocked_domains=("a b",)).fetcher()
