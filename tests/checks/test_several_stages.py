"""The causes that are found in runs with more stages than SFT and RL: reward models, and RL that is repeated."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checks.recorded import place_of, unpack
from tests.checks.test_causes import HEALTHY_RUN, healthy, scored, with_steps
from verizero.pipeline.checks.diagnosis import diagnose
from verizero.pipeline.checks.run_facts import read
from verizero.pipeline.host.disk import read_jsonl


@pytest.mark.parametrize(
    ("solved_after_sft", "loss", "other", "is_found"),
    [
        (0.1, 0.01, None, True),
        (0.1, 0.1, None, False),
        (0.1, 0.1, "reward_model", False),  # its loss is that of pairs, and near zero where they are easy
        (0.1, 0.1, "preference", False),
        (0.6, 0.01, None, False),  # the policy fell later, in another stage
    ],
)
def test_demonstrations_are_learned_by_heart_where_sft_itself_ends_weak(
    tmp_path: Path, solved_after_sft: float, loss: float, other: str | None, is_found: bool
) -> None:
    folder = unpack(HEALTHY_RUN, tmp_path)
    rows = read_jsonl(folder / "metrics.jsonl")
    for row in rows:
        if row["kind"] == "evaluation":
            row["domains"]["sums"]["pass@1"]["value"] = solved_after_sft if row["stage"] == "sft" else 0.0
        elif row["kind"] == "step" and row["stage"] == "sft":
            row["metrics"]["loss"] = loss
    begin = next(i for i, row in enumerate(rows) if row["kind"] == "step" and row["stage"] == "rl")
    if other is not None:
        rows[begin:begin] = [{**rows[0], "stage": other, "stage_kind": other, "metrics": {"loss": 0.0}}] * 5
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (place_of("sft_memorised", diagnose(read(folder))) is not None) == is_found


@pytest.mark.parametrize(("trend", "after", "is_found"), [(0.01, 0.1, True), (0.01, 0.4, False), (-0.01, 0.1, False)])
def test_a_model_that_likes_wrong_responses_is_found_in_a_later_stage_too(
    trend: float, after: float, is_found: bool
) -> None:
    """Pass@1 after SFT, after a stage that is not the last, and at the end."""

    def graded(metrics: dict[str, Any], number: int) -> None:
        metrics.pop("correct/sampled", None)
        metrics.pop("correct/mean/sums", None)
        metrics["reward/sampled"] = 0.6 + trend * number

    run = with_steps(graded, of=scored(healthy(), lambda score: 0.3 + 0.5 * score))
    first, last = run.evaluations
    fallen = []
    for e in (first, last):
        domains = copy.deepcopy(dict(e.row.domains))
        domains["sums"]["pass@1"].update(value=after, low=after - 0.05, high=after + 0.05)
        fallen.append(replace(e, row=replace(e.row, domains=domains)))
    run = replace(run, evaluations=(replace(first, line=first.line - 1), *fallen))
    assert ("false_positives" in {f.cause for f in diagnose(run)}) == is_found
