"""Metrics of a step by hand: of episodes, of graded responses, and of means that are not finite."""

import math
from dataclasses import replace

import pytest

from tests.loop.scripted import group_of
from tests.made_episodes import episode_of, turn_of
from verizero.pipeline.loop.batch import Batch
from verizero.pipeline.loop.metrics import episode_fields, episode_metrics, rollout_metrics, row_size
from verizero.pipeline.report.row_types import RolloutRow, rollout_row, to_json
from verizero.pipeline.types import Group, Rollout, Verdict

SHARED = turn_of([1, 2, 3], [4, 5], trains=False)
FORKED = episode_of(
    [[turn_of([1, 2, 3], [4, 5], reward=-1.0)], [SHARED, turn_of([6], [7, 8, 9], version=5, reward=0.5)]]
)
SHORT = episode_of([[turn_of([1, 2], [3], reward=0.25)]], "turns", words=("42",))
SINGLE = replace(SHORT, episode=None)


def test_the_numbers_are_those_counted_by_hand() -> None:
    assert episode_metrics([SINGLE]) == {}
    seen = episode_metrics([FORKED, SHORT, SINGLE])
    assert {k: v for k, v in seen.items() if v} == pytest.approx(
        {
            "episodes/turns": 1.5,
            "episodes/rows": 1.5,
            "tokens/sampled": 6.0,
            "tokens/observed": 9.0,
            "tokens/repeated": 2.0,
            "episodes/with_calls": 0.5,
            "episodes/ending/done": 0.5,
            "episodes/ending/turns": 0.5,
            "tools/look/calls": 1.0,
            "reward/turn/1": -0.375,
            "reward/turn/2": 0.5,
        }
    )
    assert seen["episodes/ending/failed"] == 0.0
    assert [row_size(row) for row in FORKED.episode.rows] == [(5, 2), (9, 3)]


def row_of(rollout: Rollout) -> RolloutRow:
    return RolloutRow(
        stage="rl",
        round=0,
        step=1,
        prompt_id="p0",
        domain="d",
        prompt="what?",
        response=rollout.answer,
        sample=0,
        reward=1.0,
        status="graded",
        score=1.0,
        reason="",
        extracted=None,
        finish_reason="stop",
        length=rollout.num_sampled,
        kept=True,
        **episode_fields(rollout),
    )


def test_a_trajectory_survives_its_file_and_a_single_response_has_none() -> None:
    row = row_of(FORKED)
    line = to_json(row)
    assert rollout_row(line, "line 1") == row
    assert [(m["role"], m["text"], m.get("tokens"), m.get("reward"), m.get("version")) for m in line["messages"]] == [
        ("user", "what?", None, None, None),
        ("assistant", "hm", 2, -1.0, 4),
        ("tool", "saw hm", None, None, None),
        ("assistant", "42", 3, 0.5, 5),
    ]
    assert line["messages"][1]["calls"] == [{"id": "0-0", "name": "look", "arguments": {"at": "hm"}}]
    assert (line["ending"], line["rows"], line["length"], line["response"]) == ("done", 2, 5, "42")
    assert not {"ending", "rows", "messages"} & to_json(row_of(SINGLE)).keys()


def graded(number: int, domain: str, verdicts: list[Verdict], rewards: list[float | None]) -> Group:
    group = group_of(number, rewards)
    members = [replace(m, verdict=v) for m, v in zip(group.members, verdicts, strict=True)]
    return replace(group, prompt=replace(group.prompt, domain=domain), members=tuple(members))


def test_rewards_of_other_scales_and_failed_graders_change_no_share() -> None:
    right, half, silent = Verdict("graded", 1.0), Verdict("graded", 0.5), Verdict("no_answer")
    failed = Verdict("verifier_error", reason="down")
    groups = [
        graded(0, "sums", [right, half, silent, failed], [10.0, 5.0, -1.0, None]),
        graded(1, "words", [right, right], [3.0, 3.0]),
    ]
    metrics = rollout_metrics(Batch(groups, groups, {}, []))
    assert metrics["correct/mean/sums"] == 1 / 3
    assert metrics["correct/mean/words"] == 1
    assert metrics["correct/sampled"] == 3 / 5
    none_graded = [graded(0, "sums", [failed], [None])]
    assert "correct/sampled" not in rollout_metrics(Batch(none_graded, none_graded, {}, []))


def test_a_mean_is_of_the_finite_numbers_and_the_others_are_counted() -> None:
    numbers = [2.0, math.nan, 4.0, -math.inf]
    verdicts = [Verdict("graded", 1.0, parts=(("length", n), ("none", math.nan))) for n in numbers]
    groups = [graded(0, "sums", verdicts, [1.0] * 4)]
    shown = rollout_metrics(Batch(groups, groups, {}, []))
    assert {name: n for name, n in shown.items() if name.endswith(("/length", "/none"))} == {
        "reward/part/length": 3.0, "reward/not_finite/length": 2.0, "reward/not_finite/none": 4.0,
    }  # fmt: skip
