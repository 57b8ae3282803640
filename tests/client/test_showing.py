from __future__ import annotations

from array import array
from html.parser import HTMLParser
from typing import Any

import pytest

import dask_mars
from dask_mars import Runtime
from dask_mars.client import tracking
from dask_mars.client.records import Record
from dask_mars.client.showing import Explanation, as_html, as_text, runtime_as_html
from dask_mars.client.tracking import FinalSource
from dask_mars.errors import Cancelled
from dask_mars.observe.layers import LayerIndex


class Parsed(HTMLParser):
    """Text and tags of HTML, all of which have to be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def record_of(layers: int = 1, chunks: int = 3, name: str = "sum of <ones>") -> Record:
    """A computation of which each layer has one chunk that is computed."""
    keys = [(f"layer<{layer}>-" + "0" * 32, chunk) for layer in range(layers) for chunk in range(chunks)]
    index = LayerIndex(keys, [0] * len(keys))
    durations = array("f", [0.0123456789 if key[1] == 0 else -1 for key in keys])
    stored = array("q", [1234567] * len(keys))
    last = tracking.Last(len(keys), index, durations, stored, (), [()] * len(keys))
    record = Record(name, id="6f5a6e0e-7f6c-4c52-9c5c-3b1f3f3a0001")
    with record:
        record.run(FinalSource(last), lambda: True, 1)
    return record


def test_a_computation_in_a_notebook():
    html = as_html(record_of())
    assert "show it again" not in html
    shown = Parsed(html)
    assert "sum of <ones>" in shown.texts
    assert "1 of 3 chunks (33 %)" in shown.texts
    assert {"layer<0>", "12.3 ms", "1.18 MiB", "1 of 3"} <= set(shown.texts)
    assert 'aria-label="33 % computed"' in html
    assert "0.0123" not in html


def test_before_there_are_chunks():
    record = Record("early")
    assert "no chunks yet" in Parsed(as_html(record)).texts
    assert "show it again to see how it goes on" in Parsed(as_html(record)).text
    assert as_text(record) == "<Computation 'early' queued>"
    assert f"computation {record.id[:8]}" not in as_html(record)


def test_without_a_name_it_has_the_beginning_of_its_id():
    record = Record()
    assert f"computation {record.id[:8]}" in as_html(record)
    assert record.id in as_text(record)


def test_an_error_is_a_line_and_escaped():
    record = Record("bad")
    with pytest.raises(ValueError, match="b"), record:
        raise ValueError("<b>\nno</b> " + "much more " * 10_000)
    html = as_html(record)
    assert "<b>\n" not in html
    assert "ValueError: &lt;b&gt; no&lt;/b&gt; much" in html
    assert "…" in html
    assert len(html) < 3_000
    text = as_text(record)
    assert "\n" not in text
    assert len(text) < 400


def test_of_many_layers_the_smaller_ones_are_counted():
    shown = Parsed(as_html(record_of(layers=30)))
    assert "and 10 smaller layers" in shown.texts
    assert shown.tags.count("tr") == 21


def test_a_cancelled_one():
    record = Record("c")
    record.end(Cancelled(record.id))
    assert "cancelled" in Parsed(as_html(record)).text


def test_an_explanation_is_text_and_a_list():
    told = Explanation("worker 0 has <x> [050000000000250000000000]\nworker 1 has nothing")
    assert told == str(told) == repr(told)
    assert Parsed(told._repr_html_()).texts == ["worker 0 has <x>", "worker 1 has nothing"]


def test_a_runtime_shows_its_latest_computations():
    shown = Parsed(runtime_as_html("here", ["<fact>"], [record_of() for _ in range(12)]))
    assert "<fact>" in shown.texts
    assert shown.tags.count("tr") == 11
    assert "and 2 older computations" in shown.texts


def test_a_runtime_shows_itself_at_any_time():
    with Runtime(num_workers=1) as runtime:
        assert repr(runtime) == "<Runtime running num_workers=1>"
        assert runtime.submit_graph({"x": (abs, -1)}, "x", name="<one>").result(100) == 1
        shown = Parsed(runtime._repr_html_())
        assert {"<one>", "1 worker"} <= set(shown.texts)
        assert "memory in use" in shown.text
        assert isinstance(runtime.explain(), Explanation)
    assert "dask_mars.Runtime, closed" in Parsed(runtime._repr_html_()).texts
    assert repr(dask_mars.Runtime(1)) == "<Runtime not started num_workers=1>"
