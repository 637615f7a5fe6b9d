"""The OpenAPI document of the gateway, made of the tables that it is served from.

Knows: dialects and their fields.  Knows not: how a request is answered, what the administration has.
Invariant: every route that the gateway serves is in the document, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ludus.gateway.dialects.base import JsonObject
from ludus.gateway.dialects.fields import FieldTable
from ludus.gateway.dialects.table import DIALECTS
from ludus.http.keys import SECURITY, SECURITY_SCHEMES

VERSION = "3.1.0"
SECRET = "{secret}"
_ANY_OBJECT: JsonObject = {"type": "object"}


def openapi_document(
    *, mounts: tuple[str, ...], models_paths: tuple[str, ...], probes: tuple[str, ...], administration: JsonObject
) -> JsonObject:
    """The document of a gateway that serves dialects and models below `mounts`, and answers `probes`.

    administration: the document of its routes. Empty: there are none.
    """
    paths: dict[str, JsonObject] = {path: {"get": _operation("Whether anybody is there")} for path in probes}
    for mount in mounts:
        for path in models_paths:
            paths[mount + path] = {"get": _operation("The models", path=mount)}
            paths[f"{mount}{path}/{{name}}"] = {"get": _operation("A model", path=f"{mount}/{{name}}")}
        for path, summary, fields in _protocols():
            paths[mount + path] = {"post": _operation(summary, path=mount, body=_fields_schema(fields))}
    return {
        "openapi": VERSION,
        "info": {"title": "Ludus gateway", "version": "1"},
        "paths": {path: _with_parameters(path, item) for path, item in sorted(paths.items())}
        | administration.get("paths", {}),
        "components": administration.get("components", {"securitySchemes": SECURITY_SCHEMES}),
    }


def _protocols() -> Iterator[tuple[str, str, FieldTable]]:
    for name, dialect in DIALECTS.items():
        yield from ((path, f"A request in the protocol {name}", dialect.fields) for path in dialect.paths)
    for name, dialect in DIALECTS.items():
        paths = () if dialect.counter is None else dialect.counter.paths
        yield from ((path, f"How long its prompt would be ({name})", dialect.fields) for path in paths)


def _fields_schema(fields: FieldTable) -> JsonObject:
    """Every field of a request with what becomes of it; their values are read by the protocol's own rules."""
    classes = dict.fromkeys(fields.honoured, "honoured") | dict.fromkeys(fields.ignored, "ignored")
    properties: dict[str, JsonObject] = {name: {"description": classes[name]} for name in sorted(classes)}
    for name, (harmless, instead) in sorted(fields.refused.items()):
        properties[name] = {"description": f"refused. {instead}", "enum": [None, harmless]}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _operation(
    summary: str,
    *,
    path: str | None = None,
    body: JsonObject | None = None,
) -> JsonObject:
    """path: None: no key is asked for."""
    operation: JsonObject = {
        "summary": summary,
        "responses": {
            "200": {"description": "The answer", "content": {"application/json": {"schema": _ANY_OBJECT}}},
            "default": {"description": "An error", "content": {"application/json": {"schema": _ANY_OBJECT}}},
        },
    }
    if path is not None and SECRET not in path:
        operation["security"] = SECURITY
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _with_parameters(path: str, item: Mapping[str, Any]) -> JsonObject:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    found = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {**item, "parameters": found} if found else dict(item)
