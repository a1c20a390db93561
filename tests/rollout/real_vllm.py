"""Tests of the real vLLM. Their files import it when they need it: all processes of the tests collect all files."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make install-engines")
