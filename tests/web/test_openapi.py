"""The description of the API says what the routes are, and what they answer."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dask_mars.web import api, pages
from dask_mars.web.monitor import STATES

OPENAPI = json.loads(pages.OPENAPI.read_text(encoding="utf-8"))


def schema_of(path: str, method: str, status: int, kind: str) -> Any:
    """Return the schema of an answer, with what it refers to."""
    answer = OPENAPI["paths"][path][method.lower()]["responses"][str(status)]
    if "$ref" in answer:
        answer = OPENAPI["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return {**answer["content"][kind]["schema"], "components": OPENAPI["components"]}


def check(answer: Any, path: str, method: str = "GET") -> None:
    """Hold an answer against the description."""
    schema = schema_of(path, method, answer.status, answer.headers["content-type"])
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(answer.json)


def test_it_describes_the_routes_that_there_are():
    described = {
        (method.upper(), path.removeprefix(f"/{api.ROOT}/")): {
            one["name"] for one in what.get("parameters", ()) if one["in"] == "query"
        }
        for path, methods in OPENAPI["paths"].items()
        for method, what in methods.items()
        if path != "/healthz"
    }
    assert described == {(route.method, route.path): set(route.query) for route in api.ROUTES}


def test_its_schemas_are_schemas():
    for schema in OPENAPI["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(OPENAPI)))
    assert named == set(OPENAPI["components"]["schemas"])
    names = [one["operationId"] for methods in OPENAPI["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))
    assert tuple(OPENAPI["components"]["schemas"]["State"]["enum"]) == STATES


@pytest.mark.parametrize(
    "route", [route for route in api.ROUTES if route.method == "GET"], ids=lambda route: route.path
)
def test_answers_are_as_it_says(route, ask, view, nobody, monitor):
    id = monitor.add(error={"type": "E", "message": "no"}, result=None)
    values = {"after": "0", "wait": "0", "state": "running", "before": api.cursor(9.0, ""), "limit": "5"}
    values |= {"layer": "sum-1", "key": "k"}
    path = f"/{api.ROOT}/{route.path}"
    for count in range(len(route.query) + 1):
        for names in itertools.combinations(route.query, count):
            if "wait" in names and "after" not in names:
                continue
            query = "&".join(f"{name}={values[name]}" for name in names)
            for asker in (ask, view):
                answer = asker(f"{path.format(id=id)}?{query}")
                assert answer.status == 200, (query, answer.body)
                check(answer, path)
    for query in ("nonsense=1", *[f"{name}=nonsense" for name in route.query if name not in ("key", "layer")]):
        answer = ask(f"{path.format(id=id)}?{query}")
        assert answer.status == 400
        check(answer, path) if route.query else answer.detail
    answer = nobody(path.format(id=id))
    assert answer.status == 401
    check(answer, path)
    if "{id}" in path:
        for unknown in (str(uuid.uuid4()), "nonsense"):
            answer = ask(path.format(id=unknown))
            assert answer.status == 404
            check(answer, path)


def test_answers_to_who_cancels_are_as_it_says(ask, view, monitor):
    path = f"/{api.ROOT}/computations/{{id}}/cancel"
    id = monitor.add()
    for asker, place, status in ((view, id, 403), (ask, uuid.uuid4(), 404), (ask, id, 202), (ask, id, 409)):
        answer = asker(path.format(id=place), "POST")
        assert answer.status == status
        check(answer, path, "POST")
    assert monitor.cancelled == [id]
    answer = ask(f"{path.format(id=id)}?now=1", "POST")
    assert answer.status == 400
    check(answer, path, "POST")


def test_an_end_that_cannot_be_recorded_is_asked_for_again(ask, monitor, monkeypatch):
    def never(id):
        raise OSError("the disk is full")

    path = f"/{api.ROOT}/computations/{{id}}/cancel"
    monkeypatch.setattr(monitor, "cancel", never)
    answer = ask(path.format(id=monitor.add()), "POST")
    assert (answer.status, answer.detail, answer.headers["retry-after"]) == (503, "the disk is full", "60")
    check(answer, path, "POST")


def test_it_is_served(ask, view):
    assert view.api("openapi.json").json == OPENAPI
