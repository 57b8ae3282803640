"""What is made of the same chunks: what is put together, what stays, and the values."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_mars.graph.chunks import ChunkGraph
from tests.symbolic import function_names, in_place, prepared

pytestmark = pytest.mark.usefixtures("small_chunks")


def colours(rows: int = 96) -> list[Any]:
    picture = np.random.default_rng(0).integers(0, 255, (rows, 240, 3), np.uint8)
    rgb = da.map_blocks(lambda part: part, da.from_array(picture, chunks=(6, 240, 3)), dtype=np.uint8)
    return [rgb[:, :, channel].astype(np.float32) for channel in range(3)]


check = partial(in_place, workers=2)


def names_of(graph: ChunkGraph) -> list[list[str]]:
    return [function_names(graph.operands[number]) for number in graph.operand_of]


def test_all_that_is_made_of_a_picture_is_made_where_it_is_read():
    red, green, blue = colours()
    light = 0.2 * red + 0.7 * green + 0.1 * blue
    water = (blue - green > 10) & (blue - red > 24)
    land = ~water & (light > 20)
    graph = check(light.mean(axis=1), water.mean(axis=1), da.where(land, light, 0).sum(axis=1), land.sum(axis=1))
    names = names_of(graph)
    # For each part of the picture one chunk, and others for what is put together of them.
    assert len([found for found in names if "astype" in found]) == 16
    assert len([found for found in names if "where" in found]) == 16
    assert not any("astype" in found and "make_tuple" not in found for found in names)


def test_one_large_result_is_put_together_with_what_leads_to_it():
    red, green, blue = colours()
    light, share = red + green + blue, red - green
    graph = check(da.map_blocks(np.sort, da.where(share > 0, light, share), dtype=np.float32))
    assert len([found for found in names_of(graph) if "astype" in found]) == 16
    assert not graph.joined_bytes


def test_what_large_results_have_in_common_stays():
    red, green, _ = colours()
    light = red + green
    first, second = (da.map_blocks(np.sort, values, dtype=np.float32) for values in (light * 2, light / (red + 1)))
    graph = check(first, second)
    assert not graph.joined_bytes


def test_what_the_user_is_to_have_is_each_by_itself():
    red, green, _ = colours()
    light = red + green
    thumbnails = light[::6, ::6], (light > 200)[::6, ::6]
    graph = check(*thumbnails, light.mean(axis=1))
    assert len(graph.joined_bytes) == 16
    names = names_of(graph)
    assert len([found for found in names if "astype" in found]) == 16
    # What takes a value from the tuple has no name.
    assert len([found for found in names if found[0] == "?"]) >= 2 * 16


def test_what_is_small_does_not_have_its_source_wait_for_others():
    red, _, _ = colours()
    graph = check((red[:, :6] - red.mean(axis=0)[:6]).max(axis=1), (red[:, :6] * 2).sum(axis=1))
    names = names_of(graph)
    assert not any("sub" in found and "astype" in found for found in names)


def test_sums_that_run_from_chunk_to_chunk_do_not_wait_for_what_is_made_of_them():
    x = da.random.default_rng(0).random((240, 240), chunks=(30, 24))
    graph = check(x.cumsum(axis=0).max(axis=1))
    assert len(graph) == len(prepared(x.cumsum(axis=0).max(axis=1)))


def test_not_where_there_are_too_few_for_all_workers():
    red, green, blue = colours()
    light = red + green + blue
    results = light.sum(axis=1), (light * red).sum(axis=1)
    assert check(*results, workers=4).joined_bytes
    assert not check(*results, workers=5).joined_bytes


def test_annotated_chunks_stay_as_they_are():
    red, green, blue = colours()
    with dask.annotate(retries=2):
        light = red + green + blue
    graph = check(light.sum(axis=1), (light * red).sum(axis=1))
    assert graph.retries
    assert not set(graph.retries) & set(graph.joined_bytes)


COMBINING = {
    "add": lambda first, second: first + second,
    "where": lambda first, second: da.where(first > 0.5, second, 1),
    "scale": lambda first, second: first * 3,
    "root": lambda first, second: da.sqrt(abs(first - second)),
    "anomaly": lambda first, second: (first - first.mean()) * second,
    "rows": lambda first, second: first - second.sum(axis=0),
}
ENDING = {
    "all": lambda array: array,
    "sum": lambda array: array.sum(axis=1),
    "mean": lambda array: array.mean(),
    "thumbnail": lambda array: array[::6, ::3],
    "largest": lambda array: array.max(axis=0),
}


@st.composite
def elementwise_graphs(draw: Any) -> list[Any]:
    """Arrays that are made of one another, and what is made of them in the end."""
    generator = da.random.default_rng(0)
    arrays = colours(48) if draw(st.booleans()) else [generator.random((48, 24), chunks=(6, 24)) for _ in range(3)]
    for _ in range(draw(st.integers(2, 12))):
        first, second = draw(st.sampled_from(arrays)), draw(st.sampled_from(arrays))
        arrays.append(COMBINING[draw(st.sampled_from(sorted(COMBINING)))](first, second))
    endings = draw(st.lists(st.sampled_from(sorted(ENDING)), min_size=1, max_size=5))
    return [ENDING[ending](draw(st.sampled_from(arrays))) for ending in endings]


@settings(max_examples=12)
@given(elementwise_graphs())
def test_any_of_them_comes_to_the_same(results):
    with np.errstate(all="ignore"):
        check(*results)
