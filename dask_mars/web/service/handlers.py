"""Routes that a service adds to the API: submit, delete, fetch the result."""

from __future__ import annotations

from typing import Any, Literal

from dask_mars.web import answers, api, wire
from dask_mars.web.api import JSON, PROBLEM, Answer, Route
from dask_mars.web.handling import Rule, Site
from dask_mars.web.service.downloads import NPY, ResultHandler
from dask_mars.web.service.monitor import ServiceContext
from dask_mars.web.service.submissions import SubmissionHandler

_BINARY: dict[str, Any] = dict.fromkeys((wire.MEDIA_TYPE, NPY, JSON), bytes)
_HEADERS = {"ETag": str, "Accept-Ranges": Literal["bytes"]}

#: The routes of a service, in addition to `api.ROUTES`.
ROUTES = (
    Route(
        "PUT",
        "computations/{id}",
        "submit",
        {
            200: Answer("It was there already, with the same body.", {JSON: answers.ComputationAnswer}),
            201: Answer("It is recorded, and going to be computed.", {JSON: answers.ComputationAnswer}),
        },
        problems=(404, 409, 411, 413, 415, 422, 503),
        headers=("X-Dask-Mars",),
        body=answers.Submission,
        description=(
            "The client chooses the id, so that a request may be made again whose answer was lost. The body "
            "begins with the bytes DMW1 and the length of a header, a little-endian number of 32 bits. The header "
            "is JSON, see Submission; after it come the frames. The body is at most dask-mars.web.body-limit "
            "long, and its length must be given."
        ),
    ),
    Route(
        "DELETE",
        "computations/{id}",
        "delete",
        {204: Answer("The service knows it no more. One that was not over is cancelled.")},
        problems=(404, 413, 503),
        headers=("X-Dask-Mars",),
    ),
    Route(
        "GET",
        "computations/{id}/result",
        "result",
        {
            200: Answer("All of it.", _BINARY | {JSON: answers.SmallResult}, _HEADERS),
            206: Answer("The part that was asked for.", _BINARY, {**_HEADERS, "Content-Range": str}),
            409: Answer(
                "There is none: it is not over yet, has failed or was cancelled.", {PROBLEM: answers.NoResult}
            ),
        },
        ("format",),
        problems=(404, 406, 410, 413, 416),
        headers=("Range",),
        description=(
            "The first form that Accept names: a pickle in frames, laid out like a submission; a file of NumPy's "
            "for arrays; JSON for small numbers, texts and arrays. A pickle is code: load those of services that "
            "you trust."
        ),
    ),
)


def rules(site: Site, service: ServiceContext) -> list[Rule]:
    """Return the handlers of the routes that a service adds."""
    shared = {"site": site, "service": service}
    return [
        (rf"/{api.ROOT}/computations/([^/]+)", SubmissionHandler, shared),
        (rf"/{api.ROOT}/computations/([^/]+)/result", ResultHandler, shared),
    ]
