"""The description of the API says what the routes are, and what they answer."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from jsonschema import Draft202012Validator, ValidationError

from dask_mars.web import api, openapi
from dask_mars.web.api import JSON, Answer, Route
from tests.web import described
from tests.web.described import OPENAPI, SERVICE


def check(answer: Any, path: str, method: str = "GET") -> None:
    """Hold an answer against the description."""
    described.check(answer.json, path, method, answer.status, answer.headers["content-type"])


@pytest.mark.parametrize("document", [OPENAPI, SERVICE], ids=["server", "service"])
def test_its_schemas_are_schemas(document):
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert named == set(document["components"]["schemas"])


class Inner(TypedDict):
    """Inner."""

    pair: tuple[int, Annotated[str, ("maxLength", 2)]]


class Outer(TypedDict):
    """Outer."""

    kind: Literal["a", "b"]
    inner: Inner | None
    more: NotRequired[Annotated[list[float], "For readers."]]


def test_types_are_schemas():
    route = Route("GET", "x", "x", {200: Answer("", {JSON: Outer})})
    document = openapi.document([route])
    assert document["components"]["schemas"]["Outer"]["properties"]["more"]["description"] == "For readers."
    right = {"kind": "a", "inner": {"pair": [1, "ab"]}}
    for told in (right, {"kind": "b", "inner": None, "more": [1, 1.5]}):
        described.check(told, "x", "GET", 200, JSON, document)
    wrong = [
        {"kind": "c"},
        {"inner": {}},
        {"inner": {"pair": [1]}},
        {"inner": {"pair": [1, "abc"]}},
        {"more": [""]},
    ]
    for told in ({"kind": "a"}, {**right, "other": 1}, *[right | each for each in wrong]):
        with pytest.raises(ValidationError):
            described.check(told, "x", "GET", 200, JSON, document)


@pytest.mark.parametrize(
    "route", [route for route in api.ROUTES if route.method == "GET"], ids=lambda route: route.path
)
def test_answers_are_as_it_says(route, ask, view, without_token, monitor):
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
                check(answer, route.path)
    for query in ("nonsense=1", *[f"{name}=nonsense" for name in route.query if name not in ("key", "layer")]):
        answer = ask(f"{path.format(id=id)}?{query}")
        assert answer.status == 400
        check(answer, route.path)
    answer = without_token(path.format(id=id))
    assert answer.status == 401
    check(answer, route.path)
    if "{id}" in path:
        for unknown in (str(uuid.uuid4()), "nonsense"):
            answer = ask(path.format(id=unknown))
            assert answer.status == 404
            check(answer, route.path)


def test_answers_to_who_cancels_are_as_it_says(ask, view, monitor, monkeypatch):
    path = "computations/{id}/cancel"
    id = monitor.add()
    for asker, place, status in ((view, id, 403), (ask, uuid.uuid4(), 404), (ask, id, 202), (ask, id, 409)):
        answer = asker.api(path.format(id=place), "POST")
        assert answer.status == status
        check(answer, path, "POST")
    assert monitor.cancelled == [id]
    answer = ask.api(f"{path.format(id=id)}?now=1", "POST")
    assert answer.status == 400
    check(answer, path, "POST")

    def never(id):
        raise OSError("the disk is full")

    # An end that cannot be recorded is asked for again.
    monkeypatch.setattr(monitor, "cancel", never)
    answer = ask.api(path.format(id=monitor.add()), "POST")
    assert (answer.status, answer.detail, answer.headers["retry-after"]) == (503, "the disk is full", "60")
    check(answer, path, "POST")


def test_it_is_served(ask, view):
    assert view.api("openapi.json").json == OPENAPI
