"""Functions that run where Triton interprets its kernels on the CPU.

Triton reads TRITON_INTERPRET when a kernel is defined, and it holds for all kernels of the process, those of libraries
too. So the functions run in forks of a process of their own (`tests.warm`).
"""

import functools
import os
from unittest import mock

from tests.warm import Warm

MODULES = (
    "torch",
    "transformers.modeling_utils",
    "transformers.models.qwen2.modeling_qwen2",
    "verizero.pipeline.rollout.torch_engine",
    "verizero.pipeline.models.forward",
    "verizero.pipeline.models.kernels.log_probs",
)
ENVIRONMENT = {"TRITON_INTERPRET": "1", "VERIZERO_KERNELS": "on"}


def interpreted(function, *arguments, **named):
    """Return what the function returns in a fork where kernels are interpreted and used on the CPU, or raise its error.

    Function, arguments and result are pickled.
    """
    with mock.patch.dict(os.environ, ENVIRONMENT):
        return process().call(function, *arguments, **named)


@functools.cache
def process():
    """Return the process that has imported the kernels; `interpreted` makes its environment."""
    return Warm(MODULES)


def without_kernels():
    """Within the block, the twins compute."""
    return mock.patch.dict(os.environ, {"VERIZERO_KERNELS": "off"})
