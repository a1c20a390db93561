"""Modules that programs and the worker use, loaded once and before the worker's own."""

# ruff: noqa: F401

from __future__ import annotations

# Modules of programs. Each makes every fork and exit slower: so only those are here that programs import often.
import bisect  # isort: skip
import copy  # isort: skip
import heapq  # isort: skip
import string  # isort: skip

# Modules of the worker.
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
