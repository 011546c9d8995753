"""Settings: which source wins, what a project's file may do, and what the errors say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.app import build_registry, config
from mlx_tools.app.config import ConfigErrors
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import PRESETS, Limits, Policy, decide

# --- defaults -----------------------------------------------------------------------------------


def test_every_setting_has_a_default_or_may_be_without_a_value() -> None:
    given_values = config.defaults().values
    missing = {k for k, row in config.table().items() if k not in given_values and not row.optional}
    missing -= {"policy.allow"}
    assert missing == set()
    assert config.defaults().problems == ()


def test_the_defaults_are_the_librarys_limits_and_the_read_only_preset(place: Any) -> None:
    loaded = place.load()
    assert loaded.limits() == Limits() and loaded.policy() == Policy(preset="readonly_basic")


def test_every_setting_has_a_variable_of_its_own() -> None:
    names = [row.env for row in config.table().values()]
    assert len(set(names)) == len(names)
    assert {
        "PLUGIN_MLX_TOOLS_ENABLED",
        "MLX_TOOLS_MAX_ITERATIONS",
        "MLX_TOOLS_MODEL_PROMPT_STYLE",
        "MLX_TOOLS_ALLOWED_TOOLS",
        "MLX_TOOLS_TOOL_TIMEOUT_MS",
        "MLX_TOOLS_TOTAL_TIMEOUT_MS",
        "MLX_TOOLS_DRY_RUN",
        "ROUTING_LOCAL_ENABLED",
    } <= set(names)


# --- order --------------------------------------------------------------------------------------


def test_each_source_goes_over_the_one_before(place: Any) -> None:
    user = "[limits]\nmax_iterations = 9\n[model]\nprompt_style = 'xml'\n"
    project = "[limits]\nmax_iterations = 8\n"
    environ = {"MLX_TOOLS_MAX_ITERATIONS": "7"}
    options = {"limits.max_iterations": "6"}

    def found(*sources: object) -> tuple[int, str]:
        loaded = place.load(*sources)  # type: ignore[arg-type]
        origin = loaded.origins["limits.max_iterations"][-1]
        return loaded.settings.limits.max_iterations, origin.kind

    assert found() == (24, "default")
    assert found(user) == (9, "user")
    assert found(user, project) == (8, "project")
    assert found(user, project, environ) == (7, "environment")
    assert found(user, project, environ, options) == (6, "option")
    assert place.load(user, project).settings.model.prompt_style == "xml"


def test_the_origin_names_the_file_the_variable_or_the_option(place: Any) -> None:
    loaded = place.load(
        "[model]\nseed = 1\n",
        "[policy]\ndry_run = true\n",
        {"MLX_TOOLS_TOOL_TIMEOUT_MS": "100"},
        {"model.temperature": "0.5"},
    )
    assert loaded.describe_origin("model.seed") == f"{place.user}: model.seed"
    assert loaded.describe_origin("policy.dry_run") == f"{place.project}: policy.dry_run"
    assert loaded.describe_origin("limits.tool_timeout_ms") == "MLX_TOOLS_TOOL_TIMEOUT_MS"
    assert loaded.describe_origin("model.temperature") == "--temperature"
    assert loaded.files == (str(place.user), str(place.project))


def test_a_list_of_tools_replaces_a_preset_and_a_preset_a_list(place: Any) -> None:
    assert place.load("[policy]\nallow = ['clock']\n").policy() == Policy(allow=["clock"])
    environ = {"MLX_TOOLS_POLICY_PRESET": "readonly_files"}
    loaded = place.load("[policy]\nallow = ['clock']\n", environ=environ)
    assert loaded.policy() == Policy(preset="readonly_files")


@pytest.mark.parametrize("name", ["MLX_TOOLS_ALLOWED_TOOLS", "MLX_TOOLS_POLICY_PRESET"])
def test_an_empty_choice_of_tools_allows_nothing(place: Any, name: str) -> None:
    assert place.load(environ={name: ""}).policy() == Policy()


def test_what_is_denied_adds_up_over_all_sources(place: Any) -> None:
    loaded = place.load(
        "[policy]\ndeny = ['a']\n", "[policy]\ndeny = ['b']\n", {"MLX_TOOLS_POLICY_DENY": "c, a"}
    )
    assert loaded.policy().deny == ("a", "b", "c")
    kinds = [origin.kind for origin in loaded.origins["policy.deny"]]
    assert kinds == ["default", "user", "project", "environment"]


def test_an_options_time_is_in_seconds(place: Any) -> None:
    loaded = place.load(options={"limits.total_timeout_ms": "2.5"})
    assert loaded.settings.limits.total_timeout_ms == 2500
    assert loaded.limits().total_timeout == 2.5


@pytest.mark.parametrize("key", ["backend.url", "model.name", "model.seed", "policy.preset"])
def test_an_option_without_a_value_is_a_fault(place: Any, key: str) -> None:
    """`--url "$UNSET"` names no address: it must not mean "any server there is"."""
    with pytest.raises(ConfigErrors, match="'' is not allowed"):
        place.load(options={key: ""})


@pytest.mark.parametrize("word", ["true", "TRUE", "1", "yes", "On"])
def test_the_usual_words_switch_on(place: Any, word: str) -> None:
    assert place.load(environ={"MLX_TOOLS_DRY_RUN": word}).settings.policy.dry_run


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("[limits]\nmax_iterations = 0\n", "limits.max_iterations", "an integer from 1 to 1000"),
        ("[limits]\nmax_iterations = '5'\n", "limits.max_iterations", "an integer"),
        ("[limits]\nmax_iterations = true\n", "limits.max_iterations", "an integer"),
        ("[limits]\nmax_iterations = 5.0\n", "limits.max_iterations", "an integer"),
        ("[model]\ntemperature = nan\n", "model.temperature", "a number from 0 to 2"),
        ("[model]\nprompt_style = 'jsnl'\n", "model.prompt_style", "did you mean jsonl?"),
        ("[model]\nreasoning = 0\n", "model.reasoning", "off, auto or an integer"),
        ("[policy]\ndry_run = 'yes'\n", "policy.dry_run", "true or false"),
        ("[policy]\nallow = 'clock'\n", "policy.allow", "a list of tools"),
        ("[policy]\nallow = ['a b']\n", "policy.allow", "a list of tools"),
        ("[policy]\npreset = 'all'\n", "policy.preset", ", ".join(PRESETS)),
        ("[backend]\nurl = 'ftp://x'\n", "backend.url", "http://127.0.0.1:8080"),
        ("[backend]\nurl = 'http://u:p@x'\n", "backend.url", "http://127.0.0.1:8080"),
        ("[limits]\nmax_iteration = 3\n", "limits.max_iteration", "limits.max_iterations"),
        ("[polcy]\nallow = []\n", "polcy", "did you mean policy?"),
        ("[policy]\nseed = 3\n", "policy.seed", "did you mean model.seed?"),
        ("[gateway]\nxy = 3\n", "gateway.xy", "allowed here: gateway.host"),
        ("limits = 3\n", "limits", "[limits]"),
        ("[policy]\nrate_limits = ['x']\n", "policy.rate_limits", "10/minute"),
        ("[policy]\nrate_limits = {x = 3}\n", "policy.rate_limits", "10/minute"),
        ("[policy]\nrate_limits = {x = '3/fortnight'}\n", "policy.rate_limits", "10/minute"),
        ("[policy]\nrate_limits = {'a b' = '3/hour'}\n", "policy.rate_limits", "10/minute"),
        ("[policy]\nrate_limits.session = '0/hour'\n", "policy.rate_limits", "calls/unit"),
        ("[policy]\nnetwork_after_read = 'never'\n", "policy.network_after_read", "deny, ask"),
        ("[runs]\nwebhooks = {'https://a.org/x' = 'whsec_x'}\n", "runs.webhooks", "whsec_…"),
        ("[policy]\nask_effects = ['read']\n", "policy.ask_effects", "write, execute, network"),
    ],
)
def test_a_fault_in_a_file_names_file_key_and_what_is_allowed(
    place: Any, text: str, key: str, said: str
) -> None:
    (problem,) = place.problems(text)
    assert problem.startswith(f"{place.user}: {key}: ")
    assert said in problem
    assert "\n" not in problem


def test_all_faults_of_all_sources_are_told_at_once(place: Any) -> None:
    found = place.problems(
        "x = 1\n[limits]\nmax_iterations = 0\n",
        "[limits]\nmax_tokens = 0\n",
        {"MLX_TOOLS_DRY_RUN": "maybe"},
        {"limits.total_timeout_ms": "-1"},
    )
    assert len(found) == 5


def test_broken_toml_is_told_with_its_line(place: Any) -> None:
    (problem,) = place.problems("[limits]\nmax_iterations =\n")
    assert problem.startswith(f"{place.user}: not TOML: ") and "line 2" in problem


def test_what_is_no_text_or_no_file_is_a_fault(place: Any) -> None:
    for data in (b"\xff\xfe", b"\x00"):
        place.user.write_bytes(data)
        with pytest.raises(ConfigErrors, match=r"config\.toml"):
            place.read()
    place.user.unlink()
    place.project.mkdir()
    with pytest.raises(ConfigErrors, match="not a regular file"):
        place.read()
    place.project.rmdir()
    place.project.symlink_to("nowhere")
    with pytest.raises(ConfigErrors, match="No such file"):
        place.read()


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("MLX_TOOLS_MAX_ITERATION", "MLX_TOOLS_MAX_ITERATIONS"),
        ("MLX_TOOLS_LIMITS_MAX_ITERATIONS", "MLX_TOOLS_MAX_ITERATIONS"),
        ("MLX_TOOLS_POLICY_DRY_RUN", "MLX_TOOLS_DRY_RUN"),
        ("MLX_TOOLS_DRYRUN", "MLX_TOOLS_DRY_RUN"),
        ("PLUGIN_MLX_TOOLS_ENABLE", "PLUGIN_MLX_TOOLS_ENABLED"),
        ("ROUTING_LOCAL_ENABLE", "ROUTING_LOCAL_ENABLED"),
    ],
)
def test_a_misspelt_variable_is_a_fault_that_names_the_right_one(
    place: Any, name: str, guess: str
) -> None:
    (problem,) = place.problems(environ={name: "1"})
    assert problem.startswith(f"{name}: ") and guess in problem


def test_a_foreign_variable_with_our_prefix_is_a_warning(place: Any) -> None:
    loaded = place.load(environ={"MLX_TOOLS_WORKSPACE_OF_CI": "x", "MLX_TOOLS_SUITES": "/s"})
    assert [w.partition(":")[0] for w in loaded.warnings] == ["MLX_TOOLS_WORKSPACE_OF_CI"]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("limits.max_iterations", ""),
        ("limits.max_iterations", "1e2"),
        ("limits.max_iterations", "9" * 5000),
        ("limits.max_iterations", "٣"),
        ("model.temperature", "inf"),
        ("model.temperature", ""),
        ("policy.dry_run", ""),
        ("model.prompt_style", ""),
    ],
)
def test_text_that_is_no_value_is_a_fault(place: Any, key: str, text: str) -> None:
    row = config.table()[key]
    (problem,) = place.problems(environ={row.env: text})
    assert problem.startswith(f"{row.env}: ") and row.allowed() in problem


@given(st.text(max_size=30))
def test_reading_any_text_gives_a_value_that_is_allowed_or_value_error(text: str) -> None:
    for row in config.table().values():
        try:
            value = row.read(text)
        except ValueError:
            continue
        assert value is None or row.check(value) == value


RATES = """
[policy.rate_limits]
session = "100/hour"
web_search = "10/minute"
"notes_*" = "100/hour"
"plugin:weather/*" = "1/day"
"""


# --- a project's file ---------------------------------------------------------------------------


def test_every_project_file_up_to_home_holds(place: Any) -> None:
    outer = place.home / "mlx-tools.toml"
    outer.write_text(
        "[policy]\nallow = ['clock']\ndeny = ['a']\n[limits]\nmax_iterations = 3\n"
        "[model]\nprompt_style = 'xml'\nseed = 1\n"
    )
    inner = place.cwd / "mlx-tools.toml"
    inner.touch()
    for text in (
        "",
        "[policy]\ndeny = ['b']\n[limits]\nmax_iterations = 1\n[model]\nseed = 2\n",
    ):
        loaded = place.load(project=text)
        allows = ToolSpec("clock", effects=frozenset({"read"})), ToolSpec("calculator")
        decided = [decide(loaded.policy(), s, s.name, {}, runs="freely") for s in allows]
        assert [one.decision for one in decided] == ["allow", "deny"]
        assert loaded.settings.model.prompt_style == "xml"
        if not text:
            assert (loaded.policy().deny, loaded.settings.limits.max_iterations) == (("a",), 3)
            continue
        assert loaded.policy().deny == ("a", "b")
        assert loaded.settings.limits.max_iterations == 1 and loaded.settings.model.seed == 2
        assert loaded.files == (str(outer), str(place.project), str(inner))
        assert loaded.describe_origin("policy.deny") == (
            f"{outer}: policy.deny + {place.project}: policy.deny"
        )
        assert loaded.describe_origin("model.seed") == f"{place.project}: model.seed"
        assert loaded.describe_origin("policy.allow") == f"{outer}: policy.allow"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("limits.max_iterations = 1", "limits.max_iterations = 2"),
        ("policy.allow = ['clock']", "policy.allow = ['calculator']"),
        ("policy.allow = []", "policy.preset = 'readonly_basic'"),
        ("policy.dry_run = true", "policy.dry_run = false"),
        ("policy.approve = 'never'", "policy.approve = 'auto'"),
    ],
)
def test_a_project_file_that_would_loosen_one_above_it_is_a_fault(
    place: Any, outer: str, inner: str
) -> None:
    (place.home / "mlx-tools.toml").write_text(outer)
    (problem,) = place.problems(project=inner)
    key = inner.partition(" ")[0]
    assert problem.startswith(f"{place.project}: {key}: a project's file can only tighten this")


def test_a_project_file_above_home_is_not_read(place: Any) -> None:
    (place.home.parent / "mlx-tools.toml").write_text("[limits]\nmax_iterations = 1\n")
    assert place.load().settings.limits.max_iterations == 24


def test_a_project_file_may_tighten(place: Any) -> None:
    loaded = place.load(
        "[policy]\napprove = 'always'\n",
        "enabled = false\n[routing]\nlocal_enabled = false\n[policy]\nallow = ['clock']\n"
        "deny = ['notes_*']\nask = ['*']\ndry_run = true\nlocal_only = true\napprove = 'never'\n"
        "[limits]\nmax_iterations = 2\ntool_timeout_ms = 5\n"
        "[model]\nprompt_style = 'xml'\n[prompt]\nproject_context = 'A.'\n",
    )
    settings = loaded.settings
    assert not settings.enabled and not settings.routing.local_enabled
    assert settings.policy.approve == "never" and settings.limits.max_iterations == 2
    assert loaded.policy().local_only and loaded.policy().dry_run


@pytest.mark.parametrize("name", ["hosts", "origins"])
def test_no_wildcard_opens_the_gateway_to_several(place: Any, name: str) -> None:
    for wrong in ("*", "*.example.com", "https://*.example.com"):
        with pytest.raises(ConfigErrors, match="without wildcards"):
            place.load(f"[gateway]\n{name} = ['{wrong}']\n", "")


def test_local_hosts_are_the_users_to_open(place: Any) -> None:
    loaded = place.load("[web]\nlocal_hosts = ['LocalHost:8080', '[::1]:80']\n", "")
    assert loaded.section("web").local_hosts == ("LocalHost:8080", "[::1]:80")
    assert build_registry(loaded).get("fetch_url")
    for wrong in ("localhost", "http://localhost:80", "localhost:80/x", "a b:80", ":80", "x:99999"):
        with pytest.raises(ConfigErrors, match="each with its port"):
            place.load(f"[web]\nlocal_hosts = ['{wrong}']\n", "")


@pytest.mark.parametrize(
    ("user", "project"),
    [
        ("", "web.local_hosts = ['localhost:8080']"),
        ("", "policy.allow = ['run_command']"),
        ("", "policy.allow = ['*']"),
        ("", "policy.allow = ['plugin:x']"),
        ("policy.allow = ['notes_*']", "policy.allow = ['n*']"),
        ("policy.allow = ['clock']", "policy.preset = 'readonly_basic'"),
        ("policy.dry_run = true", "policy.dry_run = false"),
        ("policy.local_only = true", "policy.local_only = false"),
        ("", "policy.approve = 'always'"),
        ("policy.approve = 'never'", "policy.approve = 'ask'"),
        ("", "limits.max_iterations = 25"),
        ("limits.max_observation_chars = 9999", "limits.max_observation_chars = 100000"),
        ("enabled = false", "enabled = true"),
        ("", "tools.roots = ['/']"),
        ("", "web.searxng = 'http://127.0.0.1:1'"),
        ("policy.redact_paths = true", "policy.redact_paths = false"),
        ("", "policy.ask_effects = ['write']"),
        ("policy.network_after_read = 'ask'", "policy.network_after_read = 'allow'"),
        ("", "backend.url = 'http://evil.example'"),
        ("", "backend.kind = 'completions'"),
        ("", "backend.api_key = 'x'"),
        ("", "model.name = '/tmp/model'"),
        ("", "model.chat_format = 'plain'"),
        ("", "prompt.system = 'x'"),
        ("", "artifacts.keep_days = 30"),
    ],
)
def test_a_project_file_that_would_loosen_is_a_fault(place: Any, user: str, project: str) -> None:
    (problem,) = place.problems(user, project)
    key = project.partition(" ")[0]
    assert problem.startswith(f"{place.project}: {key}: a project's file")


@pytest.mark.parametrize(
    "rate", ["web_search = '11/minute'", "'notes_*' = '2000/day'", "session = '101/hour'"]
)
def test_a_project_file_that_would_raise_a_rate_is_a_fault(place: Any, rate: str) -> None:
    (problem,) = place.problems(RATES, f"policy.rate_limits = {{{rate}}}")
    tool = rate.partition(" ")[0].strip("'")
    assert problem.startswith(f"{place.project}: policy.rate_limits: {tool}: a project's file")


PLUGINS = ["plugin:weather", "plugin:weather/get_*", "plugin:w*", "plugin:*"]


@pytest.mark.parametrize("key", ["policy.allow", "policy.deny", "policy.ask"])
def test_tools_may_be_named_by_their_plugin_wherever_tools_are_named(place: Any, key: str) -> None:
    section, name = key.split(".")
    in_file = place.load(f"[{section}]\n{name} = {PLUGINS}\n")
    variable = config.table()[key].env
    in_environment = place.load(environ={variable: ",".join(PLUGINS)})
    for loaded in (in_file, in_environment):
        assert getattr(getattr(loaded.settings, section), name) == tuple(PLUGINS)
    for wrong in ("plugin:", "plugin:a/", "plugin:a/b/c", "plugin:a b"):
        (problem,) = place.problems(f"[{section}]\n{name} = ['{wrong}']\n")
        assert problem.startswith(f"{place.user}: {key}: ") and "plugin:NAME/TOOL" in problem


def test_a_plugin_that_is_named_is_what_the_policy_goes_by(place: Any) -> None:
    look = ToolSpec("get_rain", effects=frozenset({"read"}), plugin="weather")
    other = ToolSpec("get_rain", effects=frozenset({"read"}), plugin="other")
    allowing = place.load("[policy]\nallow = ['plugin:weather']\n").policy()
    denying = place.load("[policy]\nallow = ['*']\ndeny = ['plugin:weather/get_*']\n").policy()
    for policy, expected in ((allowing, ("allow", "deny")), (denying, ("deny", "allow"))):
        decisions = [decide(policy, s, s.name, {}, runs="freely").decision for s in (look, other)]
        assert tuple(decisions) == expected


def test_a_project_file_may_allow_some_tools_of_a_plugin_that_is_allowed(place: Any) -> None:
    user, project = "[policy]\nallow = ['{}']\n", "[policy]\nallow = ['plugin:w/get_*']\n"
    policy = place.load(user.format("plugin:w"), project).policy()
    for name, expected in (("get_rain", "allow"), ("set_rain", "deny")):
        spec = ToolSpec(name, effects=frozenset({"read"}), plugin="w")
        assert decide(policy, spec, name, {}, runs="freely").decision == expected
    for other in ("plugin:v", "plugin:w/set_*", "get_*"):
        assert place.problems(user.format(other), project)


def test_every_setting_says_what_a_project_file_may_do_with_it() -> None:
    powerful = {key for key, row in config.table().items() if row.setting.project == "any"}
    assert powerful == {
        "model.prompt_style",
        "model.reasoning",
        "model.response_mode",
        "model.long_observations",
        "model.context",
        "model.compact",
        "model.temperature",
        "model.seed",
        "prompt.project_context",
    }


def test_a_project_list_keeps_the_ceiling_of_the_preset_it_narrows(place: Any) -> None:
    spec = ToolSpec("file_access", effects=frozenset({"write"}))
    policy = place.load(project="[policy]\nallow = ['file_access']\n").policy()
    assert decide(policy, spec, spec.name, {}, runs="freely").decision == "deny"


NAMES = ["calculator", "clock", "file_access", "run_command", "plugin:x", "plugin:x/c*", "c*", "*"]
LISTS = st.none() | st.lists(st.sampled_from(NAMES), max_size=3)


@given(user=LISTS, project=LISTS, effect=st.sampled_from(["read", "write", "network"]))
def test_no_project_file_allows_what_was_not_allowed_without_it(
    user: list[str] | None, project: list[str] | None, effect: str
) -> None:
    def layer(kind: str, allow: list[str] | None) -> object:
        values = {} if allow is None else {"policy.allow": tuple(allow)}
        return config.Layer(kind, kind, values, {k: k for k in values})  # type: ignore[arg-type]

    layers = [config.defaults(), layer("user", user)]
    before = config.merge(layers).policy()  # type: ignore[arg-type]
    try:
        after = config.merge([*layers, layer("project", project)]).policy()  # type: ignore[list-item]
    except ConfigErrors:
        return
    for name in ("calculator", "clock", "file_access", "run_command", "cat"):
        spec = ToolSpec(name, effects=frozenset({effect}), plugin="x")  # type: ignore[arg-type]
        if decide(after, spec, name, {}, runs="freely").decision == "allow":
            assert decide(before, spec, name, {}, runs="freely").decision == "allow"


# --- secrets ------------------------------------------------------------------------------------


def test_a_key_in_a_file_that_others_can_read_is_a_warning(place: Any) -> None:
    text = "[backend]\napi_key = 'hush'\n"
    assert place.load(text).warnings == ()
    place.user.chmod(0o644)
    loaded = place.read()
    (warning,) = loaded.warnings
    assert "chmod 600" in warning and "hush" not in warning


def test_a_key_of_another_variable_is_read_only_where_that_is_asked_for(place: Any) -> None:
    named = "[backend]\napi_key = '${OPENAI_API_KEY}'\n"
    environ = {"OPENAI_API_KEY": "hush"}
    assert place.load("", environ=environ).settings.backend.api_key is None
    place.user.write_text(named)
    place.user.chmod(0o644)  # it holds no key
    loaded = place.read(environ=environ)
    assert (loaded.settings.backend.api_key, loaded.warnings) == ("hush", ())
    for environ in ({}, {"OPENAI_API_KEY": "hush hush"}):
        (fault,) = place.problems(named, environ=environ)
        assert fault.endswith("backend.api_key: the variable OPENAI_API_KEY holds no key")


def test_a_bad_key_is_not_shown(place: Any) -> None:
    found = place.problems(
        "[backend]\napi_key = 'hush hush'\n", environ={"MLX_TOOLS_BACKEND_API_KEY": "hush hush"}
    )
    assert len(found) == 2 and not any("hush" in problem for problem in found)


def test_the_settings_do_not_show_the_key_when_printed(place: Any) -> None:
    loaded = place.load("[backend]\napi_key = 'hush'\n")
    assert "hush" not in repr(loaded.settings)
