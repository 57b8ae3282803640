"""The comparison of records: all of it runs, and what is counted in bytes comes out as it is published."""

from __future__ import annotations

import pytest

from studies.records import COMPARISONS, Form

FORMS = [(title, number) for title, forms in COMPARISONS.items() for number in range(len(forms()))]


def bytes_of(form: Form) -> float:
    assert form.size is not None
    return form.size(form.make()) / form.count


@pytest.mark.parametrize(("title", "number"), FORMS)
def test_forms_that_are_compared_come_to_the_same(title, number):
    made = [form.read(form.make()) for form in COMPARISONS[title]()[number] if form.read is not None]
    if title.startswith("Sending") and "chunks" in title:
        assert all(value == made[0] for value in made[1:])
    elif title == "Sending an operand" and number == 1:
        assert all((value.functions, value.steps) == (made[0].functions, made[0].steps) for value in made)


def test_records_are_smaller_than_what_they_replace():
    (of_mars, ours) = COMPARISONS["Sending an operand"]()
    for group in (of_mars, ours):
        assert bytes_of(group[1]) < 0.7 * bytes_of(group[0])
    (title,) = [title for title in COMPARISONS if title.startswith("Sending") and "chunks" in title]
    for records, columns in COMPARISONS[title]():
        assert bytes_of(columns) < bytes_of(records)
    (forms,) = COMPARISONS["Getting an id"]()
    assert [bytes_of(form) for form in forms if form.size is not None] == [24, 32, 24, 12]
