"""The faults by name."""

from __future__ import annotations

from benchmarks.diagnose.fault import Fault
from benchmarks.diagnose.faults import bugs, data, rewards, settings

ALL: tuple[Fault, ...] = (*data.FAULTS, *rewards.FAULTS, *settings.FAULTS, *bugs.FAULTS)
HEALTHY: tuple[Fault, ...] = tuple(
    Fault(name=name, cause="none", complaint="Nothing is wrong.", healthy=name, hurts=False)
    for name in ("healthy", "healthy_two_domains", "healthy_ppo")
)
"""Recipes without a fault, each as an entry that changes nothing."""
BY_NAME = {fault.name: fault for fault in (*HEALTHY, *ALL)}
