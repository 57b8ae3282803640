"""Classes of the script: slots, enumerations, nested classes, and one that the script goes on using."""

from __future__ import annotations

import dataclasses
import enum
import gc
import typing
from typing import Any

import dask

from tests.cases.comparing import case, main

unit = "K"
T = typing.TypeVar("T")


@dataclasses.dataclass(slots=True)
class Sample:
    number: int
    tags: list[str] = dataclasses.field(default_factory=list)


class Base:
    __slots__ = ("_Base__secret", "first")

    def __init__(self) -> None:
        self.__secret = self.first = 1

    def secret(self) -> int:
        return self.__secret


class Derived(Base):
    __slots__ = "second"

    def __init__(self) -> None:
        super().__init__()
        self.second = 2


class Planet(enum.Enum):
    EARTH = (5.9e24, 6.3e6)
    TERRA = EARTH
    MARS = (6.4e23, 3.3e6)

    def __init__(self, mass: float, radius: float) -> None:
        self.mass = mass
        self.radius = radius

    @property
    def density(self) -> float:
        return self.mass / self.radius**3


class Label(enum.Enum):
    SHORT = ("s", "a short one")

    def __new__(cls, value: str, text: str) -> Label:
        member = object.__new__(cls)
        member._value_ = value
        member.text = text  # type: ignore[attr-defined]
        return member


class Access(enum.Flag):
    NONE = 0
    READ = 1
    WRITE = 2
    BOTH = 3


class Level(enum.IntEnum):
    LOW = 1
    LOWEST = 1


class Sensor:
    made: list[int] = []  # noqa: RUF012

    class Reading:
        pass

    def unit(self) -> str:
        return unit


class Plugin:
    known: list[str] = []  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        Plugin.known.append(cls.__name__)


class Reader(Plugin):
    pass


@case
def classes_that_their_bases_know() -> Any:
    task = dask.delayed(lambda: (list(Plugin.known), Reader.__bases__ == (Plugin,)))
    return [task().compute() for _ in range(2)], list(Plugin.known)


@case
def slots() -> Any:
    made = dask.compute(dask.delayed(Sample)(1, ["a"]), dask.delayed(Derived)())
    read = dask.delayed(lambda sample, derived: (sample.number, derived.second, derived.secret()))
    between = read(dask.delayed(Sample)(2), dask.delayed(Derived)())
    return dataclasses.astuple(made[0]), made[1].second, made[1].secret(), between.compute()


@case
def members_with_attributes() -> Any:
    task = dask.delayed(lambda: (Planet.MARS.density, Label.SHORT.text, Label("s").name))
    planet, label = dask.compute(dask.delayed(lambda: Planet.MARS)(), dask.delayed(lambda: Label.SHORT)())
    return task().compute(), planet is Planet.MARS, label is Label.SHORT, planet.density


@case
def aliases() -> Any:
    task = dask.delayed(
        lambda level: (level.name, Level["LOWEST"] is level, list(Planet.__members__), len(Planet))
    )
    return task(Level.LOWEST).compute(), dask.delayed(lambda: Planet.TERRA)().compute() is Planet.EARTH


@case
def flags() -> Any:
    task = dask.delayed(
        lambda access: (access is Access.BOTH, access.name, Access.READ | Access.WRITE, len(Access))
    )
    *found, joined, count = task(Access.BOTH).compute()
    return found, joined is Access.BOTH, count, dask.delayed(lambda: ~Access.BOTH)().compute() is Access.NONE


@case
def own_class_stays_as_it_is() -> Any:
    global unit
    method, made, unit = Sensor.unit, Sensor.made, "K"
    sensor = dask.delayed(Sensor)().compute()
    unit = "C"
    return sensor.unit(), Sensor().unit(), Sensor.unit is method, Sensor.made is made, type(sensor) is Sensor


@case
def class_changed_between_computations() -> Any:
    found = []
    for Sensor.factor in (2, 3):  # type: ignore[attr-defined]
        sensor, factor = dask.compute(dask.delayed(Sensor)(), dask.delayed(lambda: Sensor.factor)())
        found.append((sensor.factor, factor, Sensor.factor))
    return found


@case
def classes_that_come_home_are_registered_once() -> Any:
    readers = dask.compute(*[dask.delayed(Reader)() for _ in range(3)])
    # A class that was a copy for a moment refers to itself.
    gc.collect()
    return [type(reader) is Reader for reader in readers], Plugin.known, len(Plugin.__subclasses__())


if __name__ == "__main__":
    main()
