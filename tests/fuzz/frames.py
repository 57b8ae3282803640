"""Dataframes and their columns."""

from __future__ import annotations

from typing import Any

from tests.fuzz.arrays import Text
from tests.fuzz.drawing import Unfit
from tests.fuzz.maker import Maker
from tests.fuzz.operations import Variable, operation, source

#: Columns that are numbers.
NUMBERS = ["key", "number", "value"]


def _numbers(f: Any) -> list[str]:
    return [name for name, dtype in f.dtypes.items() if getattr(dtype, "kind", "O") in "iuf"]


def _integers(f: Any) -> list[str]:
    return [name for name, dtype in f.dtypes.items() if getattr(dtype, "kind", "O") in "iu"]


def _number(make: Maker, f: Variable) -> str:
    return repr(make.choice(_numbers(f)))


def _key(make: Maker, f: Variable) -> str:
    """Return a column to group by."""
    names = [name for name in f.columns if name in ("key", "word", "group", "flag", "day")]
    return repr(make.choice(names or _integers(f)))


def _plain(s: Any) -> bool:
    return getattr(s.dtype, "kind", "O") in "iuf"


@source("frame", 5)
def from_pandas(make: Maker) -> Text:
    rows = make.integer(1, 60) if make.size == "small" else make.integer(2_000, 9_000)
    parts = make.integer(1, 6)
    option = make.choice(["", "", ", sort=False"])
    return f"dd.from_pandas(table({make.seed()}, {rows}), npartitions={parts}{option})"


@source("frame", 2)
def from_parts(make: Maker) -> Text:
    rows = make.integer(1, 12) if make.size == "small" else 3_000
    seeds = [make.seed() for _ in range(make.integer(1, 4))]
    return [
        f"dd.from_map(material.part, {seeds}, rows={rows}, meta=material.part(0, 1))",
        f"dd.from_delayed([delayed(table)(seed, {rows}) for seed in {seeds}], meta=table(0, 1))",
        f"dd.from_dict({{'key': [1, 2, 3, 1] * {rows}, 'value': [0.5, 1.5, None, 2.0] * {rows}}}, 3)",
    ]


# -- rows and columns ---------------------------------------------------------------------------------------------


@operation("frame", 6)
def columns(make: Maker, f: Variable) -> Text:
    names = list(f.columns)
    if not names:
        raise Unfit
    name = make.choice(names)
    return [f"{f}[{name!r}]"] * 3 + [f"{f}[{make.sample(names, 3)}]", f"{f}.drop(columns=[{name!r}])"]


@operation("frame", 6)
def rows(make: Maker, f: Variable) -> Text:
    number = _number(make, f)
    return [
        f"{f}[{f}[{number}] > {make.integer(-2, 3)}]",
        f"{f}.query({number[1:-1] + ' > 1'!r})" if number[1:-1].isidentifier() else f"{f}[{f}[{number}] < 2]",
        f"{f}.dropna()",
        f"{f}.partitions[:2]",
        f"{f}.repartition(npartitions={make.integer(1, 4)})",
        f"{f}.sample(frac=0.5, random_state={make.seed()})",
        f"{f}.loc[{f}[{number}].isin([1, 2, 3])]",
        f"{f}.nlargest(5, {number})",
        f"{f}.head(7, npartitions=-1, compute=False)",
        f"{f}.tail(4, compute=False)",
        f"{f}.drop_duplicates(subset=[{_key(make, f)}], split_out={make.integer(1, 2)})",
        f"dd.concat([{f}, {f}])",
    ]


@operation("frame", 5)
def computed(make: Maker, f: Variable) -> Text:
    number = _number(make, f)
    return [
        f"{f}.assign(new={f}[{number}] * 2)",
        f"{f}.assign(new=lambda f: f[{number}] - f[{number}].min())",
        f"{f}.map_partitions(lambda part: part.assign(more=len(part)))",
        f"{f}.map_partitions(lambda part, by: part.assign(more=part[{number}] + by), 3)",
        f"{f}.fillna({{{number}: 0}})",
        f"{f}.rename(columns={{{number}: 'renamed'}})",
        f"{f}.astype({{{number}: 'f4'}})",
        f"{f}[{_numbers(f.value)}].clip(-3, 3)",
        f"{f}[{_numbers(f.value)}].cumsum()",
        f"{f}[{_numbers(f.value)}].shift(1)",
        f"{f}[{_numbers(f.value)}].diff()",
        f"{f}.reset_index(drop=True)",
        f"{f}.reset_index()",
        f"{f}[{_numbers(f.value)}].abs()",
        f"{f}.isna()",
        f"{f}.map_overlap(lambda part: part, 1, 1)",
    ]


@operation("frame", 3, rounds=True)
def windows(make: Maker, f: Variable) -> Text:
    columns = _numbers(f.value)
    return f"{f}[{columns}].rolling({make.integer(1, 3)}, min_periods=1).{make.choice(['sum', 'mean', 'max'])}()"


# -- what needs all rows ------------------------------------------------------------------------------------------


@operation("frame", 6, rounds=True)
def grouped(make: Maker, f: Variable) -> Text:
    key, number = _key(make, f), _number(make, f)
    if key == number:
        raise Unfit
    split = f", split_out={make.integer(1, 3)}"
    # Not `cumsum`: with more done to its result Dask gives rows or groups, as the case may be.
    return [
        f"{f}.groupby({key}, observed=True)[{number}].sum()",
        f"{f}.groupby({key}, observed=False)[{number}].mean()",
        f"{f}.groupby({key}, observed=True).agg({{{number}: ['sum', 'max', 'count']}}{split})",
        f"{f}.groupby({key}, observed=True)[{number}].agg(['mean', 'std'])",
        f"{f}.groupby([{key}], observed=True).size()",
        f"{f}.groupby({key}, observed=True)[{number}].nunique()",
        f"{f}.groupby({key}, observed=True).first()",
        f"{f}.groupby({key}, observed=True)[{number}]"
        f".apply(lambda group: group.max() - group.min(), meta=({number}, 'f8'))",
        f"{f}.groupby({key}, observed=True)[{number}].transform('max', meta=({number}, 'f8'))",
        f"{f}.groupby({key}, observed=True)[{number}].median()",
        f"{f}.groupby({key}, observed=True)[{number}].var(split_every=2)",
    ]


@operation("frame", 5, decides=True)
def moved(make: Maker, f: Variable) -> Text:
    key, whole = _key(make, f), _integers(f.value)
    other = make.choice([it for it in make.variables if it.kind == "frame"])
    if key[1:-1] not in other.columns or not whole:
        raise Unfit
    how = make.choice(["inner", "left", "outer", "right"])
    small = f"{other}.drop_duplicates(subset=[{key}])[[{key}]]"
    return [
        # Dask draws divisions by lot, by the collection's token, and what is persisted here has another token.
        f"{f}.set_index({make.choice(whole)!r}, divisions=[-1000, 0, 2, 1000])",
        f"{f}.set_index({make.choice(whole)!r}, npartitions=1)",
        f"{f}.sort_values({make.choice(whole)!r}, npartitions=1)",
        f"{f}.shuffle({key})",
        f"{f}.shuffle({key}, shuffle_method='disk').map_partitions(material.ordered)"
        if "group" not in f.columns
        else f"{f}.shuffle(on_index=True)",
        f"{f}.merge({small}, on={key}, how={how!r})",
        f"{f}.merge(table(3, 6)[[{key}]].drop_duplicates(), on={key}, how={make.choice(['inner', 'left'])!r})"
        if key[1:-1] in ("key", "word", "flag", "day")
        else f"{f}.merge({f}.groupby({key}, observed=True).size().to_frame('n').reset_index(), on={key})",
        f"{f}.join({f}[[{make.choice(whole)!r}]].rename(columns=lambda name: name + '_r'), how='left')",
    ]


@operation("frame", 4, rounds=True)
def totals(make: Maker, f: Variable) -> Text:
    columns = _numbers(f.value)
    function = make.choice(["sum()", "mean()", "max()", "count()", "std()", "quantile(0.5)", "nunique_approx()"])
    if function == "nunique_approx()":
        return f"{f}[{columns}].nunique()"
    # Not `describe`, which changes the index of its input: two of them in one computation fail.
    return [f"{f}[{columns}].{function}"] * 3 + [f"{f}[{columns}].corr()"]


@operation("frame", 3)
def to_others(make: Maker, f: Variable) -> Text:
    columns = _numbers(f.value)
    return [
        f"{f}[{columns}].to_dask_array(lengths=True)",
        f"{f}[{columns}].values",
        f"delayed(len)({f})",
        f"delayed(lambda part: part.describe())({f}.to_delayed()[0])",
        f"delayed(material.describe)([{f}, 3])",
        f"{f}.index",
        f"dd.from_delayed({f}.to_delayed(), meta={f}._meta)",
        f"{f}[{columns}].to_bag(format='tuple').map(len)",
    ]


# -- columns ------------------------------------------------------------------------------------------------------


@operation("series", 6, fits=_plain)
def of_numbers(make: Maker, s: Variable) -> Text:
    return [
        f"{s} * 2 + 1",
        f"{s}.abs()",
        f"{s}.clip(-1, 2)",
        f"{s}.fillna(7)",
        f"{s}.map(lambda value: value + 1, meta=({s.name!r}, {s.dtype.str!r}))",
        f"{s}.apply(lambda value: value * 2, meta=({s.name!r}, {s.dtype.str!r}))",
        f"{s} - {s}.min()",
        f"{s}.to_frame()",
        f"{s}.isna()",
        f"{s}.astype('f8')",
        f"{s}.where({s} > 0, 0)" if not s.rounded else f"{s} + 1",
        f"{s}.shift(1)",
        f"{s}.ffill()",
        f"{s}.between(0, 5)" if not s.rounded else f"-{s}",
        f"{s}.to_dask_array(lengths=True)",
        f"{s}.values",
        f"{s}.reset_index(drop=True)",
    ]


@operation("series", 4, fits=_plain, rounds=True, decides=True)
def summed_up(make: Maker, s: Variable) -> Text:
    function = make.choice(["sum", "mean", "max", "count", "std", "nunique", "cumsum", "unique", "skew", "idxmax"])
    if function == "idxmax":
        return f"{s}.nlargest(3)"
    return make.choice(
        [f"{s}.{function}()"] * 3 + [f"{s}.value_counts()", f"{s}.quantile([0.2, 0.8])", f"{s}.rolling(3).sum()"]
    )


@operation("series", 5, fits=lambda s: str(s.dtype) in ("string", "str"))
def of_text(make: Maker, s: Variable) -> Text:
    return [
        f"{s}.str.upper()",
        f"{s}.str.len()",
        f"{s}.str.contains('a')",
        f"{s}.str[0]",
        f"{s} + '!'",
        f"{s}.value_counts()",
        f"{s}.nunique()",
        f"{s}.unique()",
        f"{s}.astype('category')",
        f"{s}.fillna('none')",
        f"{s}.isin(['ant', 'bee'])",
        f"{s}.drop_duplicates()",
        f"{s}.min()",
        f"{s}.str.split('a', n=1, expand=True)",
    ]


@operation("series", 4, fits=lambda s: str(s.dtype) == "category")
def of_categories(make: Maker, s: Variable) -> Text:
    return [
        f"{s}.cat.codes",
        f"{s}.value_counts()",
        f"{s}.cat.as_known()",
        f"{s}.astype('object')",
        f"{s}.cat.rename_categories(str.upper)",
        f"{s}.nunique()",
        f"{s}.isin(['ant'])",
    ]


@operation("series", 4, fits=lambda s: str(s.dtype).startswith("datetime64"))
def of_days(make: Maker, s: Variable) -> Text:
    return [
        f"{s}.dt.month",
        f"{s}.dt.dayofweek",
        f"{s} + pd.Timedelta('1D')",
        f"{s}.max()",
        f"{s} > pd.Timestamp('2020-02-02')",
        f"{s}.dt.floor('7D')",
        f"{s} - {s}.min()",
        f"{s}.dt.strftime('%Y-%m')",
    ]


@operation("index", 2)
def of_index(make: Maker, j: Variable) -> Text:
    return [f"{j}.max()", f"{j}.to_frame()", f"{j}.to_series()", f"delayed(len)({j})"]


@operation("scalar", 2)
def of_scalar(make: Maker, n: Variable) -> Text:
    return [f"{n} * 2", f"{n} + 1", f"{n}.to_delayed()", f"delayed(lambda value: [value])({n})"]
