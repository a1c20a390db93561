"""Numbers and rows about episodes, against counts made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.rollout.made_episodes import episode_of, turn_of
from verizero.pipeline.loop.episode_metrics import episode_fields, episode_metrics, row_size
from verizero.pipeline.report.row_types import RolloutRow, rollout_row, to_json
from verizero.pipeline.types import Rollout

SHARED = turn_of([1, 2, 3], [4, 5], trains=False)
FORKED = episode_of(
    [
        [turn_of([1, 2, 3], [4, 5], reward=-1.0)],
        [SHARED, turn_of([6], [7, 8, 9], version=5, reward=0.5)],
    ]
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
    assert [row_size(row) for row in FORKED.episode.rows] == [(5, 2), (9, 3)]  # type: ignore[union-attr]


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
