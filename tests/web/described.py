"""Holds answers against the description of the API."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from dask_mars.web import api, openapi
from dask_mars.web.service.handlers import ROUTES

#: Of every server, and of a service.
OPENAPI = openapi.document(api.ROUTES)
SERVICE = openapi.document([*api.ROUTES, *ROUTES])


def check(told: Any, path: str, method: str, status: int, kind: str, described: Any = OPENAPI) -> None:
    """Raise ValidationError if what was answered is not as described; `path` is one of `api.ROUTES`."""
    answer = described["paths"][f"/{api.ROOT}/{path}"][method.lower()]["responses"][str(status)]
    if "$ref" in answer:
        answer = described["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    schema = {**answer["content"][kind]["schema"], "components": described["components"]}
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(told)
