"""Recipes whose verifier's file changes in the middle of a stage: the stage continues where that was allowed."""

import json
import shutil

import pytest

from tests.launch.runs import lines_without_times
from tests.stages.sessions import go
from tests.stages.start import start
from tests.stages.test_ended import rewrite_judge
from tests.stages.test_stale import rows
from tests.stages.tiny import tiny
from verizero.pipeline.run.callbacks import STOP

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("pageless")]
MARK = "import zlib; mark = zlib.crc32(attempt.response.encode()) % 2; return attempt.prompt[0] in '13579' and "
ODD, EVEN = f"{MARK} mark", f"{MARK} 1 - mark"
"""Each gives different rewards to the answers of some prompts, and none to those of the others."""
JUDGED = {
    "sft": {"steps": 3, "optimizer": {"learning_rate": 1e-4}},
    "rl": {"rounds": 1, "steps_per_round": 4, "select": {"keep": "informative"}},
    "data": {"train": [{"file": "rows.jsonl", "verifier": {"path": "judge.py:judge"}}], "evaluation": []},
    "scoring": {"retries": 0},
}


def recipe(*stages):
    return tiny({**JUDGED, "stages": [*stages]}, [start()])


@pytest.fixture
def base(tmp_path):
    rows(tmp_path)
    rewrite_judge(tmp_path, ODD)
    return tmp_path


def steps(base):
    return [r for r in lines_without_times(base / "run") if (r["kind"], r["stage"]) == ("step", "rl")]


def changes(base):
    found = json.loads((base / "run" / "run.json").read_text())["changes"]
    return found


def test_a_stage_continues_with_the_word_and_runs_again_without_it(base):
    config = recipe("sft", "rl", {"name": "last", "kind": "sft"})
    go(config, base)
    before = steps(base)
    rewrite_judge(base, EVEN)
    shutil.copytree(base, base / "again")
    said = go(config, base, "changed")
    assert "rl continues: verifier judge.py changed; last is stale, and the earlier results are kept in stale/1" in said
    assert steps(base) == before
    assert [(c["stage"], c["allowed_by"]) for c in changes(base)] == [("rl", "resume")]
    assert not [line for line in go(config, base) if "stale" in line or "continues" in line]
    said = go(config, base / "again")
    assert any(line.startswith("rl and last are stale: verifier judge.py changed; they run again") for line in said)
    assert steps(base / "again") != before
    assert changes(base / "again") == []


def test_groups_left_over_are_dropped_if_another_verifier_graded_them(base):
    def stop(event):
        return STOP if event.metrics["groups/carried_out"] > 0 else None

    config = recipe("rl")
    go(config, base, callbacks=[stop])
    done = len(steps(base))
    assert done < 4, "no step left groups over"
    shutil.copytree(base, base / "same")
    go(config, base / "same")
    rewrite_judge(base, EVEN)
    go(config, base, "changed")
    assert [steps(b)[done]["metrics"]["groups/carried_in"] > 0 for b in (base / "same", base)] == [True, False]
    assert steps(base)[:done] == steps(base / "same")[:done]
