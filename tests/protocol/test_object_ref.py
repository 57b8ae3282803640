"""What others ask of object references."""

from __future__ import annotations

import numpy as np
import pytest

from dask_mars.protocol import object_ref

BLOCKS = ((0, 4096, 48),)
FILE = object_ref.SpilledFile("/nowhere", 48, 0, "", (48,))

#: A reference of each kind: the question's answers are (stored, spilled, pickled, array, writeable, bytes).
ARRAY_REF = (object_ref.ARRAY, BLOCKS, "<f8", (2, 3), (24, 8), 0, False)
OBJECT_REF = (object_ref.OBJECT, BLOCKS, b"pickle", ((0, 0, 40),))
FLOAT64 = (np.dtype("float64"), (2, 3))
KINDS = {
    "value": ((object_ref.VALUE, 3), (False, False, False, None, None, 32)),
    "pickle": ((object_ref.PICKLE, b"1234"), (False, False, False, None, None, 4)),
    "handle": ((object_ref.HANDLE, b"12345"), (False, False, False, None, None, 5)),
    "small": ((object_ref.SMALL, "<i4", (2,), "C", True, b"12345678"), (False, False, False, None, None, 8)),
    "array": (ARRAY_REF, (True, False, False, FLOAT64, False, 48)),
    "writeable": ((*ARRAY_REF[:-1], True), (True, False, False, FLOAT64, True, 48)),
    "object": (OBJECT_REF, (True, False, True, None, None, 40)),
    "spilled array": ((object_ref.SPILLED, (), FILE, ARRAY_REF), (True, True, False, FLOAT64, None, 48)),
    "spilled object": ((object_ref.SPILLED, (), FILE, OBJECT_REF), (True, True, False, None, None, 40)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_question_has_an_answer_for_every_kind(kind):
    ref, answers = KINDS[kind]
    asked = (
        object_ref.is_stored(ref),
        object_ref.is_spilled(ref),
        object_ref.is_pickled(ref),
        object_ref.array_type(ref),
        object_ref.is_writeable_array(ref),
        object_ref.size_of(ref),
    )
    assert asked == answers


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_memory_has_blocks(kind):
    ref, (stored, spilled, *_) = KINDS[kind]
    assert object_ref.blocks_of(ref) == (BLOCKS if stored and not spilled else ())
    assert object_ref.blocks_of(object_ref.memory_ref(ref)) == (BLOCKS if stored else ())
