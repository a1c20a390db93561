"""Curves against the rows that they come from; plots as documents: well-formed, self-contained, the same each time."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.runs import read_rows
from verizero.pipeline.report.curves import Chart, Series, build_charts, moving_average, thin
from verizero.pipeline.report.plots import draw
from verizero.pipeline.report.run_files import read_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def charts(run_dir):
    return {c.name: c for c in build_charts(read_run(run_dir))}


def line(values, **more):
    series = Series("one", tuple(values))
    return Chart("name", "Title", "", tuple(float(i) for i in range(len(values))), (series,), **more)


def test_every_curve_of_a_report_is_there(charts):
    assert list(charts) == [
        "reward", "pass", "kl", "entropy", "clip_fraction", "length", "groups", "phases", "loss_sft",
    ]  # fmt: skip


def test_curves_hold_the_rows_values(run_dir, charts):
    rows = [r for r in read_rows(run_dir / "metrics.jsonl") if r["kind"] == "step" and r["stage"] == "rl"]
    named = {s.label: s.y for s in charts["reward"].series}
    assert named["induction"] == tuple(r["metrics"]["reward/mean/induction"] for r in rows)
    assert charts["kl"].series[0].y == tuple(r["metrics"]["kl/k3"] for r in rows)
    assert charts["kl"].marks == (21.0, 41.0)
    assert charts["kl"].x == tuple(float(r["step"]) for r in rows)
    stacked = [sum(s.y[i] for s in charts["phases"].series) for i in range(len(rows))]
    assert stacked == pytest.approx([r["time"]["total"] for r in rows])
    evaluations = [r for r in read_rows(run_dir / "metrics.jsonl") if r["kind"] == "evaluation"]
    one = charts["pass"].series[0]
    assert one.low == tuple(r["domains"]["arithmetic"]["pass@1"]["low"] for r in evaluations)
    assert charts["pass"].ticks == tuple(r["label"] for r in evaluations)


@pytest.mark.run
def test_one_domain_gives_one_reward_curve_and_what_is_missing_is_a_gap(tmp_path):
    rows = [
        '{"kind":"step","stage":"rl","round":1,"step":1,"metrics":{"reward/sampled":0.5,"reward/mean/a":0.5,"kl/k3":1},"time":{}}',
        '{"kind":"step","stage":"rl","round":1,"step":2,"metrics":{"reward/sampled":0.7,"reward/mean/a":0.7},"time":{}}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    found = {c.name: c for c in build_charts(read_run(tmp_path))}
    assert set(found) == {"reward", "kl"}
    assert [(s.label, s.y) for s in found["reward"].series] == [("mean reward", (0.5, 0.7))]
    assert found["kl"].series[0].y == (1.0, None)
    assert "<svg" in draw(found["kl"]).svg


@given(st.lists(st.one_of(st.none(), st.floats(-5, 5)), min_size=1, max_size=200), st.integers(1, 30))
def test_thinning_keeps_the_mean_of_equal_buckets(values, most):
    thinned = thin(line(values), most)
    assert len(thinned.x) == len(thinned.series[0].y) <= most
    width = -(-len(values) // most)
    for i, mean in enumerate(thinned.series[0].y):
        bucket = [v for v in values[i * width : (i + 1) * width] if v is not None]
        assert mean is None if not bucket else mean == pytest.approx(sum(bucket) / len(bucket))
    assert ("mean of" in thinned.caption) == (len(values) > most)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.integers(0, 9))
def test_a_moving_average_is_the_mean_of_its_neighbours(values, half):
    for i, mean in enumerate(moving_average(values, half)):
        near = [v for j, v in enumerate(values) if abs(i - j) <= half]
        assert mean == pytest.approx(sum(near) / len(near))


@pytest.mark.run
def test_plots_are_whole_documents_that_refer_to_nothing_outside(charts):
    seen = set()
    for chart in charts.values():
        svg = draw(chart).svg
        root = ElementTree.fromstring(svg)
        assert root.tag == f"{SVG}svg"
        assert root.get("aria-label", "").startswith(chart.title)
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
        ids = [e.get("id") for e in root.iter() if e.get("id")]
        assert not seen & set(ids), "two plots on a page must not share an id"
        seen |= set(ids)
        assert set(re.findall(r"url\(#([^)]+)\)", svg)) <= set(ids)
        assert set(re.findall(r'href="#([^"]+)"', svg)) <= set(ids)


def test_plots_take_their_colours_from_the_page_and_have_no_ground(charts):
    svg = draw(charts["reward"]).svg
    assert "var(--series-1, #" in svg
    assert "var(--series-2, #" in svg
    assert "var(--plot-ink, #" in svg
    assert not re.search(r"(?<!, )#[0-9a-f]{6}", svg), "a colour that is not a fallback"


def test_the_box_is_where_the_axes_are():
    """The page maps the pointer to values by it: the ends of a line must lie where it says."""
    plot = draw(line([0.0, 10.0, 5.0]))
    root = ElementTree.fromstring(plot.svg)
    width, height = (float(v) for v in root.get("viewBox", "").split()[2:])
    path = next(e.get("d", "") for e in root.iter(f"{SVG}path") if "var(--series-1" in e.get("style", ""))
    points = [(float(x), float(y)) for x, y in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path)]
    left, top, right, bottom = plot.box
    for (x, y), (i, value) in zip(points, enumerate([0.0, 10.0, 5.0]), strict=True):
        share_x = (i - plot.x_limits[0]) / (plot.x_limits[1] - plot.x_limits[0])
        share_y = (value - plot.y_limits[0]) / (plot.y_limits[1] - plot.y_limits[0])
        assert x / width == pytest.approx(left + share_x * (right - left), abs=1e-3)
        assert y / height == pytest.approx(bottom - share_y * (bottom - top), abs=1e-3)


def test_under_a_long_legend_the_picture_grows():
    heights = []
    for n in (2, 24):
        series = tuple(Series(f"a recipe's long name {i}", (0.0, 1.0)) for i in range(n))
        plot = draw(Chart("n", "T", "", (0.0, 1.0), series))
        heights.append(float(re.search(r'viewBox="0 0 \S+ (\S+)"', plot.svg)[1]) * (plot.box[3] - plot.box[1]))
        assert all(f"name {i}" in plot.svg for i in range(n))
    assert heights[0] > 110 == pytest.approx(heights[1])
