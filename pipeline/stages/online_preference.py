"""Preferences made anew in each step: a group is sampled and ranked, and its best trains against its worst.

The loop is that of RL: the same sampling, grading, refills, budget, rounds and schedules of the reference. It differs
in who ranks (`steps.verify`) and in what is learned from the groups (`steps.update_policy`).
"""

from __future__ import annotations

from pipeline.stages.rl import run

__all__ = ["run"]
