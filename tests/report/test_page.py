"""The page as a document: whole, safe against what a model wrote, bounded, and made of the files alone."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.runs import HOSTILE, RECIPE, make_run, read_rows
from verizero.pipeline.errors import RunError
from verizero.pipeline.report.files import read_run
from verizero.pipeline.report.page import build_page, embed, result_line
from verizero.pipeline.report.summary import build_summary
from verizero.pipeline.shown import visible

VOID = {"meta", "link", "input", "img", "br", "hr"}


class Reader(HTMLParser):
    """Reads a page as a browser's tokenizer does: scripts end at the first </script>, whatever surrounds it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="module")
def page(run_dir: Path) -> Reader:
    return Reader(build_page(run_dir).read_text(encoding="utf-8"))


def payload(page: Reader) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.scripts[0])
    return found


@pytest.mark.integration
def test_the_page_is_one_whole_document(page: Reader) -> None:
    assert page.open == []
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert links
    assert {str(link).removeprefix("#") for link in links} <= set(ids)


@pytest.mark.integration
def test_the_page_asks_nothing_of_a_network(page: Reader) -> None:
    for tag, attrs in page.tags:
        for name in ("src", "href", "action", "data", "srcset", "xlink:href"):
            assert str(attrs.get(name) or "#")[:5] in {"#", "data:"} or str(attrs[name]).startswith("#"), (tag, attrs)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_what_a_model_wrote_is_data(run_dir: Path, page: Reader) -> None:
    raw = (run_dir / "report.html").read_bytes()
    assert len(page.scripts) == 2, "a response opened or closed a script"
    assert raw.count(b"</script") == 2
    assert b"<img" not in raw
    responses = [s["response"] for g in payload(page)["groups"] for s in g["samples"]]
    assert HOSTILE in responses


@settings(deadline=None)
@given(st.text() | st.just("]]></script><!--<script>"))
def test_embedded_text_survives_and_holds_no_markup(text: str) -> None:
    embedded = embed({"a": [text]})
    assert json.loads(embedded) == {"a": [text]}
    assert not re.search(r"[<>&\u2028\u2029\ud800-\udfff]", embedded)


@pytest.mark.integration
def test_names_from_files_are_escaped(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "x", rounds=1, steps_per_round=2, sft_steps=2)
    rows = (run_dir / "metrics.jsonl").read_text()
    bad = '<b>&\'\\" id="x" #010101 \x1b[2J\u202e'
    (run_dir / "metrics.jsonl").write_text(rows.replace("arithmetic", json.dumps(bad)[1:-1]))
    (run_dir / "recipe.yaml").write_text("name: </pre><script>1</script>\x1b[2J\u202e")
    (run_dir / "run.json").write_text(json.dumps({"name": "</title><script>2", "isolation": {"level": "<i>3"}}))
    page = Reader(build_page(run_dir).read_text(encoding="utf-8"))
    assert page.open == []
    assert len(page.scripts) == 2
    assert visible(bad) in page.text
    assert visible(bad)[:23] + "…" in page.text, "a label of a curve"
    assert not re.search("[\x1b\u202e]", page.text)
    assert "name: </pre><script>1</script>" in page.text
    assert "<i>3" in page.text


@pytest.mark.integration
def test_a_quantised_start_is_named_with_its_types_and_licence(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "x", rounds=1, steps_per_round=2, sft_steps=2)
    assert "quantised start" not in Reader(build_page(run_dir).read_text(encoding="utf-8")).text
    start = {"file": "<b>.gguf", "sha256": "0123456789abcdef" * 4, "architecture": "llama", "model": "Tiny"}
    start |= {"licence": "apache-2.0", "types": {"Q4_1": 0.789, "F32": 0.211}, "is_quantized": True}
    for wanted, changes in (
        ("A quantised start: <b>.gguf (Tiny, llama; weights 78.9% Q4_1, 21.1% F32, made float32", {}),
        ("licence as the file says: apache-2.0; sha256 0123456789abcdef…", {}),
        ("The start: <b>.gguf", {"is_quantized": False}),
        ("the file names no licence", {"licence": ""}),
    ):
        (run_dir / "run.json").write_text(json.dumps({"name": "x", "start": start | changes}))
        page = Reader(build_page(run_dir).read_text(encoding="utf-8"))
        assert page.open == []
        assert wanted in page.text


def test_the_page_says_what_the_files_say(run_dir: Path, page: Reader) -> None:
    summary = build_summary(run_dir)
    assert result_line(summary) in page.text
    assert summary["sharpening"] in page.text
    for row in summary["domains"].values():
        for side in ("before", "after"):
            for name in ("pass@1", "pass@k", "maj@k", "greedy", "truncated"):
                low, high = row[side]["intervals"][name]
                assert f"{row[side][name]:.3f}[{low:.2f}, {high:.2f}]" in page.text
        assert f"{row['gain']:+.3f}[{row['interval'][0]:+.2f}, {row['interval'][1]:+.2f}]" in page.text
    assert RECIPE in page.text
    assert "isolation level3" in page.text
    assert "960 distinct prompts seen" in page.text
    assert f"{summary['shares']['update']:.1%}" in page.text
    charts = {c["name"]: c for c in payload(page)["charts"]}
    assert sum(tag == "svg" for tag, _ in page.tags) == len(charts)
    steps = read_run(run_dir).rl_steps
    assert charts["entropy"]["series"][0]["y"] == pytest.approx([r.metrics["entropy"] for r in steps], rel=1e-4)


def test_every_recorded_answer_of_a_small_run_is_on_the_page(run_dir: Path, page: Reader) -> None:
    rows = read_rows(run_dir / "rollouts.jsonl")
    shown = [(g["stage"], g["step"], g["prompt_id"], s) for g in payload(page)["groups"] for s in g["samples"]]
    assert len(shown) == len(rows)
    for row, (stage, step, prompt_id, sample) in zip(rows, shown, strict=True):
        assert (row["stage"], row["step"], row["prompt_id"]) == (stage, step, prompt_id)
        for name in (
            "sample",
            "reward",
            "status",
            "score",
            "reason",
            "extracted",
            "finish_reason",
            "length",
            "response",
        ):
            assert sample[name] == row[name]
    assert f"All {len(rows):,} answers" in page.text


@pytest.mark.integration
def test_a_long_run_stays_small_and_says_what_is_left_out(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "long", rounds=4, steps_per_round=250, sft_steps=10)
    path = build_page(run_dir)
    page = Reader(path.read_text(encoding="utf-8"))
    shown = sum(len(g["samples"]) for g in payload(page)["groups"])
    total = len(read_rows(run_dir / "rollouts.jsonl"))
    assert shown <= 2000 < total
    assert f"{shown:,} of the {total:,} answers" in page.text
    assert path.stat().st_size < 3_000_000
    assert all(len(c["x"]) <= 360 for c in payload(page)["charts"])
    assert "Each point is the mean of 3 steps." in page.text


@pytest.mark.integration
def test_the_same_files_give_the_same_bytes(run_dir: Path) -> None:
    first = build_page(run_dir).read_bytes()
    assert build_page(run_dir).read_bytes() == first


@pytest.mark.parametrize("kept", [0, 1, 5, 62, 64])
def test_a_run_at_any_moment_has_a_page(run_dir: Path, tmp_path: Path, kept: int) -> None:
    lines = (run_dir / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:kept]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    page = Reader(build_page(tmp_path).read_text(encoding="utf-8"))
    assert page.open == []
    for note in ("No sampled answer is recorded", "recipe.yaml is not in", "run.json is not in"):
        assert note in page.text
    assert ("No held-out evaluation yet" in page.text) == (kept == 0)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        build_page(tmp_path)
