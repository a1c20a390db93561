"""Trainers on several ranks end where torch alone does, and resume bit for bit: a table of trainers and lessons."""

import pytest

from tests.train.on_ranks import LESSONS, TRAINERS
from tests.train.rank_group import installed, run, run_interpreted

PROGRAM = "tests.train.on_ranks"
AT_MOST = {
    **dict.fromkeys(("resumed", "critic resumed", "read", "saved", "refused"), 0.0),
    **dict.fromkeys(("weights", "metrics", "critic"), 2e-5),
    "half weights": 0.02,
    "sum": 1e-6,
    "share": 0.01,
    "planned": 0.1,
    "gathered": 1e-9,
    "gathered trees": 1e-7,
}
AT_LEAST = {"moved": 5e-4, "critic moved": 1e-3, "base": 1.0}


def check(found, names):
    """Hold what each rank found to the limits."""
    for rank in found:
        assert len(rank) == names
        for lesson, seen in rank.items():
            over = {k: v for k, v in seen.items() if k in AT_MOST and abs(v) > AT_MOST[k]}
            under = {k: v for k, v in seen.items() if k in AT_LEAST and v < AT_LEAST[k]}
            assert (over, under) == ({}, {}), lesson
            assert seen.keys() <= AT_MOST.keys() | AT_LEAST.keys()


def num_lessons(name):
    return sum(len(lessons) for _, lessons in TRAINERS[name].lessons)


@pytest.mark.run
class TestRanks:
    @pytest.mark.nightly
    def test_of_torch(self, tmp_path):
        check(run(PROGRAM, 3, "torch", str(tmp_path)), num_lessons("torch") + 11)

    def test_of_fsdp(self, tmp_path):
        pytest.importorskip("bitsandbytes")
        check(run(PROGRAM, 2, "fsdp", str(tmp_path)), num_lessons("fsdp") + 4)

    @pytest.mark.nightly
    def test_of_fsdp_in_any_number(self, tmp_path):
        """Rows of weights do not divide evenly among four; and one continues what four have written."""
        check(run(PROGRAM, 4, "fsdp, more ranks", str(tmp_path)), num_lessons("fsdp, more ranks") + 1)
        check(run(PROGRAM, 1, "one that follows", str(tmp_path)), 3)

    @installed
    def test_of_deepspeed(self, tmp_path):
        check(run(PROGRAM, 2, "deepspeed", str(tmp_path)), num_lessons("deepspeed") + 4)

    @installed
    @pytest.mark.nightly
    def test_of_divided_weights_with_the_kernel(self, tmp_path):
        check(run_interpreted(PROGRAM, 2, "kernels", str(tmp_path)), 2)


def test_every_lesson_is_taught():
    assert {name for t in TRAINERS.values() for _, lessons in t.lessons for name in lessons} == set(LESSONS)
