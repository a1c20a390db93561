"""Modules that programs use, and that the worker needs, loaded once and before its own."""

from __future__ import annotations

# What programs use. Each makes every fork and exit dearer (most of all those with shared libraries of their own, as
# decimal and datetime have): only what programs import often enough to repay it.
import bisect
import copy
import heapq
import string

# What the worker uses.
import contextlib  # noqa: F401  # isort: skip
import ctypes  # noqa: F401  # isort: skip
import functools  # noqa: F401  # isort: skip
import json  # noqa: F401  # isort: skip
import linecache  # noqa: F401  # isort: skip
import random  # noqa: F401  # isort: skip
import resource  # noqa: F401  # isort: skip
import select  # noqa: F401  # isort: skip
import threading  # noqa: F401  # isort: skip
import traceback  # noqa: F401  # isort: skip
import typing  # noqa: F401  # isort: skip

WARM = (bisect, copy, heapq, string)
