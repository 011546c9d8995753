"""Operations of OpenAPI documents as bound tools: what is read, and what is sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from mlx_tools.errors import UsageError
from mlx_tools.messages import replace
from mlx_tools.plugins.openapi.document import (
    MAX_SCHEMA_CHARS,
    MAX_TOTAL_CHARS,
    MAX_YAML_BYTES,
    OpenApiDocument,
    OperationRefused,
    read_document,
    with_effects,
)
from mlx_tools.plugins.openapi.request import make_operation, parse_secret
from mlx_tools.schema import fits
from mlx_tools.tools import BoundSource, BoundTool, execute

SECRET = "s3cr3t-of-mine"


def _document(paths: dict[str, Any], version: str = "3.1.0", **more: Any) -> bytes:
    value = {"openapi": version, "info": {"title": "Zoo", "version": "1.2"}, "paths": paths}
    return json.dumps({"servers": [{"url": "https://zoo.test/v1/"}], **value, **more}).encode()


def _tools(paths: dict[str, Any], **more: Any) -> dict[str, BoundTool | OperationRefused]:
    return dict(read_document(_document(paths, **more), "zoo.json").operations())


def _tool(operation: dict[str, Any], path: str = "/a", method: str = "get", **more: Any) -> Any:
    return next(iter(_tools({path: {method: operation}}, **more).values()))


def _sent(
    tool: BoundTool,
    arguments: dict[str, Any],
    *,
    environ: dict[str, str] | None = None,
    answer: httpx.Response | httpx.HTTPError | None = None,
    **at: Any,
) -> tuple[list[httpx.Request], Any]:
    seen: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return answer or httpx.Response(200, json={"said": "ok"})

    where = {"server": "https://zoo.test/v1", "secrets": {}, **at}
    source = BoundSource(name="zoo", kind="openapi", location=where, tools=(tool,))
    made = make_operation(source, tool, environ or {}, httpx.MockTransport(respond))
    result = asyncio.run(execute(made, arguments, timeout=120))
    return seen, result


def _takes(schema: Any, media: str = "application/json", **more: Any) -> dict[str, Any]:
    """The part of an operation that has such a body."""
    return {"requestBody": {"content": {media: {"schema": schema}}, **more}}


def _parameter(name: str, place: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "schema": {"type": "string"}} | more


def test_a_tool_has_the_operations_words_parameters_and_effects() -> None:
    operation = {
        "operationId": "find",
        "summary": "Find an animal.",
        "description": "By its name.",
        "parameters": [
            _parameter("name", "query", required=True, description="Its name."),
            _parameter("name", "header"),
            _parameter("Accept", "header"),
        ],
    }
    tool = _tool(operation)
    assert (tool.name, tool.description) == ("find", "Find an animal.\nBy its name.")
    assert tool.effects == ("network", "read")
    assert tool.parameters["properties"] == {
        "name": {"type": "string", "description": "Its name."},
        "name_header": {"type": "string"},
    }
    assert tool.parameters["required"] == ["name"]
    assert tool.parameters["additionalProperties"] is False


def test_whatever_is_no_get_writes_and_effects_are_said_to_be_more_never_less() -> None:
    for method in ("post", "put", "patch", "delete", "options", "trace"):
        writes = _tool({"operationId": "x"}, method=method)
        assert writes.effects == ("network", "write")
        assert with_effects(writes, writes=False).effects == ("network", "write")
    assert with_effects(_tool({}), writes=True).effects == ("network", "read", "write")


def test_references_come_along_also_where_they_go_in_circles() -> None:
    node = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
        },
    }
    body = _takes({"$ref": "#/components/schemas/Node"}, required=True)
    tool = _tool(body, method="post", components={"schemas": {"Node": node}})
    good = {"body": {"name": "a", "children": [{"name": "b"}]}}
    assert fits(good, tool.parameters)
    assert not fits({"body": {"name": "a", "children": [{}]}}, tool.parameters)
    assert not fits({}, tool.parameters)


@pytest.mark.parametrize(
    "said",
    [
        {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
        *({key: [{"type": "integer", "minimum": 2}]} for key in ("allOf", "anyOf", "oneOf")),
    ],
)
def test_what_version_3_0_says_otherwise_is_written_anew(said: dict[str, Any]) -> None:
    operation = {"parameters": [_parameter("n", "query", schema={**said, "nullable": True})]}
    tool = _tool(operation, version="3.0.3")
    for value, right in ((2, True), (None, True), (1, False), ("2", False)):
        assert fits({"n": value}, tool.parameters) is right


def test_what_only_a_server_says_is_not_asked_for() -> None:
    schema = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {"id": {"type": "integer", "readOnly": True}, "name": {"type": "string"}},
    }
    tool = _tool(_takes(schema), method="post")
    assert tool.parameters["properties"]["body"]["required"] == ["name"]
    assert set(tool.parameters["properties"]["body"]["properties"]) == {"name"}


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (_takes({}, "multipart/form-data"), "multipart/form-data, not JSON"),
        ({"parameters": [_parameter("a", "query", style="matrix")]}, "the style matrix"),
        ({"parameters": [{"$ref": "other.yaml#/a"}]}, "points outside"),
        ({"parameters": [{"$ref": "#/components/nothing"}]}, "points to nothing"),
        ({"parameters": [{"in": "query"}]}, "described wrongly"),
        ({"parameters": [_parameter("a", "query", schema={"type": "odd"})]}, "odd"),
    ],
)
def test_an_operation_that_cannot_be_a_tool_says_why(operation: dict[str, Any], why: str) -> None:
    refused = _tool(operation, method="post")
    assert isinstance(refused, OperationRefused)
    assert why in refused.message


def test_a_part_of_the_path_that_nothing_fills_is_not_left_out_of_the_request() -> None:
    operation = {"parameters": [_parameter("id", "query"), _parameter("shop", "path")]}
    refused = _tool(operation, path="/{shop}/items/{id}", method="delete")
    assert isinstance(refused, OperationRefused) and "{id} of its path" in refused.message
    bound = _tool({}, method="delete")  # by a version that did not refuse it
    bound = replace(bound, location={**bound.location, "path": "/items/{id}"})
    seen, result = _sent(bound, {})
    assert not seen and "nothing was sent" in result.error.message


def test_one_part_that_is_described_wrongly_costs_no_other() -> None:
    paths = {
        "/a": {"get": {"responses": {}, "security": [{"key": []}]}},
        "/b": {"$ref": "other.yaml#/b"},
        "/c": {"$ref": "#/openapi"},
    }
    key = {"type": "apiKey", "in": "header", "name": "X-Key"}
    schemes = {"key": key, "other": {"$ref": "other.yaml#/o"}, "none": 7}
    tools = _tools(paths, components={"securitySchemes": schemes})
    assert isinstance(tools["get /a"], BoundTool)
    outside, wrong = tools["/b"], tools["/c"]
    assert isinstance(outside, OperationRefused) and "points outside" in outside.message
    assert isinstance(wrong, OperationRefused) and "described wrongly" in wrong.message
    more: Any
    for more in ("https://zoo.test", [None], [{"url": "x", "variables": 1}], 7):
        assert read_document(_document(paths, servers=more), "zoo.json").server == ""


def test_yaml_is_read_as_json_would_say_it() -> None:
    text = (
        "openapi: 3.1.0\ninfo: {title: no, version: 2024-01-01}\n"
        "paths:\n  /a:\n    get: {operationId: on, parameters: []}\n"
    )
    document = read_document(text.encode(), "zoo.yaml")
    assert (document.title, document.version) == ("no", "2024-01-01")
    assert [name for name, _ in document.operations()] == ["on"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"swagger": "2.0"}', "Swagger 2.0"),
        (b"{", "neither JSON nor YAML"),
        (b"\xff", "neither JSON nor YAML"),
        (b"[1]", "no OpenAPI document"),
        (b"openapi: 3.1.0\na: &a [1]\nb: *a\n", "says a part again"),
        (b"openapi: !!python/object/apply:os.system [ls]\n", "neither JSON nor YAML"),
        (b'{"openapi": "4.0.0"}', "no OpenAPI document"),
    ],
)
def test_anything_else_is_a_clear_error(data: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_document(data, "zoo")


def test_yaml_that_would_take_minutes_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"larger than 10 MB, .* as YAML .convert it to JSON"):
        read_document(b"openapi: 3.1.0\n#" + b" " * MAX_YAML_BYTES, "zoo")


def test_arguments_stand_where_they_belong() -> None:
    tool = _tool(
        {
            "parameters": [
                _parameter("id", "path"),
                _parameter("tags", "query", schema={"type": "array"}),
                _parameter("ids", "query", explode=False, schema={"type": "array"}),
                _parameter("at", "query", style="deepObject", schema={"type": "object"}),
                _parameter("X-Trace", "header"),
                _parameter("who", "cookie"),
            ],
            **_takes({}),
        },
        path="/animals/{id}/feed",
        method="post",
    )
    arguments = {
        "id": "a/b ?c",
        "tags": ["x y", "z"],
        "ids": [1, 2],
        "at": {"k": True},
        "X-Trace": "t",
        "who": "m e",
        "body": {"ü": 1.5},
    }
    (request,), result = _sent(tool, arguments)
    assert request.method == "POST"
    query = "tags=x%20y&tags=z&ids=1%2C2&at%5Bk%5D=true"
    assert request.url.raw_path.decode() == f"/v1/animals/a%2Fb%20%3Fc/feed?{query}"
    assert request.url.host == "zoo.test"
    assert (request.headers["x-trace"], request.headers["cookie"]) == ("t", "who=m%20e")
    assert json.loads(request.content) == {"ü": 1.5}
    assert json.loads(result.content) == {"status": 200, "body": {"said": "ok"}}


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        *(("path", part, "part of the path") for part in ("..", ".", "")),
        ("header", "a\r\nHost: evil", "printable ASCII"),
    ],
)
def test_no_argument_leads_to_another_path_or_header(place: str, value: str, said: str) -> None:
    path = "/animals/{id}" if place == "path" else "/animals"
    tool = _tool({"parameters": [_parameter("id", place)]}, path=path)
    requests, result = _sent(tool, {"id": value})
    assert not requests and said in result.error.message


@pytest.mark.parametrize(
    "path",
    [
        *("@127.0.0.2:1/x", ".evil.test/x", ":1/x", "x", "", "\\evil.test/x", "?x", "#x"),
        *("/a/../b", "/%2e%2e/b", "/%252e%252e/b", "/a b", "/a\\b", "/a#b", "/a\nb", "/a/."),
    ],
)
def test_a_path_that_could_name_another_host_or_go_up_is_refused_and_never_asked(path: str) -> None:
    refused = _tool({"security": [{"key": []}]}, path=path, components={"securitySchemes": SCHEMES})
    assert isinstance(refused, OperationRefused) and "its path" in refused.message
    # one that was agreed to before this was looked at
    before = _guarded("key")
    agreed = replace(before, location={**before.location, "path": path})
    requests, result = _sent(agreed, {}, **_named("key"))
    assert not requests and result.error.code == "not_allowed"


@pytest.mark.parametrize("value", ["..", "../x", "a/../x", "%2e%2e", "..\\x", "%2e%2e%2fx"])
def test_no_argument_goes_up(value: str) -> None:
    tool = _tool({"parameters": [_parameter("id", "path")]}, path="/animals/{id}")
    requests, result = _sent(tool, {"id": value})
    assert not requests and result.error is not None


def test_an_argument_that_makes_a_part_go_up_with_what_stands_beside_it_is_refused() -> None:
    parameters = [_parameter(name, "path") for name in "ab"]
    for path, arguments in (("/x/.{a}", {"a": "%2e"}), ("/x/{a}{b}", {"a": "%2", "b": "e"})):
        requests, result = _sent(_tool({"parameters": parameters}, path=path), arguments)
        assert not requests and result.error is not None


@pytest.mark.parametrize(
    "server",
    [
        *("https://zoo.test@evil.test", "https://u:p@zoo.test", "https://zoo.test\\@evil.test"),
        *("https://zoo.test?x=", "https://zoo.test#x", "https://zoo.test /x", "https://zoo\n.test"),
        *("https://zoо.test", "https://zoo.test:x", "https://zoo.test:1:2", "https:///x"),
        *(
            "https://zoo.test/../v1",
            "https://%65vil.test",
            "https:\\\\evil.test",
            "https:evil.test",
        ),
    ],
)
def test_a_server_that_is_not_plainly_one_host_is_refused(server: str) -> None:
    refused = _tool({"servers": [{"url": server}]})
    assert isinstance(refused, OperationRefused) and "its server" in refused.message
    before = _guarded("key")
    requests, result = _sent(before, {}, **_named("key", server=server))
    assert not requests and result.error is not None


RESERVED = (
    *("Host", "Transfer-Encoding", "Content-Length", "Cookie", "Connection", "Keep-Alive", "TE"),
    *("Trailer", "Upgrade", "Expect", "Proxy-Authorization", "Proxy-Connection", "Forwarded"),
    *("X-Forwarded-Host", "X-HTTP-Method-Override", "X_HTTP_Method_Override", "X-Original-URL"),
    *("host", "Content_Length", "Host ", "a:b", "", "X\r\nHost"),
)


@pytest.mark.parametrize("name", RESERVED)
def test_no_argument_fills_a_header_that_says_what_a_request_is(name: str) -> None:
    parameters = [_parameter(name, "header", required=True), _parameter("X-Trace", "header")]
    tool = _tool({"parameters": parameters})
    assert tool.parameters["properties"].keys() == {"X-Trace"}
    assert "required" not in tool.parameters
    # one that was agreed to before this was looked at
    (place,) = tool.location["parameters"]
    places = [place | {"argument": "h", "name": name}]
    schema = {"type": "object", "properties": {"h": {"type": "string"}}}
    agreed = replace(tool, location={**tool.location, "parameters": places}, parameters=schema)
    requests, result = _sent(agreed, {"h": "1"})
    assert not requests and result.error.code == "not_allowed"


def test_no_argument_stands_where_a_secret_does() -> None:
    places = (("X-KEY", "header"), ("key", "query"), ("X-Key", "query"))
    parameters = [_parameter(name, place) for name, place in places]
    operation = {"security": [{"key": []}, {"asked": []}], "parameters": parameters}
    tool = _tool(operation, components={"securitySchemes": SCHEMES})
    assert [(one["name"], one["in"]) for one in tool.location["parameters"]] == [("X-Key", "query")]
    mine = {"parameters": [_parameter("x-key", "header")]}
    (request,), _ = _sent(_tool(mine), {"x-key": "m"})
    assert request.headers.get_list("x-key") == ["m"]


SCHEMES: dict[str, Any] = {
    "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "asked": {"type": "apiKey", "in": "query", "name": "key"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "oauth": {"type": "oauth2", "flows": {}},
}


def _guarded(scheme: str) -> BoundTool:
    operation = {"security": [{scheme: []}]}
    return _tool(operation, components={"securitySchemes": SCHEMES})


ESCAPED = SECRET.replace("-", "\\u002d")
AS_JSON = {"content-type": "application/json"}


def _named(scheme: str, **more: Any) -> dict[str, Any]:
    """The place of the secret of a scheme."""
    return {"environ": {"ZOO": SECRET}, "secrets": {scheme: "env:ZOO"}, **more}


@pytest.mark.parametrize(
    ("scheme", "place", "value"),
    [
        ("key", "x-key", SECRET),
        ("bearer", "authorization", f"Bearer {SECRET}"),
        ("oauth", "authorization", f"Bearer {SECRET}"),
        ("basic", "authorization", "Basic czNjcjN0LW9mLW1pbmU="),
    ],
)
def test_a_secret_goes_where_its_scheme_says(scheme: str, place: str, value: str) -> None:
    (request,), _ = _sent(_guarded(scheme), {}, **_named(scheme))
    assert request.headers[place] == value


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, json={"you": [SECRET], SECRET: "key"}),
        httpx.Response(200, headers=AS_JSON, text=f'{{"you": "{ESCAPED}"}}'),
        httpx.Response(403, headers=AS_JSON, text=f'{{"you": "{ESCAPED}"}}'),
        httpx.Response(200, json={"authorization": "Basic czNjcjN0LW9mLW1pbmU="}),
        httpx.Response(500, text=f"bad {SECRET}"),
        httpx.Response(302, headers={"location": f"https://evil.test/?key={SECRET}"}),
        httpx.ConnectError(f"no way to /?key={SECRET}"),
    ],
)
def test_a_secret_that_a_server_sends_back_is_not_shown(
    answer: httpx.Response | httpx.HTTPError,
) -> None:
    (request,), result = _sent(_guarded("asked"), {}, answer=answer, **_named("asked"))
    assert request.url.params["key"] == SECRET
    told = f"{result.content} {result.error}"
    assert "[secret]" in told and SECRET not in told and ESCAPED not in told
    assert "czNjcjN0" not in told


def test_a_secret_that_is_a_number_is_not_shown_as_one() -> None:
    where = _named("asked") | {"environ": {"ZOO": "314159265358"}}
    answer = httpx.Response(200, json={"pin": 314159265358, "n": 2, "none": None, "on": True})
    _, result = _sent(_guarded("asked"), {}, answer=answer, **where)
    assert "314159265358" not in f"{result.content}" and "[secret]" in f"{result.content}"
    assert '"n":2,"none":null,"on":true' in result.content.replace(" ", "")


def test_an_answer_that_is_nested_too_deep_is_a_text() -> None:
    answer = httpx.Response(200, headers=AS_JSON, text="[" * 900 + f'"{SECRET}"' + "]" * 900)
    _, result = _sent(_guarded("asked"), {}, answer=answer, **_named("asked"))
    assert result.error is None and SECRET not in result.content and "[secret]" in result.content


def test_no_secret_goes_where_it_was_not_named_for() -> None:
    requests, result = _sent(_guarded("key"), {}, environ={"ZOO": SECRET})
    assert not requests
    assert "--secret key=env:VARIABLE" in result.error.message
    _, result = _sent(_guarded("key"), {}, secrets={"key": "env:ZOO"})
    assert "ZOO is not set" in result.error.message
    open_to_all = _tool({"security": []}, components={"securitySchemes": SCHEMES})
    (request,), _ = _sent(open_to_all, {}, environ={"ZOO": SECRET}, secrets={"key": "env:ZOO"})
    assert "x-key" not in request.headers


@pytest.mark.parametrize(
    ("server", "goes"),
    [("http://zoo.test", False), ("http://10.0.0.1", False), ("http://127.0.0.1:1", True)],
)
def test_a_secret_crosses_no_network_in_clear(server: str, goes: bool) -> None:
    requests, result = _sent(_guarded("key"), {}, **_named("key", server=server))
    assert len(requests) == goes
    assert goes or "in clear" in result.error.message


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(404, text="no such animal"), "HTTP 404 Not Found: no such animal"),
        (httpx.Response(302, headers={"location": "https://evil.test"}), "redirects to"),
        (httpx.Response(200, content=b"x" * 3_000_000), "more than 2000000 bytes"),
    ],
)
def test_a_failure_says_what_it_was(answer: httpx.Response, said: str) -> None:
    requests, result = _sent(_tool({}), {}, answer=answer)
    assert len(requests) == 1
    assert said in result.error.message


def test_an_approval_is_shown_what_would_be_sent_without_secrets() -> None:
    operation = {"security": [{"key": []}], **_takes({})}
    tool = _tool(operation, method="post", components={"securitySchemes": SCHEMES})
    at = {"server": "https://zoo.test", "secrets": {"key": "env:ZOO"}}
    source = BoundSource(name="zoo", kind="openapi", location=at, tools=(tool,))
    made = make_operation(source, tool, {"ZOO": SECRET})
    assert made.preview is not None
    shown = made.preview({"body": {"a": 1}})
    assert shown is not None
    assert shown.text == 'POST https://zoo.test/a\n\n{"a":1}'


def test_a_secrets_place_is_named_and_never_the_secret() -> None:
    assert parse_secret("key=env:ZOO") == ("key", "env:ZOO")
    assert parse_secret("key=keychain:zoo/me") == ("key", "keychain:zoo/me")
    for wrong in ("key", f"key={SECRET}", "key=env:", "key=keychain:zoo", "=env:ZOO"):
        with pytest.raises(UsageError, match="does not say where"):
            parse_secret(wrong)


def test_a_document_that_goes_deep_or_wide_is_bounded() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    schemas = {
        f"S{n}": {"properties": {"a": {"$ref": f"#/components/schemas/S{n + 1}"}}}
        for n in range(3000)
    }
    for schema in (deep, {"$ref": "#/components/schemas/S0"}):
        refused = _tool(_takes(schema), method="post", components={"schemas": schemas})
        assert isinstance(refused, OperationRefused)


def test_a_secret_of_the_keychain_is_looked_up_when_a_call_needs_it() -> None:
    keyring = pytest.importorskip("keyring")
    from keyring.backend import KeyringBackend
    from keyring.errors import KeyringLocked

    class Kept(KeyringBackend):
        priority = 1

        def get_password(self, service: str, username: str) -> str | None:
            if service == "locked":
                raise KeyringLocked("nobody is there to open it")
            return {("zoo/web", "me"): SECRET}.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            raise NotImplementedError

        def delete_password(self, service: str, username: str) -> None:
            raise NotImplementedError

    tool = _tool({"security": [{"key": []}]}, components={"securitySchemes": SCHEMES})
    before = keyring.get_keyring()
    keyring.set_keyring(Kept())
    try:
        (request,), _ = _sent(tool, {}, secrets={"key": "keychain:zoo/web/me"})
        assert request.headers["x-key"] == SECRET
        for place, said in (("zoo/you", "no secret zoo/you"), ("locked/me", "cannot be read")):
            requests, result = _sent(tool, {}, secrets={"key": f"keychain:{place}"})
            assert not requests
            assert said in result.error.message
    finally:
        keyring.set_keyring(before)


def _with_large_schema(operations: int, chars: int) -> OpenApiDocument:
    large = {"type": "string", "example": "x" * chars, "enum": ["a"]}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Large"}}}}
    paths = {f"/a{n}": {"post": {"requestBody": body}} for n in range(operations)}
    data = _document(paths, components={"schemas": {"Large": large}})
    return read_document(data, "zoo.json")


def test_a_schema_that_is_far_too_large_is_copied_for_no_operation() -> None:
    ((_, refused),) = _with_large_schema(1, MAX_SCHEMA_CHARS).operations()
    assert isinstance(refused, OperationRefused) and "characters" in refused.message
    ((_, tool),) = _with_large_schema(1, MAX_SCHEMA_CHARS - 1000).operations()
    assert isinstance(tool, BoundTool) and tool.parameters["$defs"]["Large"]["enum"] == ["a"]


def test_the_schemas_of_all_operations_together_have_a_limit() -> None:
    chars = MAX_SCHEMA_CHARS - 1000
    document = _with_large_schema(MAX_TOTAL_CHARS // chars + 1, chars)
    with pytest.raises(UsageError, match="choose some by their names"):
        list(document.operations())
    assert len(list(document.operations({"post /a0", "post /a1"}.__contains__))) == 2
