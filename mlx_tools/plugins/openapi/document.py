"""An OpenAPI document (3.0 and 3.1): its operations as bound tools.

A tool's arguments are the operation's parameters by their names, and ``body`` if it has one. The
targets of a schema's references are copied to ``$defs``, so that a person agrees to the complete
schema. Schemas of 3.0 are converted to JSON Schema 2020-12. Nothing here uses the network.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.messages import Effect, replace
from mlx_tools.plugins.openapi.address import (
    PATH_PARTS,
    find_path_fault,
    find_server_fault,
    is_reserved,
)
from mlx_tools.schema import resolve, walk
from mlx_tools.tools import BoundTool

READING: Final = frozenset(("get", "head"))
METHODS: Final = (*sorted(READING), "post", "put", "patch", "delete", "options", "trace")
JSON: Final = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)
FORM: Final = "application/x-www-form-urlencoded"
BODY: Final = "body"
MAX_DESCRIPTION_CHARS: Final = 2000
"""Characters of an operation's description. Longer ones would fill the prompt."""
MAX_YAML_BYTES: Final = 10_000_000
"""Bytes of a document in YAML, which is parsed in Python and takes five seconds for a megabyte."""
MAX_OPERATIONS: Final = 2000
"""Operations that are bound at once. A choice: some seconds, and more than a person reads."""
MAX_DEFINITIONS: Final = 500
"""Definitions that the schemas of one operation may have."""
MAX_SCHEMA_CHARS: Final = 1_000_000
"""Characters of one operation's schemas with their examples. A choice: a tool's schema may have a
quarter of it, and without a limit each operation could copy the whole document."""
MAX_TOTAL_CHARS: Final = 20_000_000
"""Characters of the schemas of all operations that are bound at once. They take ten seconds."""

_NOT_SENT: Final = frozenset(("accept", "content-type", "authorization"))
"""Header parameters that are ignored, as OpenAPI requires."""
_STYLES: Final = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_NO_SCHEMA: Final = frozenset(("discriminator", "example", "externalDocs", "xml", "nullable"))
"""Keywords that only OpenAPI has."""


_SECURITY_KEYS: Final = ("type", "in", "name", "scheme")
"""The keys of a security scheme that describe how a secret is sent."""


_DOCUMENT_ERRORS: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions of code that reads a malformed document."""


class OperationRefused(ToolDefinitionError):
    """An operation that cannot be a tool, with the reason."""


class _Operation(NamedTuple):
    """An operation as its document describes it."""

    method: str
    path: str
    item: Mapping[str, Any]
    """The description of its path."""
    operation: Mapping[str, Any]


class OpenApiDocument(Struct, frozen=True):
    """The content of a document."""

    place: str
    """The file or URL that it came from."""
    value: Mapping[str, Any]
    digest: str
    """The SHA-256 of its bytes."""

    @property
    def version(self) -> str:
        """The version that the interface gives itself."""
        return str(self._root_object("info").get("version", ""))

    @property
    def title(self) -> str:
        return str(self._root_object("info").get("title", ""))

    def operation_names(self) -> list[str]:
        """Return the names of all operations, also of those that cannot be tools."""
        return [name for name, _ in self._describe_operations()]

    def operations(
        self, is_wanted: Callable[[str], bool] = lambda name: True
    ) -> Iterator[tuple[str, BoundTool | OperationRefused]]:
        """Yield each operation's name, and its tool or the reason why there is none.

        The name is its ``operationId``, or method and path. No tools are made of operations that
        are not wanted.
        """
        reading = _Reading(self)
        for name, entry in self._describe_operations():
            if not is_wanted(name):
                continue
            if isinstance(entry, OperationRefused):
                yield name, entry
                continue
            try:
                yield name, self._make_tool(name, entry, reading)
            except OperationRefused as error:
                yield name, error
            except (ToolDefinitionError, *_DOCUMENT_ERRORS) as error:
                yield name, OperationRefused(f"it is described wrongly: {error}"[:300])

    def _describe_operations(self) -> Iterator[tuple[str, _Operation | OperationRefused]]:
        """Yield each operation's name, and its description or the fault of its path."""
        taken: set[str] = set()
        for path, item in self._root_object("paths").items():
            try:
                item = self._follow(item) if isinstance(item, Mapping) else {}
            except ToolDefinitionError as error:
                yield str(path), OperationRefused(error.message)
                continue
            if not isinstance(item, Mapping):
                yield str(path), OperationRefused("it is described wrongly")
                continue
            for method in METHODS:
                operation = item.get(method)
                if not isinstance(operation, Mapping):
                    continue
                operation_id = operation.get("operationId")
                name = (
                    operation_id
                    if isinstance(operation_id, str) and operation_id
                    else f"{method} {path}"
                )
                if name in taken:
                    name = f"{method} {path}"
                taken.add(name)
                yield name, _Operation(method, str(path), item, operation)

    @property
    def server(self) -> str:
        """The first complete address of a server, or an empty text."""
        try:
            return next(iter(self._read_servers(self.value.get("servers"))), "")
        except _DOCUMENT_ERRORS:
            return ""

    def secrets(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the security schemes by name."""
        schemes = {}
        for name, scheme in self._root_object("components", "securitySchemes").items():
            with contextlib.suppress(ToolDefinitionError):
                if isinstance(followed := self._follow(scheme), Mapping):
                    schemes[name] = followed
        return schemes

    def _root_object(self, *keys: str) -> Mapping[str, Any]:
        value: Any = self.value
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    def _follow(self, value: Any) -> Any:
        """Return the target of a reference object."""
        # A reference may lead to another one. Documents have one or two in a row, and a circle must
        # end.
        for _ in range(10):
            if not isinstance(value, Mapping) or not isinstance(value.get("$ref"), str):
                return value
            value = resolve(self.value, value["$ref"], {})[1]
        raise OperationRefused("its references do not end")

    def _make_tool(self, name: str, entry: _Operation, reading: _Reading) -> BoundTool:
        method, path, item, operation = entry
        if fault := find_path_fault(path):
            raise OperationRefused(fault)
        security = self._read_security(operation, reading.secrets)
        schemes = [scheme for way in security for scheme in way.values()]
        proofs = {(proof["in"], str(proof["name"]).lower()) for proof in schemes}
        schemas = _Schemas(reading)
        properties: dict[str, Any] = {}
        required: list[str] = []
        places: list[dict[str, Any]] = []
        for parameter in self._read_parameters(item, operation):
            if _is_not_sent(parameter["in"], parameter["name"]):
                continue
            if (parameter["in"], parameter["name"].lower()) in proofs:
                continue  # this place is for the secret
            argument = parameter["name"]
            if argument in properties or argument == BODY:
                argument = f"{argument}_{parameter['in']}"
            properties[argument] = schemas.describe_schema(parameter, parameter["schema"])
            if parameter["required"]:
                required.append(argument)
            sent = {key: parameter[key] for key in ("name", "in", "style", "explode", "json")}
            places.append({"argument": argument, **sent})
        filled = {place["name"] for place in places if place["in"] == "path"}
        if missing := [part for part in PATH_PARTS.findall(path) if part not in filled]:
            # Without it the request would go to another address, such as that of all items.
            raise OperationRefused(f"no parameter fills {{{missing[0]}}} of its path")
        location: dict[str, Any] = {"method": method.upper(), "path": path, "parameters": places}
        body = self._follow(operation.get("requestBody"))
        if isinstance(body, Mapping):
            location["body"], schema = self._read_body(body)
            properties[BODY] = schemas.describe_schema(body, schema)
            if body.get("required"):
                required.append(BODY)
        if servers := self._read_servers(operation.get("servers") or item.get("servers")):
            location["server"] = servers[0]
        location["security"] = security
        parameters = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            parameters["required"] = required
        if definitions := schemas.definitions():
            parameters["$defs"] = definitions
        texts = operation.get("summary"), operation.get("description")
        effects = "network", "read" if method in READING else "write"
        fields = {"effects": effects, "location": location}
        return BoundTool.from_description(name, texts, MAX_DESCRIPTION_CHARS, parameters, **fields)

    def _read_parameters(
        self, item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Yield the parameters; an operation's own replace those of its path."""
        parameters: dict[tuple[str, str], dict[str, Any]] = {}
        for parameter in (*(item.get("parameters") or ()), *(operation.get("parameters") or ())):
            parameter = self._follow(parameter)
            place, name = parameter["in"], parameter["name"]
            if place not in _STYLES or not isinstance(name, str):
                raise OperationRefused(f"its parameter {name!r} stands in {place!r}")
            content = parameter.get("content")
            if isinstance(content, Mapping) and content:
                media, value = next(iter(content.items()))
                if not JSON.fullmatch(media.partition(";")[0].strip()):
                    raise OperationRefused(f"its parameter {name} is written as {media}")
                schema = value.get("schema", {})
            else:
                schema = parameter.get("schema", {})
            style = parameter.get("style") or _STYLES[place]
            parameters[place, name] = {
                "description": parameter.get("description"),
                "name": name,
                "in": place,
                "schema": schema,
                "style": style,
                "explode": bool(parameter.get("explode", style in ("form", "cookie"))),
                "json": bool(content),
                "required": place == "path" or bool(parameter.get("required")),
            }
            if style not in ("simple", "form", "deepObject", "spaceDelimited", "pipeDelimited"):
                raise OperationRefused(f"its parameter {name} has the style {style}")
        yield from parameters.values()

    def _read_body(self, body: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the media type and schema of a request's body, JSON before a form."""
        entries = body.get("content", {}).items()
        content = {media: value for media, value in entries if isinstance(value, Mapping)}
        for pattern in (JSON, re.compile(re.escape(FORM), re.IGNORECASE)):
            for media, value in content.items():
                if pattern.fullmatch(media.partition(";")[0].strip()):
                    return media, value.get("schema", {})
        raise OperationRefused(f"its body is {', '.join(content) or 'nothing known'}, not JSON")

    def _read_servers(self, servers: Any) -> list[str]:
        """Return the complete addresses of servers."""
        addresses = []
        for server in servers or ():
            url = str(server.get("url", ""))
            for name, variable in (server.get("variables") or {}).items():
                url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
            if urlsplit(self.place).scheme in ("http", "https"):
                url = urljoin(self.place, url)
            if re.match(r"https?:", url, re.IGNORECASE) and "{" not in url:
                if fault := find_server_fault(url):
                    raise OperationRefused(f"its server {url[:200]}: {fault}")
                addresses.append(url.rstrip("/"))
        return addresses

    def _read_security(
        self, operation: Mapping[str, Any], schemes: Mapping[str, Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the ways to authenticate, each with the schemes that go together.

        An empty way means that no authentication is needed.
        """
        ways = operation.get("security", self.value.get("security")) or ()
        return [
            {name: {key: schemes[name].get(key) for key in _SECURITY_KEYS} for name in way}
            for way in ways
            if all(name in schemes for name in way)
        ]


def _is_not_sent(place: str, name: str) -> bool:
    """Return whether a declared parameter is ignored, because it is a certain header."""
    return place == "header" and (name.lower() in _NOT_SENT or is_reserved(name))


class _Reading:
    """The parts that all operations of a document share while tools are made."""

    def __init__(self, document: OpenApiDocument) -> None:
        self.document = document
        self.secrets = document.secrets()
        self._chars_left = MAX_TOTAL_CHARS

    def count(self, chars: int) -> None:
        """Count characters of copied schemas.

        Raises:
            UsageError: they are too many together.
        """
        self._chars_left -= chars
        if self._chars_left < 0:
            raise UsageError(
                f"the schemas of these operations have more than {MAX_TOTAL_CHARS} characters",
                hint="choose some by their names, such as --operation 'get*'",
            )


class _Schemas:
    """The schemas of one operation in JSON Schema 2020-12, with their `definitions`."""

    def __init__(self, reading: _Reading) -> None:
        self._reading, document = reading, reading.document
        self._document = document
        self._names: dict[str, str] = {}
        self._chars_left = MAX_SCHEMA_CHARS
        self._older = str(document.value.get("openapi", "")).startswith("3.0")

    def describe_schema(self, owner: Mapping[str, Any], schema: Any) -> Any:
        """Return a schema, with its owner's description if it has none."""
        converted = self._make_local(schema)
        words = owner.get("description")
        if (
            isinstance(converted, dict)
            and isinstance(words, str)
            and "description" not in converted
        ):
            return converted | {"description": words[:MAX_DESCRIPTION_CHARS]}
        return converted

    def definitions(self) -> dict[str, Any]:
        """Return all definitions that the schemas refer to, by name."""
        definitions: dict[str, Any] = {}
        while missing := [
            known_reference
            for known_reference, name in self._names.items()
            if name not in definitions
        ]:
            for reference in missing:
                target = resolve(self._document.value, reference, {})[1]
                definitions[self._names[reference]] = self._make_local(target)
        return definitions

    def _make_local(self, schema: Any) -> Any:
        copy = self._copy(schema)
        for _, node in walk(copy):
            if isinstance(node, dict):
                self._rewrite(node)
        return copy

    def _copy(self, value: Any) -> Any:
        """Return a deep copy.

        Raises:
            OperationRefused: the schemas of the operation are too large.
        """
        chars = len(value) if isinstance(value, str) else 1
        if isinstance(value, Mapping):
            chars += sum(map(len, value))
        self._chars_left -= chars
        self._reading.count(chars)
        if self._chars_left < 0:
            raise OperationRefused(f"its schema has more than {MAX_SCHEMA_CHARS} characters")
        if isinstance(value, Mapping):
            return {key: self._copy(item) for key, item in value.items()}
        return [self._copy(item) for item in value] if isinstance(value, list) else value

    def _rewrite(self, node: dict[str, Any]) -> None:
        nullable = node.get("nullable") is True
        reference = node.get("$ref")
        foreign = {key for key in node if key in _NO_SCHEMA or key.startswith("x-")}
        if self._older and isinstance(reference, str):
            foreign = {*node}  # in 3.0 other keys besides a reference have no meaning
        for key in foreign:
            del node[key]
        if isinstance(reference, str):
            node["$ref"] = f"#/$defs/{self._name(reference)}"
        self._drop_read_only(node)
        if self._older:
            _modernise(node, nullable=nullable)

    def _drop_read_only(self, node: dict[str, Any]) -> None:
        """Remove properties that only a server sends."""
        properties = node.get("properties")
        for name, property_schema in (
            list(properties.items()) if isinstance(properties, dict) else ()
        ):
            if isinstance(property_schema, Mapping) and property_schema.get("readOnly") is True:
                del node["properties"][name]
                node["required"] = [
                    required_name
                    for required_name in node.get("required") or ()
                    if required_name != name
                ]
        if not node.get("required"):
            node.pop("required", None)

    def _name(self, reference: str) -> str:
        """Return the name of a reference's target among the definitions."""
        if reference not in self._names:
            last = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2]) or "schema"
            name, number = last, 1
            while name in self._names.values():
                number += 1
                name = f"{last}_{number}"
            if len(self._names) >= MAX_DEFINITIONS:
                raise OperationRefused(f"its schema has more than {MAX_DEFINITIONS} definitions")
            self._names[reference] = name
        return self._names[reference]


def _modernise(schema: dict[str, Any], *, nullable: bool) -> None:
    """Convert keywords of OpenAPI 3.0 that differ in JSON Schema 2020-12."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
            schema[exclusive] = schema.pop(bound)
    if nullable and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    choices = ("allOf", "anyOf", "oneOf")
    parts = {key: schema.pop(key) for key in choices if nullable and key in schema}
    if parts:  # strictly it has no meaning there, but authors mean it
        schema["anyOf"] = [parts, {"type": "null"}]


def read_document(data: bytes, place: str) -> OpenApiDocument:
    """Read a document in JSON or YAML.

    Raises:
        UsageError: it is no OpenAPI document in JSON or YAML.
    """
    try:
        text = data.decode("utf-8-sig")
        is_yaml = not text.lstrip().startswith("{")
        if is_yaml and len(data) > MAX_YAML_BYTES:
            problem = f"larger than {MAX_YAML_BYTES // 1_000_000} MB, which takes minutes as YAML"
            raise UsageError(f"{place}: {problem}", hint="convert it to JSON")
        value = _load_yaml(text, place) if is_yaml else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: neither JSON nor YAML: {str(error)[:200]}") from None
    version = value.get("openapi") if isinstance(value, Mapping) else None
    if not isinstance(version, str) or not re.match(r"3\.[01]\.", version):
        is_swagger = isinstance(value, Mapping) and "swagger" in value
        kind = "Swagger 2.0" if is_swagger else "no OpenAPI document of version 3.0 or 3.1"
        raise UsageError(f"{place}: it is {kind}", hint="convert it to OpenAPI 3")
    digest = hashlib.sha256(data).hexdigest()
    return OpenApiDocument(place, cast("Mapping[str, Any]", value), digest)


_NOT_JSON: Final = frozenset(("timestamp", "bool"))
"""Types of YAML 1.1 that differ from JSON: dates, and ``no`` for false."""


def _load_yaml(text: str, place: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise UsageError(
            f"{place}: to read YAML PyYAML is needed", hint="install pyyaml, or give it as JSON"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """The YAML that OpenAPI allows: only JSON values, no aliases, no dates.

        A few lines with aliases could mean gigabytes.
        """

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it says a part again by its name, which is not read")
            return super().compose_node(parent, index)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, match) for tag, match in resolvers if tag.rpartition(":")[2] not in _NOT_JSON]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    words = re.compile(r"true|True|TRUE|false|False|FALSE")
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", words, list("tTfF"))
    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 (a subclass of the safe loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def with_effects(tool: BoundTool, writes: bool) -> BoundTool:
    """Return the tool, with the effect to write if ``writes`` is True.

    An effect is never removed.
    """
    effects = {*tool.effects, *(("write",) if writes else ())}
    return replace(tool, effects=tuple(sorted(cast("set[Effect]", effects))))
