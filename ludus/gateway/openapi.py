"""The OpenAPI document of the gateway, made of the tables that it is served from.

Knows: dialects, their fields, the routes of administration.  Knows not: how a request is answered.
Invariant: every route that the gateway serves is in the document, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pydantic

from ludus.gateway.admin import ROUTES, AdminRoute
from ludus.gateway.dialects.base import JsonObject
from ludus.gateway.dialects.fields import FieldTable
from ludus.gateway.dialects.table import DIALECTS

VERSION = "3.1.0"
SECRET = "{secret}"
_SCHEMAS = "#/components/schemas/"
_ANY_OBJECT: JsonObject = {"type": "object"}
_SECURITY: list[JsonObject] = [{"bearer": []}, {"key": []}]


def openapi_document(
    *, mounts: tuple[str, ...], models_paths: tuple[str, ...], probes: tuple[str, ...], is_administered: bool
) -> JsonObject:
    """The document of a gateway that serves dialects and models below `mounts`, and answers `probes`.

    is_administered: sessions can be opened over HTTP.
    """
    paths: dict[str, JsonObject] = {path: {"get": _operation("Whether anybody is there")} for path in probes}
    for mount in mounts:
        for path in models_paths:
            paths[mount + path] = {"get": _operation("The models", path=mount)}
            paths[f"{mount}{path}/{{name}}"] = {"get": _operation("A model", path=f"{mount}/{{name}}")}
        for path, summary, fields in _protocols():
            paths[mount + path] = {"post": _operation(summary, path=mount, body=_fields_schema(fields))}
    schemas: dict[str, Any] = {}
    for route in ROUTES if is_administered else ():
        paths.setdefault(route.path, {})[route.method.lower()] = _admin_operation(route, schemas)
    return {
        "openapi": VERSION,
        "info": {"title": "Ludus gateway", "version": "1"},
        "paths": {path: _with_parameters(path, item) for path, item in sorted(paths.items())},
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _protocols() -> Iterator[tuple[str, str, FieldTable]]:
    for name, dialect in DIALECTS.items():
        yield from ((path, f"A request in the protocol {name}", dialect.fields) for path in dialect.paths)
    for name, dialect in DIALECTS.items():
        paths = () if dialect.counter is None else dialect.counter.paths
        yield from ((path, f"How long its prompt would be ({name})", dialect.fields) for path in paths)


def _fields_schema(fields: FieldTable) -> JsonObject:
    """Every field of a request with what becomes of it; their values are read by the protocol's own rules."""
    told = dict.fromkeys(fields.honoured, "honoured") | dict.fromkeys(fields.ignored, "ignored")
    properties: dict[str, JsonObject] = {name: {"description": told[name]} for name in sorted(told)}
    for name, (harmless, instead) in sorted(fields.refused.items()):
        properties[name] = {"description": f"refused. {instead}", "enum": [None, harmless]}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _admin_operation(route: AdminRoute, schemas: dict[str, Any]) -> JsonObject:
    body = None if route.body is None else _named_schema(route.body, schemas)
    query = [
        {"name": name, "in": "query", "schema": {"enum": list(values), "default": values[0]}}
        for name, values in route.query.items()
    ]
    answer = _named_schema(route.answer, schemas)
    operation = _operation(route.summary, path=route.path, body=body, status=route.status, answer=answer)
    return {**operation, "parameters": query} if query else operation


def _named_schema(model: type[pydantic.BaseModel], schemas: dict[str, Any]) -> JsonObject:
    schema = model.model_json_schema(ref_template=_SCHEMAS + "{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"$ref": _SCHEMAS + model.__name__}


def _operation(
    summary: str,
    *,
    path: str | None = None,
    body: JsonObject | None = None,
    status: int = 200,
    answer: JsonObject = _ANY_OBJECT,
) -> JsonObject:
    """path: None: no key is asked for."""
    operation: JsonObject = {
        "summary": summary,
        "responses": {
            str(status): {"description": "The answer", "content": {"application/json": {"schema": answer}}},
            "default": {"description": "An error", "content": {"application/json": {"schema": _ANY_OBJECT}}},
        },
    }
    if path is not None and SECRET not in path:
        operation["security"] = _SECURITY
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _with_parameters(path: str, item: Mapping[str, Any]) -> JsonObject:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    found = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {**item, "parameters": found} if found else dict(item)
