"""The OpenAPI document of the gateway, generated from the tables that the gateway is served from.

Knows: dialects and their fields.  Knows not: how a request is answered, what the administration has.
Invariant: every route that the gateway serves is in the document, and no other.
"""

from __future__ import annotations

from ludus.gateway.dialects.base import JsonObject
from ludus.gateway.dialects.fields import FieldTable
from ludus.gateway.dialects.table import DIALECTS
from ludus.http.keys import SECURITY, SECURITY_SCHEMES

VERSION = "3.1.0"
SECRET = "secret"


def openapi_document(
    mounts: tuple[str, ...], models_paths: tuple[str, ...], probes: tuple[str, ...], administration: JsonObject
) -> JsonObject:
    """The document of a gateway that serves dialects and models below `mounts`, and answers `probes`.

    administration: the document of its routes. Empty: there are none.
    """
    paths = {path: _item("get", path, "Whether anybody is there", wants_key=False) for path in probes}
    for mount in mounts:
        for path in (mount + path for path in models_paths):
            paths[path] = _item("get", path, "The models")
            paths[f"{path}/{{name}}"] = _item("get", f"{path}/{{name}}", "A model")
        for name, dialect in DIALECTS.items():
            schema = _fields_schema(dialect.fields)
            for path in dialect.paths:
                paths[mount + path] = _item("post", mount + path, f"A request in the protocol {name}", body=schema)
            for path in () if dialect.counter is None else dialect.counter.paths:
                paths[mount + path] = _item("post", mount + path, f"How long its prompt would be ({name})", body=schema)
    return {
        "openapi": VERSION,
        "info": {"title": "Ludus gateway", "version": "1"},
        "paths": dict(sorted(paths.items())) | administration.get("paths", {}),
        "components": administration.get("components", {"securitySchemes": SECURITY_SCHEMES}),
    }


def _fields_schema(fields: FieldTable) -> JsonObject:
    """Every field of a request and whether it is honoured, ignored or refused; the protocol defines their values."""
    classes = dict.fromkeys(fields.honoured, "honoured") | dict.fromkeys(fields.ignored, "ignored")
    properties: dict[str, JsonObject] = {name: {"description": classes[name]} for name in sorted(classes)}
    for name, (harmless, instead) in sorted(fields.refused.items()):
        properties[name] = {"description": f"refused. {instead}", "enum": [None, harmless]}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _item(
    method: str, path: str, summary: str, *, body: JsonObject | None = None, wants_key: bool = True
) -> JsonObject:
    """A path with its one operation; the key may be part of the path."""
    answers = {"200": "The answer", "default": "An error"}
    operation: JsonObject = {
        "summary": summary,
        "responses": {
            status: {"description": what, "content": {"application/json": {"schema": {"type": "object"}}}}
            for status, what in answers.items()
        },
    }
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    if wants_key and SECRET not in names:
        operation["security"] = SECURITY
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if names:
        schema = {"type": "string"}
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    return {method: operation}
