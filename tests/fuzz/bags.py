"""Bags, and delayed calls that may hold anything."""

from __future__ import annotations

from tests.fuzz.arrays import Text
from tests.fuzz.maker import Maker
from tests.fuzz.operations import Variable, operation, source

# What an element of a bag is cannot be seen. So bags are of integers, and what makes other elements ends with
# what does not depend on them, or is made in one expression.


@source("bag", 4)
def counted(make: Maker) -> Text:
    items = make.integer(0, 60) if make.size == "small" else make.integer(1_000, 3_000)
    parts = make.integer(1, 7)
    if make.chance(0.2):
        return f"db.from_delayed([delayed(list)(range({items})), delayed([1, 2, 3])])"
    if make.chance(0.2):
        return f"db.from_sequence([(n * 7) % 13 for n in range({items})], npartitions={parts})"
    return f"db.{make.choice(['range', 'range'])}({max(items, 1)}, npartitions={parts})"


@operation("bag", 6)
def mapped(make: Maker, b: Variable) -> Text:
    number = make.integer(2, 6)
    return [
        f"{b}.map(lambda n: n * {number})",
        f"{b}.map(operator.add, {number})",
        f"{b}.map(lambda n, by: n + by, by={b}.max())",
        f"db.map(operator.add, {b}, {b})",
        f"{b}.filter(material.is_even)",
        f"{b}.remove(lambda n: n > {number * 5})",
        f"{b}.map_partitions(lambda part: [n + 1 for n in part])",
        f"{b}.map_partitions(lambda part: list(part)[::-1])",
        f"{b}.map(lambda n: {{'n': n, 'd': n % 3}}).pluck('n')",
        f"{b}.map(lambda n: [n, -n]).flatten()",
        f"{b}.map(lambda n: (n, n * 2)).pluck([0, 1]).starmap(operator.add)",
        f"{b}.random_sample(0.6, random_state={make.seed()})",
        f"{b}.accumulate(operator.add)",
        f"db.zip({b}, {b}).starmap(lambda x, y: x - 2 * y)",
        f"db.concat([{b}, {b}])",
        f"{b}.repartition(npartitions={make.integer(1, 5)})",
        f"{b}.map(lambda n: str(n)).map(len)",
        f"{b}.map(lambda n: np.int32(n % 100)).map(int)",
    ]


@operation("bag", 4)
def grouped(make: Maker, b: Variable) -> Text:
    return [
        f"{b}.groupby(lambda n: n % 3, shuffle='tasks').map(lambda pair: sum(pair[1]))",
        f"{b}.groupby(material.last_digit, shuffle='tasks', npartitions=2)"
        ".map(lambda pair: pair[0] + len(pair[1]))",
        f"{b}.groupby(lambda n: n % 3, shuffle='disk').map(lambda pair: sum(pair[1])).map_partitions(sorted)"
        ".repartition(npartitions=1).map_partitions(sorted)",
        f"{b}.foldby(lambda n: n % 4, operator.add, 0, operator.add, 0)"
        ".map(lambda pair: pair[0] * 1000 + pair[1])",
        f"{b}.foldby(material.is_even, max, 0).pluck(1)",
        f"{b}.frequencies().map(lambda pair: pair[0] * 100 + pair[1])",
        f"{b}.map(lambda n: n % 11).distinct()",
        f"{b}.topk({make.integer(1, 5)})",
        f"{b}.topk(3, key=lambda n: -n)",
        f"{b}.join([1, 2, 3], lambda n: n % 5).map(sum)",
        f"db.from_delayed([{b}.map(lambda n: n % 50).to_delayed()[0]])",
    ]


@operation("bag", 4)
def folded(make: Maker, b: Variable) -> Text:
    return [
        f"{b}.sum()",
        f"{b}.max()",
        f"{b}.min()",
        f"{b}.count()",
        f"{b}.mean()",
        f"{b}.std()",
        f"{b}.any()",
        f"{b}.fold(operator.add, initial={make.integer(0, 3)})",
        f"{b}.fold(lambda total, n: total + n % 7, operator.add, initial=0, split_every=2)",
        f"{b}.reduction(sum, lambda sums: [*sums], split_every=False)",
        f"{b}.reduction(lambda part: sorted(part)[:2], lambda parts: list(parts))",
    ]


@operation("bag", 2)
def elsewhere(make: Maker, b: Variable) -> Text:
    return [
        f"delayed(list)({b})",
        f"delayed(material.describe)({b})",
        f"delayed(sum)({b}.to_delayed()[0])",
        f"{b}.map(lambda n: {{'key': n % 3, 'value': n}}).to_dataframe(meta={{'key': 'i8', 'value': 'i8'}})",
    ]


@operation("bag", 1.5)
def other_elements(make: Maker, b: Variable) -> Text:
    """End with elements that are no numbers."""
    return [
        f"delayed(list)({b}.map(lambda n: {{'n': n, 'l': [n, (n,)]}}))",
        f"delayed(list)({b}.map(lambda n: np.arange(n % 4)))",
        f"delayed(list)({b}.map(lambda n: material.WORDS[n % 8]).frequencies(sort=True))",
        f"delayed(list)({b}.map(str).map(str.upper).map(lambda text: (text, None, 1.5)))",
        f"delayed(list)(db.map(lambda n: n / 7, {b}))",
        f"delayed(list)({b}.map(lambda n: material.divided(1, n - 4)))",
        f"delayed(list)({b}.map(lambda n: np.datetime64(n % 1000, 'D')))",
    ]


@operation("item", 2)
def of_item(make: Maker, i: Variable) -> Text:
    return make.choice(
        [f"{i}.to_delayed()", f"{i}.apply(lambda value: (value, 3))", f"delayed(lambda value: [value])({i})"]
    )


# -- delayed ------------------------------------------------------------------------------------------------------


@source("delayed", 4)
def called(make: Maker) -> Text:
    number = make.integer(0, 9)
    return [
        f"delayed({number})",
        f"delayed(lambda: {number})()",
        f"delayed(material.add)({number}, 2)",
        f"delayed(material.add, pure=True)({number}, [1][0])",
        f"delayed(values)({make.seed()}, {make.shape()}, {make.dtype()!r})",
        f"delayed(table)({make.seed()}, {make.integer(0, 30)})",
        f"delayed({{'a': {number}, 'b': [delayed(abs)(-{number}), (1, 2)]}})",
        f"delayed([delayed(material.add)(1, {number}), {{'x': delayed(list)(range(3))}}])",
        f"delayed(values, nout=2)({make.seed()}, (2, 3))[1]",
        f"delayed([1, {number}], traverse=False)",
        f"delayed(material.nested)({number + 1})",
        "delayed(lambda: (lambda n: n))()(4)",
        f"delayed({{1, 2, {number}}})",
        f"delayed(dict)(a=delayed(abs)(-1), b={number})",
        "delayed(lambda: (n for n in range(3)))().__next__()",
        "delayed(slice)(1, delayed(abs)(-3))",
    ]


@operation("delayed", 9)
def combined(make: Maker, d: Variable) -> Text:
    others = make.some(3)
    listed = ", ".join(map(str, others))
    return [
        f"delayed(material.describe)({d})",
        f"delayed(lambda x: [x, x])({d})",
        f"delayed(lambda *parts: list(parts))({d}, {listed})",
        f"delayed([{d}, {listed}])",
        f"delayed({{'first': {d}, 'others': ({listed},)}})",
        f"delayed(material.describe)([{d}, {{'k': [{listed}]}}])",
        f"delayed(lambda x, flag=None: x)({d}, flag=[{listed}])",
        f"delayed(lambda x: (x, 'text', None, b'bytes', 1.5, frozenset([3])))({d})",
        f"delayed(dict)(first={d}, second=3)",
        f"delayed(lambda pair: pair, nout=2)([{d}, 5])[0]",
        f"delayed(lambda x: type(x).__name__)({d})",
        f"delayed(lambda x: {{'deep': [{{'er': x}}]}})({d})['deep'][0]['er']",
    ]


@operation("delayed", 3)
def operated(make: Maker, d: Variable) -> Text:
    """Use it as an object. Whether that can be done is seen only when it is computed."""
    return [
        f"{d} + 1",
        f"{d} * 2",
        f"{d}[0]",
        f"{d}.shape",
        f"-{d}",
        f"{d} == 3",
        f"delayed(len)({d})",
        f"delayed(sorted)({d})",
        f"{d}.no_such_thing",
        f"delayed(material.nested)(4, {d})",
        f"delayed(int)({d})",
        f"delayed(np.asarray)({d}).sum()",
    ]


@operation("delayed", 0.5)
def failing(make: Maker, d: Variable) -> Text:
    return [
        f"delayed(material.fail)('on purpose', {d})",
        f"delayed(lambda x: 1 / 0)({d})",
        f"delayed(lambda x: {{}}['missing'])({d})",
        f"delayed(lambda x: material.divided(1, 0))({d})",
        "delayed(int)('no number')",
        f"delayed(lambda x: next(iter([])))({d})",
        f"delayed(lambda x: [].pop())({d})",
        f"delayed(lambda x: 'é'.encode('ascii'))({d})",
        f"delayed(lambda x: open('/no/such/file'))({d})",
    ]


@operation("delayed", 1.5)
def to_array(make: Maker, d: Variable) -> Text:
    return f"da.from_delayed(delayed(lambda x: np.arange(6.0))({d}), (6,), 'f8')"
