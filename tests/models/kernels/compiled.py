"""Compiles every kernel for GPUs, on a machine without one, and prints a line of JSON for each.

Run as `python -m tests.models.kernels.compiled CAPABILITY ...`, e.g. 80 90. The project's own functions launch the
kernels on tensors without memory, of the sizes of real models; each launch is noted and compiled as triton would
specialise it for the arguments. All of them are compiled for the first capability, and for the others those of one
shape; float32, whose programs take the compiler longest, for the first one alone.

It shows that the kernels are valid for the compiler with the tiles that are used, how much shared memory a program
needs, and whether registers are spilled.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from verizero.pipeline.models.kernels import log_probs

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
MODELS = {
    "Qwen2.5-0.5B": (151936, 896),
    "Qwen3-0.6B": (151936, 1024),
    "Qwen2.5-1.5B": (151936, 1536),
    "Qwen2.5-7B": (152064, 3584),
    "Llama-3.1-8B": (128256, 4096),
    "SmolLM2-135M": (49152, 576),
    "a vocabulary of an odd size": (50257, 768),
}
"""Vocabulary and width."""
TOKENS = (4096, 999, 1)
"""Of a micro-batch: triton has code of its own for 1, and for multiples of 16."""
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


@contextmanager
def noted() -> Iterator[list[Launch]]:
    """Within the block kernels are not launched; yield the list of what would have been."""
    launches: list[Launch] = []
    kernels = {name: getattr(log_probs, name) for name in ("_forward", "_to_logits")}

    class Noted:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            return lambda *arguments, **named: launches.append((self.kernel, arguments, named))

    for name, kernel in kernels.items():
        setattr(log_probs, name, Noted(kernel))
    try:
        yield launches
    finally:
        for name, kernel in kernels.items():
            setattr(log_probs, name, kernel)


def launched(dtype: torch.dtype) -> list[Launch]:
    """Return the launches of forwards and backwards, with entropies and without."""
    with noted() as launches, torch.device("meta"):
        for vocab, width in MODELS.values():
            for place, num in enumerate(TOKENS):
                entropy = (place + (vocab % 16 > 0)) % 2 == 0  # any two of vocabulary, tokens and entropy meet
                hidden, weight = (torch.empty(n, width, dtype=dtype, requires_grad=True) for n in (num, vocab))
                targets = torch.empty(num, dtype=torch.int64)
                values, entropies = log_probs.log_probs(hidden, weight, targets, 0.7, entropy)
                (values.sum() if entropies is None else values.sum() + entropies.sum()).backward()
    return launches


def main(capabilities: list[int]) -> None:
    """Compile for GPUs of these compute capabilities, times ten."""
    for capability in capabilities:
        is_first = capability == capabilities[0]
        for dtype in (torch.bfloat16, torch.float32) if is_first else (torch.bfloat16,):
            takes_all = is_first and dtype == torch.bfloat16
            seen: set[str] = set()
            for launch in launched(dtype):
                source, options = specialised(launch, capability)
                kernel = launch[0].__name__
                which = source.hash() if takes_all else kernel
                if which not in seen:
                    seen.add(which)
                    print(json.dumps(compiled(source, options, kernel, dtype, capability)), flush=True)


def specialised(launch: Launch, capability: int) -> tuple[Any, Any]:
    """Return what triton compiles for a launch on such a GPU: the source and the options."""
    kernel, arguments, named = launch
    backend = make_backend(GPUTarget("cuda", capability, 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialisation, own = bind(*arguments, **named)
    options, signature, constants, attributes = kernel._pack_args(backend, named, bound, specialisation, own)
    return ASTSource(kernel, signature, constants, attributes), options


def compiled(source: Any, options: Any, kernel: str, dtype: torch.dtype, capability: int) -> dict[str, Any]:
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options.__dict__)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        words = [str(TOOLS / "cuobjdump"), "-res-usage", file.name]
        usage = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    used = {name: int(number) for name, _, number in (word.partition(":") for word in usage) if number.isdigit()}
    return {
        "kernel": kernel,
        "dtype": str(dtype).removeprefix("torch."),
        "capability": capability,
        "shared": made.metadata.shared,
        "registers": used["REG"],
        "stack": used["STACK"],
        "tensor cores": next((w for w in ("wgmma", "tcgen05.mma", "mma.sync") if w in made.asm["ptx"]), None),
    }


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
