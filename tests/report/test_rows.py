"""Rows of metrics.jsonl and rollouts.jsonl are written in one form, and a line of any other form is refused by name."""

import json

import pytest

from tests.report.runs import ROLLOUT
from verizero.pipeline.errors import DataError
from verizero.pipeline.report.row_types import metrics_row, rollout_row, to_json
from verizero.pipeline.report.run_files import read_metrics, read_rollouts

PLACE = {"stage": "rl", "stage_kind": "rl", "round": 1, "step": 2}
SIGN = {"measure": "entropy", "value": 0.003, "limit": 0.02, "text": "entropy fell to 0.003"}
LINES = {
    "step": {"kind": "step", **PLACE, "metrics": {"loss": 1, "kl/k3": 0.5}, "time": {"update": 0.1}},
    "sample": {"kind": "sample", **PLACE, "metrics": {}, "time": {}},
    "pairs": {"kind": "pairs", "stage": "dpo", "stage_kind": "preference", "round": 1, "metrics": {}, "time": {}},
    "evaluation": {"kind": "evaluation", **PLACE, "label": "after round 1", "k": 8}
    | {"domains": {"math": {"pass@1": {"value": 0.5}, "by_prompt": [["p", 0.5]]}}}
    | {"verdicts": {"graded": 5}, "retried": 0, "time": {"evaluate/verify": 1.0}},
    "warning": {"kind": "alarm", "alarm": "collapse", **PLACE, "action": "warn", "signs": [SIGN, SIGN], "time": {}},
    "roll-back": {"kind": "alarm", "alarm": "collapse", **PLACE, "action": "roll_back", "signs": [SIGN]}
    | {"to_step": 1, "roll_backs": 1, "knob": {"rl.optimizer.learning_rate": 1e-4}, "time": {}},
    "verifier": {"kind": "alarm", "alarm": "verifier", "stage": "rl", "step": 2, "failure_rate": 0.5, "responses": 8}
    | {"where": "round 1 step 2", "first": "First: timeout", "time": {}},
}
"""A line of each form that runs have written, its keys in order."""
ROLLOUTS = [
    ROLLOUT,
    ROLLOUT | {"reward": None, "extracted": None},
    {**{k: v for k, v in ROLLOUT.items() if k != "kept"}, "kept_sizes": [0, 3], "kept": False}
    | {"steps": [["7+8=15", 1.0], ["so 15", 0.5]], "roll_backs": 2},
]


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_of_each_kind_keeps_its_bytes(line):
    assert json.dumps(to_json(metrics_row(line, "here"))) == json.dumps(line)


@pytest.mark.parametrize("line", ROLLOUTS)
def test_a_rollout_keeps_its_bytes(line):
    assert json.dumps(to_json(rollout_row(line, "here"))) == json.dumps(line)


def test_keys_that_older_runs_lack_may_be_missing():
    for name, missing in (("step", ["stage_kind"]), ("evaluation", ["stage_kind", "verdicts", "retried"])):
        old = {key: value for key, value in LINES[name].items() if key not in missing}
        assert metrics_row(old, "here").stage == "rl"
    sign = {"said" if key == "text" else key: value for key, value in SIGN.items()}
    assert metrics_row(LINES["warning"] | {"signs": [sign, sign]}, "here") == metrics_row(LINES["warning"], "here")


@pytest.mark.parametrize(
    ("damaged", "key"),
    [
        (LINES["step"] | {"kind": "stp"}, "stp"),
        (LINES["verifier"] | {"alarm": "fire"}, "fire"),
        (LINES["step"] | {"loss": 1}, "loss"),
        ({k: v for k, v in LINES["step"].items() if k != "metrics"}, "metrics"),
        (LINES["step"] | {"step": "2"}, "step"),
        (LINES["step"] | {"time": None}, "time"),
        (LINES["warning"] | {"signs": [SIGN | {"limit": "low"}]}, "limit"),
        (LINES["warning"] | {"signs": ["entropy"]}, "signs"),
        (LINES["warning"] | {"signs": [SIGN | {"colour": "red"}]}, "signs.0.colour'$"),
        ({}, "kind"),
    ],
)
def test_a_line_of_another_form_is_refused_with_its_number_and_key(damaged, key, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(LINES["sample"]) + "\n" + json.dumps(damaged) + "\n")
    with pytest.raises(DataError, match=rf"row 2 of .*metrics\.jsonl.*{key}"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("damaged", [ROLLOUT | {"reward": "1"}, {k: v for k, v in ROLLOUT.items() if k != "reward"}])
def test_a_rollout_of_another_form_is_refused_with_its_number_and_key(damaged, tmp_path):
    (tmp_path / "rollouts.jsonl").write_text(json.dumps(damaged) + "\n")
    with pytest.raises(DataError, match=r"row 1 of .*rollouts\.jsonl.*reward"):
        list(read_rollouts(tmp_path))
