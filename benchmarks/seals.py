"""Seconds in which ranks hash the shards of a checkpoint that they wrote, and check them before a resume, by size.

torchrun --nproc-per-node 2 benchmarks/seals.py 256 1024 2048    (MiB)
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from verizero.pipeline.train import checkpoint
from verizero.pipeline.train.fsdp_trained import _seals_of_ranks, write_tensors
from verizero.pipeline.train.ranks import Ranks, ranks_of_environment

NUM_TENSORS, WIDTH = 16, 1024


def seconds(ranks: Ranks, root: Path, mib: int) -> tuple[float, float]:
    """Return the seconds of sealing a checkpoint of random float32 shards, and of checking it."""
    mesh, folder = init_device_mesh("cpu", (ranks.size,)), root / f"{mib:08d}"
    folder.mkdir(exist_ok=True)
    rows = mib * 2**20 // (4 * NUM_TENSORS * WIDTH)
    tensors = {f"w{i}": distribute_tensor(torch.randn(rows, WIDTH), mesh, [Shard(0)]) for i in range(NUM_TENSORS)}
    write_tensors(tensors, folder / "shards")
    started = time.monotonic()
    known = _seals_of_ranks(folder / "shards", None, list)
    ranks.barrier()
    sealed = time.monotonic()
    if ranks.is_first:
        checkpoint._seal_folder(folder, mib, known)
    ranks.barrier()
    begun = time.monotonic()
    checkpoint.require(folder, ranks)
    return sealed - started, time.monotonic() - begun


def main() -> None:
    """Print a line for each size, on rank 0."""
    ranks = ranks_of_environment()
    dist.init_process_group("gloo")
    root = Path(ranks.decide_on_first(lambda: tempfile.mkdtemp(prefix="verizero-seals-")))
    try:
        for mib in map(int, sys.argv[1:]):
            sealing, checking = seconds(ranks, root, mib)
            if ranks.is_first:
                print(
                    f"{ranks.size} ranks, {mib} MiB: sealed in {sealing:.2f} s, checked in {checking:.2f} s", flush=True
                )
    finally:
        ranks.barrier()
        if ranks.is_first:
            shutil.rmtree(root)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
