"""An OpenAPI document (3.0 and 3.1): its operations as bound tools.

A tool's arguments are the operation's parameters by their names, and ``body`` where it takes one. A
schema's references come along as ``$defs``, so that what was agreed to holds by itself; what 3.0
writes otherwise than JSON Schema 2020-12 is written anew. Nothing here asks the network.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final, cast
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.messages import Effect, replace
from mlx_tools.schema import resolve, walk
from mlx_tools.tools.bound import BoundTool
from mlx_tools.tools.openapi.address import is_reserved, path_fault, server_fault

READING: Final = frozenset(("get", "head"))
METHODS: Final = (*sorted(READING), "post", "put", "patch", "delete", "options", "trace")
JSON: Final = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)
FORM: Final = "application/x-www-form-urlencoded"
BODY: Final = "body"
MAX_DESCRIPTION_CHARS: Final = 2000
MAX_DEFINITIONS: Final = 500
"""Definitions that one operation may bring along."""

_NOT_SENT: Final = frozenset(("accept", "content-type", "authorization"))
"""Header parameters that OpenAPI says are to be passed over."""
_STYLES: Final = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_NO_SCHEMA: Final = frozenset(("discriminator", "example", "externalDocs", "xml", "nullable"))
"""Keywords of OpenAPI alone."""


_PROOF: Final = ("type", "in", "name", "scheme")
"""What of a security scheme says how a secret is sent."""


_WRONG: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a document raises that is no such thing as it should be."""


class OperationRefused(ToolDefinitionError):
    """An operation that cannot be a tool; says why."""


class OpenApiDocument(Struct, frozen=True):
    """A document as it was read. ``place`` is the file or URL that it came from, ``digest`` the
    SHA-256 of its bytes."""

    place: str
    value: Mapping[str, Any]
    digest: str

    @property
    def version(self) -> str:
        """The version that the interface calls itself."""
        return str(self._root_object("info").get("version", ""))

    @property
    def title(self) -> str:
        return str(self._root_object("info").get("title", ""))

    def operations(self) -> Iterator[tuple[str, BoundTool | OperationRefused]]:
        """Each operation's name, and it as a tool, or why it cannot be one. The name is its
        ``operationId``, or method and path."""
        taken: set[str] = set()
        for path, item in self._root_object("paths").items():
            item = self._followed(item) if isinstance(item, Mapping) else {}
            for method in METHODS:
                operation = item.get(method)
                if not isinstance(operation, Mapping):
                    continue
                given = operation.get("operationId")
                name = given if isinstance(given, str) and given else f"{method} {path}"
                if name in taken:
                    name = f"{method} {path}"
                taken.add(name)
                try:
                    yield name, self._tool(name, method, str(path), item, operation)
                except OperationRefused as error:
                    yield name, error
                except (ToolDefinitionError, *_WRONG) as error:
                    yield name, OperationRefused(f"it is described wrongly: {error}"[:300])

    @property
    def server(self) -> str:
        """The address of the first server that is named with a whole one, else empty."""
        return next(iter(self._servers(self.value.get("servers"))), "")

    def secrets(self) -> Mapping[str, Mapping[str, Any]]:
        """The security schemes by their names."""
        found = self._root_object("components", "securitySchemes")
        return {name: self._followed(scheme) for name, scheme in found.items()}

    def _root_object(self, *keys: str) -> Mapping[str, Any]:
        value: Any = self.value
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    def _followed(self, value: Any) -> Any:
        """What a reference object stands for."""
        for _ in range(10):
            if not isinstance(value, Mapping) or not isinstance(value.get("$ref"), str):
                return value
            value = resolve(self.value, value["$ref"], {})[1]
        raise OperationRefused("its references lead on and on")

    def _tool(
        self,
        name: str,
        method: str,
        path: str,
        item: Mapping[str, Any],
        operation: Mapping[str, Any],
    ) -> BoundTool:
        if fault := path_fault(path):
            raise OperationRefused(fault)
        security = self._security(operation)
        schemes = [scheme for way in security for scheme in way.values()]
        proofs = {(one["in"], str(one["name"]).lower()) for one in schemes}
        schemas = _Schemas(self)
        properties: dict[str, Any] = {}
        wanted: list[str] = []
        places: list[dict[str, Any]] = []
        for parameter in self._parameters(item, operation):
            if _is_not_sent(parameter["in"], parameter["name"]):
                continue
            if (parameter["in"], parameter["name"].lower()) in proofs:
                continue  # its secret stands there
            argument = parameter["name"]
            if argument in properties or argument == BODY:
                argument = f"{argument}_{parameter['in']}"
            properties[argument] = schemas.described(parameter, parameter["schema"])
            if parameter["required"]:
                wanted.append(argument)
            sent = {key: parameter[key] for key in ("name", "in", "style", "explode", "json")}
            places.append({"argument": argument, **sent})
        at: dict[str, Any] = {"method": method.upper(), "path": path, "parameters": places}
        body = self._followed(operation.get("requestBody"))
        if isinstance(body, Mapping):
            at["body"], schema = self._body(body)
            properties[BODY] = schemas.described(body, schema)
            if body.get("required"):
                wanted.append(BODY)
        if own := self._servers(operation.get("servers") or item.get("servers")):
            at["server"] = own[0]
        at["security"] = security
        parameters = {"type": "object", "properties": properties, "additionalProperties": False}
        if wanted:
            parameters["required"] = wanted
        if definitions := schemas.definitions():
            parameters["$defs"] = definitions
        texts = operation.get("summary"), operation.get("description")
        effects = "network", "read" if method in READING else "write"
        more = {"effects": effects, "at": at}
        return BoundTool.told(name, texts, MAX_DESCRIPTION_CHARS, parameters, **more)

    def _parameters(
        self, item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The parameters, an operation's own in place of those of its path."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for one in (*(item.get("parameters") or ()), *(operation.get("parameters") or ())):
            one = self._followed(one)
            place, name = one["in"], one["name"]
            if place not in _STYLES or not isinstance(name, str):
                raise OperationRefused(f"its parameter {name!r} stands in {place!r}")
            content = one.get("content")
            if isinstance(content, Mapping) and content:
                media, value = next(iter(content.items()))
                if not JSON.fullmatch(media.partition(";")[0].strip()):
                    raise OperationRefused(f"its parameter {name} is written as {media}")
                schema = value.get("schema", {})
            else:
                schema = one.get("schema", {})
            style = one.get("style") or _STYLES[place]
            found[place, name] = {
                "description": one.get("description"),
                "name": name,
                "in": place,
                "schema": schema,
                "style": style,
                "explode": bool(one.get("explode", style in ("form", "cookie"))),
                "json": bool(content),
                "required": place == "path" or bool(one.get("required")),
            }
            if style not in ("simple", "form", "deepObject", "spaceDelimited", "pipeDelimited"):
                raise OperationRefused(f"its parameter {name} has the style {style}")
        yield from found.values()

    def _body(self, body: Mapping[str, Any]) -> tuple[str, Any]:
        """The media type and the schema of a request's body: JSON before a form."""
        given = body.get("content", {}).items()
        content = {media: value for media, value in given if isinstance(value, Mapping)}
        for fits in (JSON, re.compile(re.escape(FORM), re.IGNORECASE)):
            for media, value in content.items():
                if fits.fullmatch(media.partition(";")[0].strip()):
                    return media, value.get("schema", {})
        raise OperationRefused(f"its body is {', '.join(content) or 'nothing known'}, not JSON")

    def _servers(self, servers: Any) -> list[str]:
        """The addresses of servers, those that are whole."""
        found = []
        for server in servers or ():
            url = str(server.get("url", ""))
            for name, variable in (server.get("variables") or {}).items():
                url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
            if urlsplit(self.place).scheme in ("http", "https"):
                url = urljoin(self.place, url)
            if re.match(r"https?:", url, re.IGNORECASE) and "{" not in url:
                if fault := server_fault(url):
                    raise OperationRefused(f"its server {url[:200]}: {fault}")
                found.append(url.rstrip("/"))
        return found

    def _security(self, operation: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The ways in which a caller may say who they are, each by schemes that go together. An
        empty one says that nobody has to."""
        schemes = self.secrets()
        given = operation.get("security", self.value.get("security")) or ()
        return [
            {name: {key: schemes[name].get(key) for key in _PROOF} for name in way}
            for way in given
            if all(name in schemes for name in way)
        ]


def _is_not_sent(place: str, name: str) -> bool:
    """True for a header that is no parameter, whatever a document says."""
    return place == "header" and (name.lower() in _NOT_SENT or is_reserved(name))


class _Schemas:
    """Schemas of one operation in JSON Schema 2020-12; what they refer to stands in
    `definitions`."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self._older = str(document.value.get("openapi", "")).startswith("3.0")

    def described(self, owner: Mapping[str, Any], schema: Any) -> Any:
        """A schema, with the description of what it is the schema of where it has none."""
        made = self._local(schema)
        words = owner.get("description")
        if isinstance(made, dict) and isinstance(words, str) and "description" not in made:
            return made | {"description": words[:MAX_DESCRIPTION_CHARS]}
        return made

    def definitions(self) -> dict[str, Any]:
        """What the schemas refer to, and what that refers to, by name."""
        made: dict[str, Any] = {}
        while missing := [one for one, name in self._names.items() if name not in made]:
            for reference in missing:
                found = resolve(self._document.value, reference, {})[1]
                made[self._names[reference]] = self._local(found)
        return made

    def _local(self, schema: Any) -> Any:
        made = deepcopy(schema)
        for _, node in walk(made):
            if isinstance(node, dict):
                self._rewrite(node)
        return made

    def _rewrite(self, node: dict[str, Any]) -> None:
        nullable = node.get("nullable") is True
        reference = node.get("$ref")
        foreign = {key for key in node if key in _NO_SCHEMA or key.startswith("x-")}
        if self._older and isinstance(reference, str):
            foreign = {*node}  # what stands beside it means nothing there
        for key in foreign:
            del node[key]
        if isinstance(reference, str):
            node["$ref"] = f"#/$defs/{self._name(reference)}"
        self._drop_read_only(node)
        if self._older:
            _modernise(node, nullable=nullable)

    def _drop_read_only(self, node: dict[str, Any]) -> None:
        """What only a server says is no part of what a caller sends."""
        properties = node.get("properties")
        for name, one in list(properties.items()) if isinstance(properties, dict) else ():
            if isinstance(one, Mapping) and one.get("readOnly") is True:
                del node["properties"][name]
                node["required"] = [other for other in node.get("required") or () if other != name]
        if not node.get("required"):
            node.pop("required", None)

    def _name(self, reference: str) -> str:
        """The name of what a reference leads to, among the definitions."""
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
    """Rewrites what OpenAPI 3.0 says otherwise than JSON Schema 2020-12."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
            schema[exclusive] = schema.pop(bound)
    if nullable and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    choices = ("allOf", "anyOf", "oneOf")
    parts = {key: schema.pop(key) for key in choices if nullable and key in schema}
    if parts:  # strictly it says nothing there; whoever writes it means it
        schema["anyOf"] = [parts, {"type": "null"}]


def read_document(data: bytes, place: str) -> OpenApiDocument:
    """The document in these bytes, JSON or YAML. Raises UsageError for anything else."""
    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text) if text.lstrip().startswith("{") else _from_yaml(text, place)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: neither JSON nor YAML: {str(error)[:200]}") from None
    version = value.get("openapi") if isinstance(value, Mapping) else None
    if not isinstance(version, str) or not re.match(r"3\.[01]\.", version):
        old = isinstance(value, Mapping) and "swagger" in value
        said = "Swagger 2.0" if old else "no OpenAPI document of version 3.0 or 3.1"
        raise UsageError(f"{place}: it is {said}", hint="convert it to OpenAPI 3")
    digest = hashlib.sha256(data).hexdigest()
    return OpenApiDocument(place, cast("Mapping[str, Any]", value), digest)


_NOT_JSON: Final = frozenset(("timestamp", "bool"))
"""Kinds of words that YAML 1.1 knows and JSON does not: dates, and ``no`` for false."""


def _from_yaml(text: str, place: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise UsageError(
            f"{place}: to read YAML PyYAML is needed", hint="install pyyaml, or give it as JSON"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """YAML as OpenAPI means it: what JSON can say, nothing said twice by a name (a few lines of
        it stand for gigabytes), and no dates."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it says a part again by its name, which is not read")
            return super().compose_node(parent, index)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, match) for tag, match in known if tag.rpartition(":")[2] not in _NOT_JSON]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    words = re.compile(r"true|True|TRUE|false|False|FALSE")
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", words, list("tTfF"))
    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 (made of the safe one)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def with_effects(tool: BoundTool, writes: bool) -> BoundTool:
    """The tool, said to write although its method only reads. Nothing is said to do less."""
    effects = {*tool.effects, *(("write",) if writes else ())}
    return replace(tool, effects=tuple(sorted(cast("set[Effect]", effects))))
