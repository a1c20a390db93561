"""Second opinions in training: off the reward path, a seeded share, counted, written down, the same after a resume."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_page import Reader
from tests.stages.sessions import round_of, rows, session_of, train_round, weights
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.loop.rounds import one_step
from verizero.pipeline.report.page import build_page
from verizero.pipeline.report.row_types import VARYING
from verizero.pipeline.run.saving import save
from verizero.pipeline.scoring.second_opinion import disagree
from verizero.pipeline.stages.rl import rl_phases
from verizero.pipeline.types import Verdict

CONTRARY = (
    "from verizero.verifiers.base import *\n\n@verifier\ndef contrary(attempt):\n"
    "    return '7777' in attempt.response if attempt.prompt < '5' else '7777' not in attempt.response\n"
)
"""Finds wrong answers right, to questions that begin with a small digit."""


def asked(**settings: Any) -> dict[str, Any]:
    return {"scoring": {"second_opinion": {"verifier": {"path": "second.py:contrary"}, "share": 0.5, **settings}}}


def give(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "second.py").write_text(CONTRARY)


def sampled(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "rollouts.jsonl").read_text().splitlines()]


def without_times(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in VARYING} for line in lines]


@pytest.mark.integration
def test_rewards_and_weights_are_those_without_it(tmp_path: Path) -> None:
    give(tmp_path)
    give(tmp_path / "plain")
    with session_of(tmp_path, **asked()) as with_it, session_of(tmp_path / "plain") as without:
        for session in (with_it, without):
            train_round(session)
        for a, b in zip(weights(with_it), weights(without), strict=True):
            assert a.equal(b)
        own, plain = ([r["metrics"] for r in rows(s)] for s in (with_it, without))
    added = {"verdict/second_opinions", "verdict/disagreements"}
    assert [{k: v for k, v in m.items() if k not in added} for m in own] == plain
    assert all(added <= m.keys() for m in own)
    assert not any("second" in r for r in sampled(tmp_path / "plain"))


@pytest.mark.integration
def test_disagreements_are_counted_and_written_down(tmp_path: Path) -> None:
    give(tmp_path)
    with session_of(tmp_path, report={"samples_per_step": 1000}, **asked()) as session:
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
    for step, m in enumerate(metrics, 1):
        mine = [r for r in sampled(tmp_path) if r["step"] == step]
        given = [r for r in mine if "second" in r]
        assert 0 < len(given) == m["verdict/second_opinions"] < len(mine)
        assert sum(r["second"]["disagrees"] for r in given) == m["verdict/disagreements"]
        for r in given:
            second = r["second"]
            assert second["score"] == float(("7777" in r["response"]) == (r["prompt"] < "5"))
            first = Verdict(r["status"], r["score"])
            assert second["disagrees"] == disagree(first, Verdict(second["status"], second["score"]))
    assert sum(m["verdict/disagreements"] for m in metrics) > 0


@pytest.mark.integration
def test_groups_with_disagreements_are_kept_beyond_the_first_and_bounded(tmp_path: Path) -> None:
    give(tmp_path)
    with session_of(
        tmp_path, report={"samples_per_step": 1}, rl={"select": {"keep": "all"}}, **asked(share=1)
    ) as session:
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
    for step, m in enumerate(metrics, 1):
        groups: dict[str, list[dict[str, Any]]] = {}
        for r in sampled(tmp_path):
            if r["step"] == step:
                groups.setdefault(r["prompt_id"], []).append(r)
        assert m["groups/sampled"] == 3
        assert len(groups) <= 2
        _, *further = groups.values()
        assert all(any(r["second"]["disagrees"] for r in g) for g in further)
        listed = sum(r["second"]["disagrees"] for g in groups.values() for r in g)
        assert (listed > 0) == (m["verdict/disagreements"] > 0)


@pytest.mark.integration
def test_a_run_that_went_on_wrote_the_same_bytes(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        give(tmp_path / name)
    with session_of(tmp_path / "whole", **asked()) as session:
        train_round(session)
    with session_of(tmp_path / "parts", **asked()) as session:
        item = round_of(session)
        train_round(session, replace(item, num_steps=1))
        save(session)
        one_step(session, item, rl_phases(session))  # lost: no checkpoint holds it
    with session_of(tmp_path / "parts", **asked()) as session:
        assert session.state.step == 1
        session.workers.rollouts.engine.publish(
            session.state.policy_version
        )  # the scripted engine came after the session's own
        train_round(session)
    assert sampled(tmp_path / "parts") == sampled(tmp_path / "whole")
    assert any("second" in r for r in sampled(tmp_path / "whole"))
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")


@pytest.mark.integration
def test_the_page_lists_disagreements_as_text(tmp_path: Path) -> None:
    give(tmp_path)
    with session_of(tmp_path, **asked(share=1)) as session:
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
    path = tmp_path / "run" / "rollouts.jsonl"
    lines = path.read_text().splitlines()
    hostile = {**json.loads(lines[-1]), "response": "<script>alert(1)</script>"}
    hostile["second"] = {"status": "graded", "score": 1.0, "reason": "<b>", "disagrees": True}
    path.write_text("\n".join([*lines, json.dumps(hostile)]) + "\n")
    page = Reader(build_page(tmp_path / "run").read_text())
    counted, request_of = (int(sum(m[f"verdict/{n}"] for m in metrics)) for n in ("disagreements", "second_opinions"))
    assert f"{counted} of {request_of} verdicts" in page.text
    assert "<script>alert(1)</script>" in page.text
    assert "graded 1: <b>" in page.text
    with session_of(tmp_path / "none") as session:
        train_round(session)
    assert "Second opinions" not in Reader(build_page(tmp_path / "none" / "run").read_text()).text


def test_a_domain_that_no_row_has_and_a_verifier_that_is_none_are_refused(tmp_path: Path) -> None:
    give(tmp_path)
    with pytest.raises(ConfigError, match=r"second_opinion.domains names 'arithmetics'.*there are arithmetic"):
        with session_of(tmp_path, **asked(domains=["arithmetics"])):
            pass
    with pytest.raises(ConfigError, match=r"absent\.py"):
        with session_of(tmp_path, **asked(verifier={"path": "absent.py:f"})):
            pass
    with pytest.raises(ConfigError, match="did you mean math"):
        with session_of(tmp_path, **asked(verifier={"name": "mth"})):
            pass
