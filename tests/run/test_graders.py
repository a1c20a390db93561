"""The graders of a run: when they work while responses are sampled."""

import os

import pytest
import torch

from tests.stages.tiny import tiny
from verizero.pipeline.run.graders import overlaps_grading, usable_cores


@pytest.mark.parametrize(
    ("asked", "cores", "device", "wanted"),
    [
        (None, 2, "cpu", True),
        (None, 1, "cpu", False),
        (None, 1, "meta", True),
        (True, 1, "cpu", True),
        (False, 8, "meta", False),
    ],
)
def test_without_a_word_it_takes_no_core_from_decoding(monkeypatch, asked, cores, device, wanted):
    """Decoding has one thread here; "meta" stands for a device of its own."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    config = tiny({"scoring": {"overlap": asked}}).scoring
    assert overlaps_grading(config, torch.device(device)) is wanted


def test_cores_are_counted_where_the_system_does_not_say_which_are_ours(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
