"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import os

# before torch or prefect are loaded by any test
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # as many processes as cores: threads of one would wait for those of another
    os.environ.setdefault("OMP_NUM_THREADS", "1")
