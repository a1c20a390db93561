"""The faults by name."""

from __future__ import annotations

from benchmarks.diagnose.fault import Fault
from benchmarks.diagnose.faults import bugs, data, rewards, settings
from benchmarks.diagnose.faults.healthy import HEALTHY

ALL: tuple[Fault, ...] = (*data.FAULTS, *rewards.FAULTS, *settings.FAULTS, *bugs.FAULTS)
BY_NAME = {fault.name: fault for fault in (*HEALTHY, *ALL)}
