"""A server of vLLM that knows bases in bits: run as a module, with the options of vLLM's own server."""

from __future__ import annotations

import runpy

# vLLM's processes import this module too, as the main one, and so know such a base when they read its configuration.
from verizero.pipeline.rollout import vllm_quantized  # noqa: F401

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
