"""The API's routes, with their parameters, answers and errors. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Literal
from uuid import UUID

from dask_mars.web import answers
from dask_mars.web.monitor import STATES, Json, State

#: Prefix of all routes of the API.
ROOT = "api/v1"
#: Media types.
JSON, PROBLEM = "application/json", "application/problem+json"
#: The longest that a request is kept waiting for news, in seconds.
LONGEST_WAIT_S = 30.0
#: Computations in a list, if nothing else is asked for, and at most.
USUAL_LIMIT, LARGEST_LIMIT = 100, 1_000
#: Maximum length of a key or layer name in a request, in characters.
_LONGEST_NAME = 4_096


class Problem(Exception):
    """A request that cannot be answered, in the words of RFC 9457."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}

    def __str__(self) -> str:
        return self.detail


def problem(status: int, detail: str) -> Json:
    """Return the body of an answer of type ``application/problem+json``."""
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}


@dataclass(frozen=True)
class Answer:
    """An answer to a request, for the description of the API."""

    description: str
    #: Types of the body by media type: a typed dict of `dask_mars.web.answers`, or bytes.
    content: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """A route of the API."""

    method: str
    #: Below `ROOT`, with ``{id}`` for the id of a computation.
    path: str
    operation: str
    answers: Mapping[int, Answer]
    #: Names of parameters, of which `PARAMETERS` has the types; others are refused.
    query: tuple[str, ...] = ()
    problems: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()
    #: Type of the body's header.
    body: Any = None
    description: str = ""

    @property
    def pattern(self) -> str:
        """The path as a regular expression with the id as its only group."""
        return self.path.replace("{id}", "([^/]+)").replace(".", r"\.")


def _get(path: str, operation: str, body: Any, *query: str) -> Route:
    """Return a route that answers with JSON."""
    unknown = (404,) if "{id}" in path or "key" in query else ()
    too_many = (503,) if "wait" in query else ()
    return Route("GET", path, operation, {200: Answer("What there is.", {JSON: body})}, query, unknown + too_many)


_NUMBER = (("minimum", 0), ("exclusiveMaximum", 2**63))
#: Types of the parameters of routes, in the path, the query or a header.
PARAMETERS: Mapping[str, Any] = {
    "id": answers.Uuid,
    "after": Annotated[int, *_NUMBER, "The revision that is known: answer when there is another."],
    "wait": Annotated[float, *_NUMBER, f"How long to wait for that, in seconds; at most {LONGEST_WAIT_S:g}."],
    "state": Annotated[State, "Only those in this state."],
    "before": Annotated[str, "The `next` of the answer before."],
    "limit": Annotated[int, ("minimum", 1), ("maximum", LARGEST_LIMIT), ("default", USUAL_LIMIT), "How many."],
    "layer": Annotated[str, "The blocks of this layer, rather than all layers."],
    "key": Annotated[str, "Why this chunk is not computed."],
    "format": Annotated[
        Literal["pickle", "npy", "json"], "For links: goes before what is accepted by the header."
    ],
    "Range": Annotated[str, "One range of bytes."],
    "X-Dask-Mars": Annotated[Literal["1"], "Needed with a cookie."],
}

#: The routes of every API. A service for submitting adds its own.
ROUTES = (
    _get("state", "state", answers.Overview, "after", "wait"),
    _get("computations", "computations", answers.Computations, "state", "before", "limit"),
    _get("computations/{id}", "computation", answers.ComputationAnswer, "after", "wait"),
    Route(
        "POST",
        "computations/{id}/cancel",
        "cancel",
        {202: Answer("It is going to end.", {JSON: answers.Id})},
        problems=(404, 409, 413, 503),
        headers=("X-Dask-Mars",),
    ),
    _get("computations/{id}/error", "error", answers.Error),
    _get("computations/{id}/log", "log", answers.Log),
    _get("computations/{id}/timeline", "timeline", answers.Timeline),
    _get("computations/{id}/graph", "graph", answers.LayerGraph | answers.BlocksAnswer, "layer"),
    _get("computations/{id}/explain", "explain", answers.ExplanationAnswer, "key"),
    _get("explain", "explainAll", answers.ExplanationAnswer, "key"),
    _get("openapi.json", "openapi", dict[str, Any]),
)


# -- what is asked for ----------------------------------------------------------------------------------------


def check_names(query: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse unknown parameters: they may be misspelt."""
    unknown = sorted(set(query) - set(known))
    if unknown:
        names = ", ".join(known) or "none"
        raise Problem(400, f"unknown parameter {unknown[0][:100]!r}; there are: {names}")


def long_poll(query: Mapping[str, str]) -> tuple[int | None, float]:
    """Return the revision that a request knows, None if it does not wait for another, and its longest wait."""
    after = _number(query, "after", int)
    wait = _number(query, "wait", float)
    if after is None and wait is not None:
        raise Problem(400, "'wait' needs 'after': the revision that is known already")
    return after, min(wait or 0.0, LONGEST_WAIT_S)


def listing(query: Mapping[str, str]) -> tuple[str | None, str | None, int]:
    """Return the requested selection of computations, as `Monitor.computations` takes it."""
    state = query.get("state")
    if state is not None and state not in STATES:
        raise Problem(400, f"'state' is one of {', '.join(STATES)}")
    limit = _number(query, "limit", int)
    if limit is not None and not 1 <= limit <= LARGEST_LIMIT:
        raise Problem(400, f"'limit' is from 1 to {LARGEST_LIMIT}")
    return state, query.get("before"), limit or USUAL_LIMIT


def name_in(query: Mapping[str, str], of: str) -> str | None:
    """Return the name of a layer, or a key."""
    name = query.get(of)
    if name is not None and len(name) > _LONGEST_NAME:
        raise Problem(400, f"{of!r} is longer than {_LONGEST_NAME} characters")
    return name


def computation_id(text: str) -> str:
    """Return the id of a computation as it is known."""
    try:
        return str(UUID(text))
    except ValueError:
        raise Problem(404, "ids of computations are UUIDs") from None


def _number(query: Mapping[str, str], name: str, kind: type[Any]) -> Any:
    text = query.get(name)
    if text is None:
        return None
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 2**63:
        raise Problem(400, f"{name!r} is a number from 0 on")
    return number


# -- cursors --------------------------------------------------------------------------------------------------


def cursor(created: float, id: str) -> str:
    """Return text that says where a list was left, for `after_cursor`."""
    return f"{created!r},{id}"


def after_cursor(text: str) -> tuple[float, str]:
    """Return creation and id of the last computation that a list had."""
    created, _, id = text.partition(",")
    try:
        created_s = float(created)
    except ValueError:
        created_s = math.nan
    if not math.isfinite(created_s):
        raise ValueError("no cursor")
    return created_s, id


def page_of(summaries: list[Json], state: str | None, before: str | None, limit: int) -> Json:
    """Return a part of a list of summaries, as `Monitor.computations` does."""
    found = [one for one in summaries if state is None or one["state"] == state]
    if before is not None:
        last = after_cursor(before)
        found = [one for one in found if (one["created"], one["id"]) < last]
    found.sort(key=lambda one: (one["created"], one["id"]), reverse=True)
    shown = found[:limit]
    more = cursor(shown[-1]["created"], shown[-1]["id"]) if len(found) > limit else None
    return {"computations": shown, "next": more}
