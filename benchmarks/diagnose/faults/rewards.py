"""Faults of the reward: verifiers with a mistake, and further rewards that win against the task's own."""

from __future__ import annotations

from pathlib import Path

from benchmarks.diagnose.fault import Fault
from benchmarks.diagnose.rows import read, write
from verizero.pipeline.seeds import stream


def repeated(folder: Path, seed: int) -> None:
    """Let demonstrations write the scratchpad again, most of them not at all and some of them several times."""
    draw = stream(seed, "diagnose", "repeated")
    rows = []
    for r in read(folder / "demonstrations.jsonl"):
        scratchpad, arrow, answer = r["demonstration"].rpartition("=>")
        times = draw.choice((1, 1, 2, 3)) if scratchpad else 0
        rows.append({**r, "demonstration": f"{scratchpad}{arrow}" * times + answer})
    write(folder / "demonstrations.jsonl", rows)


def graded_by(function: str) -> tuple[str, ...]:
    """Return the override that lets a function of `graders/grading.py` grade in training; evaluation stays right."""
    return ("rl.reward={path: 'grading.py:" + function + "'}",)


def further(function: str, weight: float, *more: str) -> tuple[str, ...]:
    """Return the overrides that add a function of `graders/grading.py` to the reward."""
    return ("scoring.components=[{verifier: {path: 'grading.py:" + function + f"'}}, weight: {weight:g}}}]", *more)


FAULTS = (
    Fault(
        name="only_the_box",
        cause="false_negatives",
        complaint="Responses that end in the right number get no reward, and the policy has stopped to show its work.",
        overrides=graded_by("whole_text"),
    ),
    Fault(
        name="first_number_compared",
        cause="false_negatives",
        complaint="The reward is far below what I count by hand in the samples.",
        overrides=graded_by("first_number"),
    ),
    Fault(
        name="within_a_tenth",
        cause="false_positives",
        complaint="The reward is 0.95 and the held-out accuracy does not rise.",
        overrides=graded_by("near"),
    ),
    Fault(
        name="any_number_will_do",
        cause="false_positives",
        complaint="The reward goes to 1 at once. The responses are guesses.",
        overrides=graded_by("has_box"),
    ),
    Fault(
        name="errors_count_as_wrong",
        cause="infrastructure_zeros",
        complaint="Right answers get no reward every now and then, and the same text gets one at another time.",
        overrides=graded_by("service"),
    ),
    Fault(
        name="late_replies_count_as_wrong",
        cause="infrastructure_zeros",
        complaint="Many verdicts are timeouts, with a grader that only compares two numbers.",
        overrides=graded_by("slow_service"),
    ),
    Fault(
        name="likeness_times_ten",
        cause="reward_scales",
        complaint="I added a small bonus for likeness to the reference. The sum goes up and the accuracy goes down.",
        overrides=further("similar", 10),
    ),
    Fault(
        name="shorter_and_shorter",
        cause="length_drift",
        complaint="The responses lose a token every few steps, and accuracy goes with them.",
        overrides=("rl.algorithm.group_length_penalty=8.0",),
    ),
    Fault(
        name="longer_and_longer",
        cause="length_drift",
        complaint="The responses grow until the limit cuts them.",
        overrides=further("thorough", 4, "scoring.truncated=null", "rollout.max_response_tokens=28"),
        data=repeated,
        shares_sft=False,
    ),
)
