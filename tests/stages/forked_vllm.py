"""vLLM imported once for many servers and ranks; its servers fork their processes, as they do on GPUs.

The CPU build starts new interpreters, because of the threads of OpenMP; a process of `tests.warm` has none.
"""

import gc
import multiprocessing
import time

import torch
import vllm.distributed.device_communicators.shm_broadcast
import vllm.entrypoints.openai.api_server
import vllm.v1.engine.core
import vllm.v1.engine.utils
import vllm.v1.executor.multiproc_executor
import vllm.v1.worker.cpu_worker
from vllm.platforms import current_platform

import verizero.pipeline.rollout.vllm_worker  # noqa: F401

for module in (vllm.v1.engine.utils, vllm.v1.executor.multiproc_executor):
    module.get_mp_context = lambda: multiprocessing.get_context("fork")
# A reader of shared memory looks without a pause for a second after each message; the two cores are for the tests.
vllm.distributed.device_communicators.shm_broadcast.sched_yield = lambda: time.sleep(0.0005)
# vLLM compiles some functions even if it is told to be eager: three seconds of a core in each process
torch.compiler.set_stance("force_eager")
# Each process of vLLM looks through all modules for kernels to replace; here they are replaced before it is forked.
current_platform.register_triton_kernel_overrides()
type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
# At its end vLLM unfreezes what `tests.warm` has frozen, and then collects five times: a second of a core or two.
gc.unfreeze = lambda: None
