"""Make sense of JSON records with bags.

It follows the bag chapter of the Dask examples (https://examples.dask.org/bag.html) and the older one of the Dask
tutorial: lines of JSON in several files are read, filtered, counted, folded by a key, written again, and handed to
a dataframe at the end. No scheduler is named here. Dask takes it from its configuration or the environment::

    DASK_SCHEDULER=mars python examples/tutorials/bags.py
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter, defaultdict
from typing import Any

import dask.bag as db

TRADES = ("baker", "carpenter", "farmer", "miller", "smith", "teacher", "weaver")
TOWNS = ("Ahlen", "Brakel", "Coesfeld", "Dülmen")


def make_people(count: int) -> list[dict[str, Any]]:
    rng = random.Random(5)
    return [
        {
            "name": [rng.choice("ABCDEFGH"), f"Person{number}"],
            "age": rng.randint(16, 90),
            "trade": rng.choice(TRADES),
            "address": {"town": rng.choice(TOWNS), "number": rng.randint(1, 99)},
            "orders": [rng.randint(1, 500) for _ in range(rng.randint(0, 4))],
        }
        for number in range(count)
    ]


def flatten(person: dict[str, Any]) -> dict[str, Any]:
    """Make a row of a table from a nested record."""
    return {
        "name": " ".join(person["name"]),
        "age": person["age"],
        "trade": person["trade"],
        "town": person["address"]["town"],
        "spent": sum(person["orders"]),
    }


def check(name: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise AssertionError(f"{name}: Dask gave {actual}, plain Python gives {expected}")


def main() -> None:
    people = make_people(10_000)
    with tempfile.TemporaryDirectory() as folder:
        written = db.from_sequence(people, npartitions=8).map(json.dumps)
        print(f"{len(written.to_textfiles(f'{folder}/people-*.json'))} files of JSON lines")

        records = db.read_text(f"{folder}/people-*.json").map(json.loads)
        check("first two", list(records.take(2)), people[:2])
        check("count", records.count().compute(), len(people))

        grown = records.filter(lambda person: person["age"] > 30)
        trades = grown.pluck("trade").frequencies(sort=True).topk(3, key=1).compute()
        counts = Counter(person["trade"] for person in people if person["age"] > 30)
        check("most frequent trades", sorted(n for _, n in trades), sorted(n for _, n in counts.most_common(3)))
        print("trades of those over 30:", ", ".join(f"{trade} {number}" for trade, number in trades))

        # An order is an element of its own after `flatten`, as a word is of a line of text.
        orders = records.pluck("orders").flatten()
        all_orders = [order for person in people for order in person["orders"]]
        check("orders", (orders.sum().compute(), orders.max().compute()), (sum(all_orders), max(all_orders)))
        print(f"{orders.count().compute()} orders, {orders.mean().compute():.3f} on average")

        # `foldby` reduces within each partition, so that no record has to move to another one.
        spent = records.foldby(
            lambda person: person["address"]["town"],
            lambda total, person: total + sum(person["orders"]),
            0,
            lambda left, right: left + right,
            0,
        )
        by_town: dict[str, int] = defaultdict(int)
        for person in people:
            by_town[person["address"]["town"]] += sum(person["orders"])
        check("spent by town", dict(spent.compute()), dict(by_town))

        # `groupby` moves whole records: those of one key meet in one partition.
        oldest = records.groupby("trade").starmap(lambda trade, those: (trade, max(p["age"] for p in those)))
        check("trades", sorted(trade for trade, _ in oldest.compute()), sorted(TRADES))

        grown.map(json.dumps).to_textfiles(f"{folder}/grown-*.json.gz")
        again = db.read_text(f"{folder}/grown-*.json.gz").map(json.loads).count().compute()
        check("read again", again, sum(counts.values()))

        table = records.map(flatten).to_dataframe()
        means = table.groupby("town").spent.mean().compute().sort_index()
        for town in TOWNS:
            shares = [sum(p["orders"]) for p in people if p["address"]["town"] == town]
            check(f"mean of {town}", round(float(means[town]), 6), round(sum(shares) / len(shares), 6))
        print("spent by town:", ", ".join(f"{town} {mean:.2f}" for town, mean in means.items()))


if __name__ == "__main__":
    main()
