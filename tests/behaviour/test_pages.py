"""HTML pages of explanations, profiles and summaries of models, also in a browser with the keyboard alone."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
import weft.core as mx
import weft.nn as nn
from tests.checks import line_of
from weft.inspection.pages.layout import layered

X = mx.random.normal((16, 8), key=mx.random.key(0))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def two_steps(x: mx.array) -> mx.array:
    return mx.softmax((mx.exp(x) @ mx.abs(x).T) @ x, axis=-1)


def written(shown: Any) -> str:
    file = io.StringIO()
    shown.html(file)
    return file.getvalue()


def explained(function: Any = two_steps) -> str:
    return written(mx.compile(function).explain(X))


def profiled() -> str:
    with weft.profile() as profile:
        for _ in range(3):
            mx.eval(two_steps(X))
    return written(profile)


def summed_up() -> str:
    return written(nn.summary(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))))


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@given(st.data())
def test_arrows_lead_down_and_boxes_are_apart(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 12))
    numbers = st.integers(0, max(count - 1, 0))
    pairs = data.draw(st.lists(st.tuples(numbers, numbers), max_size=20))
    arrows = [(one, other) for one, other in pairs if one < other]
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 30)), min_size=count, max_size=count))
    boxes = layered(sizes, arrows)
    assert all(boxes[one].y + sizes[one][1] < boxes[other].y for one, other in arrows)
    places = [(box.x, box.x + width, box.y, box.y + height) for box, (width, height) in zip(boxes, sizes, strict=True)]
    for number, one in enumerate(places):
        for other in places[:number]:
            assert one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]


def test_an_explanation() -> None:
    explanation = mx.compile(two_steps).explain(X)
    data = data_of(written(explanation))
    table, graph, memory = data["views"]
    assert [one["title"] for one in data["views"]] == ["Steps", "Graph", "Memory"]
    assert len(data["details"]) == len(table["details"]) == len(explanation.steps)
    run, traced = graph["graphs"]
    assert len(run["boxes"]) == len(explanation.steps)
    of_input = ("exp",), ("abs",)
    of_results = {number for number, step in enumerate(explanation.steps) if tuple(step.operations) not in of_input}
    assert {to for _, to in run["arrows"]} == of_results
    assert len(of_results) == len(explanation.steps) - len(of_input)
    assert sum(box["kind"] == "input" for box in traced["boxes"]) == 1
    assert memory["bytes"] == explanation.temporary_bytes
    assert sum(block["size"] for block in memory["blocks"]) == explanation.unshared_bytes


def test_the_operations_of_a_step_show_the_numbers_of_the_program() -> None:
    data = data_of(explained(lambda x: mx.exp(x * 0.25) + 3))
    (step,) = data["details"]
    assert {box["lines"][0] for box in step["graph"]["boxes"] if box["kind"] == "constant"} == {"0.25", "3.0"}


def test_a_profile() -> None:
    profiled()  # first runs of a graph may have other kernels than later ones
    data = data_of(profiled())
    kernels, timeline = data["views"]
    counts = next(column for column in kernels["columns"] if column["title"] == "count")
    steps = [span for span in timeline["spans"] if span[4] is not None]
    assert sum(counts["values"]) == len(steps)
    assert all(begin >= 0 and duration >= 0 for _, begin, duration, _, _ in timeline["spans"])
    assert {span[0] for span in timeline["spans"]} == set(range(len(timeline["rows"])))
    place = f'{__file__}:{line_of(profiled, "mx.eval")}, in "profiled"'
    for kernel in data["details"]:
        assert ["asked for at", f"{place}: 3x"] in kernel["facts"]


def test_a_summary() -> None:
    data = data_of(summed_up())
    parameters, *_, module = data["views"][0]["columns"]
    assert parameters["values"] == [41, 36, 0, 5]
    assert module["texts"][1] == "  layers.0: Linear(input_dims=8, output_dims=4, bias=True)"


PAGES = {"explanation": explained, "profile": profiled, "summary": summed_up}


def test_a_page_loads_nothing() -> None:
    for page in [make() for make in PAGES.values()]:
        assert not re.search(r"\b(?:src|href)\s*=|@import|url\(|\bfetch\(|\bimport\(", page)
        assert re.findall(r"https?://[^\s\"']*", page) == ["http://www.w3.org/2000/svg"]


def test_names_cannot_end_the_script() -> None:
    def hostile(x: mx.array) -> mx.array:
        return mx.exp(x)

    hostile.__qualname__ = "</script><script>alert(1)</script>"
    page = explained(hostile)
    assert "alert(1)" in data_of(page)["title"]
    assert "<script>alert" not in page


def test_in_a_notebook() -> None:
    explanation = mx.compile(two_steps).explain(X)
    frame = explanation._repr_html_()
    found = re.fullmatch(r'<iframe [^>]*srcdoc="([^"]*)"></iframe>', frame)
    assert found is not None
    assert data_of(html.unescape(found[1])) == data_of(written(explanation))


# Visits all tabs with the keyboard, selects the focused elements, and records what is shown.
WALK = """
const seen = [];
window.onerror = (message) => seen.push(`error: ${message}`);
const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const tabs = [...document.querySelectorAll("[role=tab]")];
tabs[0].focus();
tabs.forEach((tab, number) => {
  if (number) press("ArrowRight");
  press("Enter");
  const panel = document.querySelector("[role=tabpanel]:not([hidden])");
  const first = panel.querySelector("tr[tabindex='0'], g[tabindex='0'], canvas");
  first.focus();
  press("+");
  press("0");
  for (const key of ["ArrowDown", "ArrowRight", "Enter", "n"]) press(key);
  seen.push([tab.textContent, document.querySelector("aside h2")?.textContent].join(": "));
  tab.focus();
});
document.title = JSON.stringify(seen);
"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("kind", PAGES)
def test_in_a_browser(kind: str, tmp_path: Path) -> None:
    page = PAGES[kind]()
    titles = {one["title"] for one in data_of(page)["details"]}
    (tmp_path / "page.html").write_text(page.replace("</body>", f"<script>{WALK}</script></body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/user", "--dump-dom"]
    assert CHROMIUM is not None
    finished = subprocess.run(
        [CHROMIUM, *options, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120
    )
    found = re.search(r"<title>(.*?)</title>", finished.stdout, re.DOTALL)
    assert found is not None, finished.stderr
    seen = [line.split(": ", 1) for line in json.loads(html.unescape(found[1]))]
    assert [name for name, _ in seen] == [view["title"] for view in data_of(page)["views"]]
    assert {chosen for _, chosen in seen} <= titles
