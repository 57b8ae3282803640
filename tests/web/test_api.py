"""What may be asked for, without a server."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.web import api
from dask_mars.web.api import LongPoll, Problem, after_cursor, cursor, page_of


def refusal(function, *arguments):
    with pytest.raises(Problem) as caught:
        function(*arguments)
    return caught.value.status


@pytest.mark.parametrize("query", [{"after": "x"}, {"after": "-1"}, {"after": "1.5"}, {"after": str(2**63)}])
def test_revisions_that_are_none(query):
    assert refusal(api.long_poll, query) == 400


@pytest.mark.parametrize("wait", ["x", "-1", "nan", "inf", "1e400", ""])
def test_times_that_are_none(wait):
    assert refusal(api.long_poll, {"after": "1", "wait": wait}) == 400


def test_who_waits_says_for_what():
    assert refusal(api.long_poll, {"wait": "1"}) == 400
    assert api.long_poll({}) == LongPoll(None, 0.0)
    assert api.long_poll({"after": "3"}) == LongPoll(3, 0.0)
    assert api.long_poll({"after": "3", "wait": "1e9"}).wait_s == api.LONGEST_WAIT_S


def test_what_answers_who_waits():
    assert LongPoll(None, 0).is_answered_by(1)
    assert not LongPoll(1, 5).is_answered_by(1)
    assert LongPoll(1, 5).is_answered_by(2)
    # The server was started anew.
    assert LongPoll(9, 5).is_answered_by(1)


@pytest.mark.parametrize("query", [{"state": "done"}, {"limit": "0"}, {"limit": "1001"}, {"limit": "ten"}])
def test_lists_that_are_none(query):
    assert refusal(api.listing, query) == 400


def test_lists():
    assert api.listing({}) == api.Listing(None, None, api.USUAL_LIMIT)
    assert api.listing({"state": "failed", "before": "x", "limit": "7"}) == api.Listing("failed", "x", 7)


def test_unknown_parameters_are_refused():
    api.check_names({"a": 1}, ("a", "b"))
    assert refusal(api.check_names, {"c": 1}, ("a", "b")) == 400
    assert refusal(api.check_names, {"c": 1}, ()) == 400


def test_ids():
    id = uuid.uuid4()
    assert api.computation_id(id.hex) == str(id)
    for text in ("", "1", "..", "%2e%2e", "x" * 36):
        assert refusal(api.computation_id, text) == 404
    assert refusal(api.name_in, {"key": "k" * 5000}, "key") == 400


def test_problems():
    assert api.problem(404, "no")["title"] == "Not Found"
    assert api.problem(499, "no")["title"] == "Error"


@given(st.floats(0, 1e12), st.text())
def test_cursors(created, id):
    assert after_cursor(cursor(created, id)) == (created, id)


@pytest.mark.parametrize("text", ["", "x", "é", "inf,a", cursor(float("nan"), "a")])
def test_some_cursors_that_are_none(text):
    with pytest.raises(ValueError, match="cursor"):
        after_cursor(text)


def test_a_list_comes_in_parts():
    summaries = [
        {"id": str(number), "created": number // 3, "state": "failed" if number % 2 else "queued"}
        for number in range(10)
    ]
    seen, before = [], None
    while True:
        part = page_of(summaries, None, before, 4)
        seen += part["computations"]
        before = part["next"]
        if before is None:
            break
    # Those of one moment are in the order of their ids, and none comes twice.
    assert seen == sorted(summaries, key=lambda one: (one["created"], one["id"]), reverse=True)
    assert {one["state"] for one in page_of(summaries, "failed", None, 100)["computations"]} == {"failed"}
    assert page_of([], None, None, 1) == {"computations": [], "next": None}
