"""The labelled answers of 61 categories, the hostile ones, and the same scores from threads and processes."""

import json
import multiprocessing
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.source import ROOT
from tests.verifiers.math import hostile
from verizero.verifiers.mathematics import grader, score

ROWS = [
    json.loads(line) for line in Path(__file__).with_name("labelled.jsonl").read_text(encoding="utf-8").splitlines()
]
KINDS = [
    {"category": "kinds"} | json.loads(line)
    for line in Path(__file__).with_name("kinds.jsonl").read_text(encoding="utf-8").splitlines()
]
"""The label policy, kinds of wrong answers that a looser reading accepts, and of right ones that a stricter refuses."""
PAIRS = [(row["response"], row["gold"]) for row in ROWS]
HOSTILE = hostile.rows()
SAMPLE = random.Random(5).sample(PAIRS, 400)


def _scores(pairs):
    return [verdict.score for verdict in score(pairs)]


@pytest.mark.run
def test_labels_are_reproduced():
    rows = [*ROWS, *KINDS]
    verdicts = score((row["response"], row["gold"]) for row in rows)
    missed = [
        (row["category"], row["gold"], row["response"], verdict.reason)
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.is_correct != row["right"]
    ]
    assert missed == []
    assert not any(verdict.is_infrastructure for verdict in verdicts)


@pytest.mark.run
def test_hostile_answers_earn_nothing_within_a_limit_of_cpu_time():
    assert len({kind for kind, _, _ in HOSTILE}) == 12
    assert len(HOSTILE) >= 270
    # The system ends the process in the middle of a row that takes too long; its lines tell which row that was.
    command = [sys.executable, "-m", "tests.verifiers.math.hostile"]
    graded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    verdicts = [json.loads(line) for line in graded.stdout.splitlines()]
    assert graded.returncode == 0, (graded.stderr, [(kind, r[:80]) for kind, _, r in HOSTILE[len(verdicts) :][:1]])
    for (kind, gold, response), (earned, failed, reason) in zip(HOSTILE, verdicts, strict=True):
        assert (earned, failed) == (0.0, False), (kind, gold, response[:80], reason)


@pytest.mark.run
def test_threads_processes_and_another_order_give_the_scores_of_the_main_thread():
    """The caches are emptied, so that nothing is compared with itself."""

    def empty():
        grader._gold.cache_clear()
        grader._answered.cache_clear()

    expected = _scores(SAMPLE)
    empty()
    with ThreadPoolExecutor(8) as pool:
        assert all(result == expected for result in pool.map(_scores, [SAMPLE] * 8))
    empty()
    shuffled = list(range(len(SAMPLE))) * 2
    random.Random(1).shuffle(shuffled)
    assert _scores([SAMPLE[i] for i in shuffled]) == [expected[i] for i in shuffled]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_scores, [SAMPLE]) == [expected]
