"""Makes the description of the API, OpenAPI 3.1, from routes and the typed dicts of their answers."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from dask_mars.web import answers, wire
from dask_mars.web.api import JSON, PARAMETERS, PROBLEM, ROOT, Answer, Route
from dask_mars.web.monitor import Json

_ABOUT: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "dask_mars",
        "version": "1",
        "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
        "description": (
            "Looks at computations, and cancels them. Times are Unix seconds, durations seconds, sizes bytes. "
            "Headers and addresses may have 16 KiB each, bodies other than submissions 64 KiB: beyond, the status "
            "is 431, 414 or 413."
        ),
    },
    "servers": [{"url": "."}],
    "security": [{"bearer": []}, {"header": []}, {"cookie": []}],
}
_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Dask-Mars-Token",
        "description": "For proxies that do not pass on `Authorization`.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "dask-mars-0123456789abcdef",
        "description": (
            "Set by `?token=` on the page; its name ends with digits that depend on the token. POST, PUT and "
            "DELETE need the header `X-Dask-Mars: 1` besides."
        ),
    },
}
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null", dict: "object"}
_HEALTH: Json = {
    "operationId": "health",
    "security": [],
    "responses": {
        "200": {
            "description": "The server answers.",
            "content": {JSON: {"schema": {"type": "object", "properties": {"status": {"const": "ok"}}}}},
        }
    },
}


def document(routes: Iterable[Route]) -> Json:
    """Return the description of an API with these routes."""
    schemas = _Schemas()
    paths: Json = {"/healthz": {"get": _HEALTH}}
    for route in routes:
        paths.setdefault(f"/{ROOT}/{route.path}", {})[route.method.lower()] = schemas.operation(route)
    problem = schemas.answer(
        Answer(
            "What is wrong.",
            {PROBLEM: answers.ProblemAnswer},
            {"Retry-After": Annotated[int, "Seconds; with 503."]},
        )
    )
    components = {"schemas": schemas.named, "responses": {"Problem": problem}, "securitySchemes": _SECURITY}
    return {**_ABOUT, "paths": paths, "components": components}


class _Schemas:
    """Translates types into JSON Schema; `named` has those of typed dicts."""

    def __init__(self) -> None:
        self.named: dict[str, Json] = {}

    def operation(self, route: Route) -> Json:
        """Return what a path says of a method."""
        described: Json = {"operationId": route.operation}
        if route.description:
            described["description"] = route.description
        path = ("id",) if "{id}" in route.path else ()
        places = {"path": path, "query": route.query, "header": route.headers}
        described["parameters"] = [
            {"name": name, "in": place, "required": place == "path", "schema": self.of(PARAMETERS[name])}
            for place, names in places.items()
            for name in names
        ]
        if route.body is not None:
            body = {"type": "string", "format": "binary", "x-header": self.of(route.body)}
            described["requestBody"] = {"required": True, "content": {wire.MEDIA_TYPE: {"schema": body}}}
        # Any route may get an invalid request, or one without a token.
        statuses = (400, 401, 403, *route.problems)
        problems: Json = {str(status): {"$ref": "#/components/responses/Problem"} for status in statuses}
        responses = {str(status): self.answer(answer) for status, answer in route.answers.items()}
        return described | {"responses": dict(sorted((problems | responses).items()))}

    def answer(self, answer: Answer) -> Json:
        """Return the description of a route's answer with one status."""
        found: Json = {"description": answer.description}
        if answer.content:
            found["content"] = {kind: {"schema": self.of(hint)} for kind, hint in answer.content.items()}
        if answer.headers:
            found["headers"] = {name: {"schema": self.of(hint)} for name, hint in answer.headers.items()}
        return found

    def of(self, hint: Any) -> Json:
        """Return the schema of a type."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            found = self.of(arguments[0])
            for note in arguments[1:]:
                found |= {"description": note} if isinstance(note, str) else dict([note])
            return found
        if origin in (Union, UnionType):
            return {"anyOf": [self.of(each) for each in arguments]}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is list:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is tuple:
            count = len(arguments)
            return {
                "type": "array",
                "prefixItems": [*map(self.of, arguments)],
                "minItems": count,
                "maxItems": count,
            }
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if is_typeddict(hint):
            self._add(hint)
            return {"$ref": f"#/components/schemas/{_name(hint)}"}
        if hint is bytes:
            return {"type": "string", "format": "binary"}
        return {} if hint is Any else {"type": _TYPES[hint]}

    def _add(self, hint: Any) -> None:
        if _name(hint) in self.named:
            return
        described: Json = {"type": "object", "description": hint.__doc__, "additionalProperties": False}
        self.named[_name(hint)] = described
        fields = get_type_hints(hint, include_extras=True)
        # Annotations are text, of which `__required_keys__` does not see the marks.
        optional = {name for name, field in fields.items() if get_origin(field) is NotRequired}
        described["properties"] = {
            name: self.of(get_args(field)[0] if name in optional else field) for name, field in fields.items()
        }
        described["required"] = [name for name in fields if hint.__total__ and name not in optional]


def _name(hint: type) -> str:
    """Return the name of a schema; those of typed dicts are unique in the code."""
    return hint.__name__.removesuffix("Answer")
