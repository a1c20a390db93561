"""Compiles every kernel for GPUs, on a machine without one, and prints a line of JSON for each.

Run as `python -m tests.models.kernels.compiled CAPABILITY ...`, e.g. 80 90; float32, whose programs take the compiler
longest, is compiled for the first one alone. It shows that the kernels are valid for the
compiler with the tiles that are used, how much shared memory a program needs, and whether registers are spilled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from verizero.pipeline.models.kernels import log_probs

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}
ALIGNED = ("width", "wide")
"""Sizes that are multiples of 16 in real models; triton looks at the numbers that it is called with."""
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def cases(dtype: torch.dtype) -> Iterator[tuple[Any, tuple[str, ...], dict[str, Any], dict[str, int]]]:
    """Yield (kernel, pointers to tensors of the model's type, constants, options)."""
    tiles = log_probs.tiles_of(dtype)
    named = log_probs._constants(tiles)
    options = {name: named.pop(name) for name in ("num_warps", "num_stages")}
    model = ("HIDDEN", "WEIGHT")
    yield log_probs._forward, model, {**named, "ENTROPY": True, "SPAN": tiles.span}, options
    yield log_probs._to_logits, (*model, "OUT"), {**named, "ENTROPY": True}, options


def main(capabilities: list[int]) -> None:
    """Compile all cases for GPUs of these compute capabilities, times ten."""
    for capability in capabilities:
        for dtype in TYPES if capability == capabilities[0] else (torch.bfloat16,):
            for kernel, own, constants, options in cases(dtype):
                print(json.dumps(compiled(kernel, own, constants, options, dtype, capability)), flush=True)


def compiled(
    kernel: Any, own: tuple[str, ...], constants: dict[str, Any], options: dict[str, int], dtype: Any, capability: int
) -> dict[str, Any]:
    signature, aligned = {}, {}
    for i, name in enumerate(kernel.arg_names):
        is_pointer = name.isupper() and name not in constants
        signature[name] = "constexpr" if name in constants else "*fp32" if is_pointer else "i32"
        if name in own:
            signature[name] = TYPES[dtype]
        if name == "per_temperature":
            signature[name] = "fp32"
        if name == "TARGETS":
            signature[name] = "*i64"
        if is_pointer or name in ALIGNED:
            aligned[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        words = [str(TOOLS / "cuobjdump"), "-res-usage", file.name]
        usage = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    used = {name: int(number) for name, _, number in (word.partition(":") for word in usage) if number.isdigit()}
    return {
        "kernel": kernel.__name__,
        "dtype": str(dtype).removeprefix("torch."),
        "capability": capability,
        "shared": made.metadata.shared,
        "registers": used["REG"],
        "stack": used["STACK"],
        "tensor cores": next((w for w in ("wgmma", "tcgen05.mma", "mma.sync") if w in made.asm["ptx"]), None),
    }


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
