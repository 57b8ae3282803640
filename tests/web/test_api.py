"""What may be asked for, without a server."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.web import api
from dask_mars.web.api import Problem, after_cursor, cursor, page_of


def test_questions_that_make_no_sense_are_refused():
    waits = [{"after": "1", "wait": wait} for wait in ("x", "-1", "nan", "inf", "1e400", "")]
    polls = [{"after": after} for after in ("x", "-1", "1.5", str(2**63))]
    lists = [{"state": "done"}, {"limit": "0"}, {"limit": "1001"}, {"limit": "ten"}]
    questions = [(api.long_poll, query, 400) for query in (*waits, *polls, {"wait": "1"})]
    questions += [(api.listing, query, 400) for query in lists]
    questions += [(api.computation_id, text, 404) for text in ("", "1", "..", "%2e%2e", "x" * 36)]
    for function, asked, status in questions:
        with pytest.raises(Problem) as caught:
            function(asked)
        assert caught.value.status == status, (function, asked)


def test_questions_are_read():
    assert api.long_poll({}) == (None, 0.0)
    assert api.long_poll({"after": "3"}) == (3, 0.0)
    assert api.long_poll({"after": "3", "wait": "1e9"}) == (3, api.LONGEST_WAIT_S)
    assert api.listing({}) == (None, None, api.USUAL_LIMIT)
    assert api.listing({"state": "failed", "before": "x", "limit": "7"}) == ("failed", "x", 7)
    id = uuid.uuid4()
    assert api.computation_id(id.hex) == str(id)
    assert api.problem(404, "no")["title"] == "Not Found"


@given(st.floats(0, 1e12), st.uuids().map(str))
def test_cursors(created, id):
    assert after_cursor(cursor(created, id)) == (created, id)
    for text in ("", "x", "é", "inf,a", cursor(float("nan"), "a")):
        with pytest.raises(ValueError, match="cursor"):
            after_cursor(text)


def test_a_list_comes_in_parts():
    summaries = [
        {"id": str(number), "created": number // 3, "state": "failed" if number % 2 else "queued"}
        for number in range(10)
    ]
    seen, before, is_begun = [], None, False
    while before is not None or not is_begun:
        part, is_begun = page_of(summaries, None, before, 4), True
        seen += part["computations"]
        before = part["next"]
    # Those of one moment are in the order of their ids, and none comes twice.
    assert seen == sorted(summaries, key=lambda one: (one["created"], one["id"]), reverse=True)
    assert {one["state"] for one in page_of(summaries, "failed", None, 100)["computations"]} == {"failed"}
    assert page_of([], None, None, 1) == {"computations": [], "next": None}
