"""The site has a page for each public name and each page of docs/, and plots of the figures that are recorded."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import dask_mars
import dask_mars.diagnostics
import dask_mars.testing
from dask_mars.setting_table import SETTINGS

ROOT = Path(__file__).resolve().parents[2]


def hook(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_hook", ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "module"),
    [("index", dask_mars), ("diagnostics", dask_mars.diagnostics)],
    ids=["dask_mars", "diagnostics"],
)
def test_each_public_name_has_its_place_in_the_reference(page: str, module: ModuleType) -> None:
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8")
    named = {*re.findall(r"^::: [\w.]*\.(\w+)$", text, re.MULTILINE), *re.findall(r'heading: "(\w+)"', text)}
    public = {name for name in module.__all__ if not name.startswith("__")}
    assert public <= named, public - named


def test_the_page_of_settings_has_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="settings.md"))
    shown = hook("pages", monkeypatch).on_page_markdown(text, page)
    assert re.findall(r"^\| `([\w.-]+)` \| `[^`|]+` \| [^|]+ \|$", shown, re.MULTILINE) == [
        setting.name for setting in SETTINGS
    ]


@pytest.fixture(scope="module")
def fonts() -> None:
    """Have matplotlib open its fonts, which it keeps open."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    figure.subplots().bar(["a"], [1])
    figure.savefig(io.BytesIO(), format="svg")


@pytest.mark.slow
@pytest.mark.usefixtures("fonts")
def test_plots_show_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    plots = hook("plots", monkeypatch)
    text = plots.BENCHMARKS.read_text(encoding="utf-8")
    for heading in plots.PLOTS:
        ratios = plots.ratios_below(heading, text)
        assert ratios, heading
        drawn = plots.drawn(ratios)
        assert all(ratio.workload in drawn and f"{ratio.time:.2f}" in drawn for ratio in ratios)


def test_links_lead_to_pages_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    in_docs = hook("pages", monkeypatch).in_docs
    assert in_docs("[a](docs/page.md#x) [b](LICENSE)", "", "index.md") == "[a](page.md#x) b"
    assert in_docs("[a](../README.md)", "docs", "start.md") == "[a](index.md)"
    assert in_docs("[a](../page.md) [b](0001-name-by-entry-point.md)", "docs/decisions", "decisions/2.md") == (
        "[a](../page.md) [b](0001-name-by-entry-point.md)"
    )
    assert in_docs("![a](docs/pictures/graph.png)", "", "index.md") == "![a](pictures/graph.png)"
    assert in_docs("[a](https://example.org/x) [b](decisions)", "docs", "x.md") == (
        "[a](https://example.org/x) [b](decisions/index.md)"
    )
