"""Modules that programs use, and that the worker needs, loaded once and before its own."""

# ruff: noqa: F401

from __future__ import annotations

# What programs use. Each makes every fork and exit dearer (most of all those with shared libraries of their own, as
# decimal and datetime have): only what programs import often enough to repay it.
import bisect  # isort: skip
import copy  # isort: skip
import heapq  # isort: skip
import string  # isort: skip

# What the worker uses.
import contextlib
import ctypes
import functools
import json
import linecache
import random
import resource
import select
import threading
import traceback
import typing
