"""Results of a service in every form, whole and in part, as long as they are kept; and what else is kept."""

from __future__ import annotations

import io
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.errors import ServiceError
from dask_mars.web import wire
from tests.conftest import eventually
from tests.web import described
from tests.web.services import RunningService, raw, submission

pytest.importorskip("tornado")


def check(path: str, method: str, status: int, headers: Any, text: bytes) -> Any:
    """Hold an answer in JSON against the description of the API, and return it."""
    told = json.loads(text)
    kind = headers["Content-Type"]
    described.check(told, f"computations/{{id}}{path}", method, status, kind, described.SERVICE)
    return told


def result(served: RunningService, id: str, **headers: str) -> tuple[int, Any, bytes]:
    return raw(served, "GET", f"computations/{id}/result", **headers)


def test_arrays_are_had_as_files_of_numpy(served, service) -> None:
    for values in (
        np.arange(12.0).reshape(3, 4),
        np.arange(160_000).reshape(400, 400),
        np.asfortranarray(np.arange(160_000).reshape(400, 400)),
        np.array("2026-01-01", "M8[D]"),
    ):
        computation = service.submit(da.from_array(values))
        assert np.array_equal(computation.result(100), values)
        status, headers, text = result(served, computation.id, Accept="application/x-npy")
        assert (status, headers["Content-Type"]) == (200, "application/x-npy")
        assert headers["Content-Disposition"] == f'attachment; filename="{computation.id}.npy"'
        assert int(headers["Content-Length"]) == len(text)
        found = np.load(io.BytesIO(text), allow_pickle=False)
        assert (found.dtype, found.shape) == (values.dtype, values.shape)
        assert np.array_equal(found, values)
        assert raw(served, "GET", f"computations/{computation.id}/result?format=npy")[2] == text


def test_small_results_are_had_as_json(served, service) -> None:
    for value in (7, "text", [1, [2.5]], {"a": None}, True):
        computation = service.submit(dask.delayed(lambda value: value)(value))
        assert computation.wait(100)
        told = check("/result", "get", *result(served, computation.id, Accept="application/json"))
        assert told["value"] == value
    small, large = service.submit(da.arange(5, chunks=2)), service.submit(da.arange(50_000, chunks=-1))
    assert small.wait(100)
    assert large.wait(100)
    told = check("/result", "get", *result(served, small.id, Accept="application/json"))
    known = {"kind": "array", "dtype": "int64", "shape": [5], "bytes": 40, "evicted": False}
    assert told == {**known, "value": [0, 1, 2, 3, 4]}
    assert result(served, large.id, Accept="application/json")[0] == 406


def test_parts_are_had_by_ranges(served, service) -> None:
    computation = service.submit(da.arange(1000, chunks=100))
    assert computation.wait(100)
    headers, whole = result(served, computation.id)[1:]
    assert (headers["Content-Type"], headers["Accept-Ranges"]) == (wire.MEDIA_TYPE, "bytes")
    status, headers, text = result(served, computation.id, Range="bytes=10-19")
    assert (status, text) == (206, whole[10:20])
    assert headers["Content-Range"] == f"bytes 10-19/{len(whole)}"
    assert result(served, computation.id, Range="bytes=-7")[2] == whole[-7:]
    npy = result(served, computation.id, Accept="application/x-npy")[2]
    for start in (0, 50, 127, 128, 129, 1000):
        found = result(served, computation.id, Accept="application/x-npy", Range=f"bytes={start}-")
        assert (found[0], found[2]) == (206, npy[start:])
    status, headers, text = result(served, computation.id, Range="bytes=100000000-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{len(whole)}")
    check("/result", "get", status, headers, text)
    status, headers, text = raw(served, "HEAD", f"computations/{computation.id}/result")
    assert (status, int(headers["Content-Length"]), text) == (200, len(whole), b"")
    tag = headers["ETag"]
    assert result(served, computation.id, Range="bytes=1-2", If_Range=tag)[0] == 206
    # Who has begun with something else gets it whole.
    assert result(served, computation.id, Range="bytes=1-2", If_Range='"other"')[::2] == (200, whole)


def test_a_line_that_breaks_in_a_download_is_connected_again(served, service, monkeypatch) -> None:
    from dask_mars.web import connection

    values = np.random.default_rng(3).random(200_000)
    computation = service.submit(da.from_array(values))
    assert computation.wait(100)
    some, cuts = connection.Download._some, []

    def cut(self: Any, target: memoryview) -> int:
        if len(cuts) < 3 and len(target) > 100_000 and self._response is not None:
            cuts.append(self._at)
            self._response = None
            self._open.close()
            raise ConnectionResetError
        return some(self, target[:50_000])

    monkeypatch.setattr(connection.Download, "_some", cut)
    assert np.array_equal(computation.result(), values)
    assert len(cuts) == 3


def test_who_downloads_what_is_deleted_gets_all_of_it_or_hears_so(served, service) -> None:
    values = np.arange(1 << 18)
    for _ in range(3):
        computation = service.submit(da.from_array(values, chunks=-1))
        assert computation.wait(100)
        path = f"computations/{computation.id}/result?format=npy"
        with ThreadPoolExecutor(4) as readers:
            answers = [readers.submit(raw, served, "GET", path) for _ in range(4)]
            computation.delete()
            for answer in answers:
                status, headers, body = answer.result(timeout=100)
                if status == 200:
                    assert np.array_equal(np.load(io.BytesIO(body)), values)
                else:
                    assert status in (404, 410)
                    assert headers["Content-Type"] == "application/problem+json"


def test_the_oldest_results_go_when_there_is_too_much(served, service) -> None:
    first = service.submit(da.ones(200_000, chunks=-1), name="first")
    assert first.wait(100)
    for _ in range(2):
        assert service.submit(da.random.default_rng().random(200_000, chunks=-1)).wait(100)
    assert eventually(lambda: first.summary()["result"]["evicted"], 10)
    status, headers, text = result(served, first.id)
    assert status == 410
    assert "dask-mars.web.history" in check("/result", "get", status, headers, text)["detail"]
    with pytest.raises(ServiceError, match="not kept any more") as caught:
        first.result()
    assert caught.value.status == 410
    # What it was is remembered, and what is newer is there.
    assert (first.state, first.name, first.log()) == ("finished", "first", [])
    assert next(service.computations()).result().shape == (200_000,)


def test_answers_to_who_submits_are_as_described(served, service) -> None:
    id, body = str(uuid.uuid4()), submission(da.arange(4, chunks=2), name="four")
    for expected in (201, 200):
        told = check("", "put", *(found := raw(served, "PUT", f"computations/{id}", body)))
        assert (found[0], told["id"], told["name"]) == (expected, id, "four")
    assert check("", "put", *raw(served, "PUT", f"computations/{id}", submission(1)))["status"] == 409
    status, _, text = raw(served, "DELETE", f"computations/{id}")
    assert (status, text) == (204, b"")
    assert check("", "delete", *raw(served, "DELETE", f"computations/{id}"))["status"] == 404
    assert check("", "put", *raw(served, "PUT", f"computations/{id}", b""))["status"] == 400


def test_the_description_is_served(served) -> None:
    status, _, text = raw(served, "GET", "openapi.json")
    assert (status, json.loads(text)) == (200, described.SERVICE)


def test_why_it_failed_is_kept(served, service) -> None:
    def fails(x: int) -> int:
        print("looking at", x)
        raise LookupError(f"nothing at {x}")

    computation = service.submit(dask.delayed(fails)(3), name="bad")
    with pytest.raises(LookupError, match="nothing at 3"):
        computation.result(100)
    path = f"computations/{computation.id}"
    told = json.loads(raw(served, "GET", f"{path}/error")[2])
    assert (told["type"], told["message"]) == ("LookupError", "nothing at 3")
    assert "in fails" in told["traceback"]
    assert computation.summary()["error"] == {"type": "LookupError", "message": "nothing at 3"}
    assert [line["text"] for line in computation.log()] == ["looking at 3"]
    told = check("/result", "get", *raw(served, "GET", f"{path}/result"))
    assert told["error"].keys() == {"state", "type", "message", "traceback", "pickle"}


def test_what_was_quick_has_a_history_too(served, service) -> None:
    computation = service.submit(da.random.default_rng(1).random((100, 100), chunks=50).sum())
    computation.result(100)
    layers = computation.summary()["layers"]
    assert layers
    assert all(layer["finished"] == layer["total"] > 0 for layer in layers)
    assert {layer["label"] for layer in computation.profile()} == {layer["label"] for layer in layers}
    path = f"computations/{computation.id}"
    for facet in ("timeline", "graph", "log", "explain", "error"):
        check(f"/{facet}", "get", *raw(served, "GET", f"{path}/{facet}"))
    assert json.loads(raw(served, "GET", f"{path}/timeline")[2])["tasks"]
    assert json.loads(raw(served, "GET", f"{path}/graph")[2])["layers"]
    assert computation.explain() == "it is over: finished"
    # Blocks are not kept: they may be millions.
    assert raw(served, "GET", f"{path}/graph?layer={layers[0]['name']}")[0] == 404
    assert raw(served, "GET", f"{path}/explain?key=x")[0] == 404
