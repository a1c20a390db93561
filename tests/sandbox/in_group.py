"""One rank of a process group that verifies programs: started by torchrun, tells what it saw as a line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import sandbox

TESTS = [{"input": str(i), "output": str(2 * i)} for i in range(3)]


def main(folder: Path) -> None:
    """Verify programs of this rank's own between two collectives, and write down what came of them."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    trials = [sandbox.Trial(f"print(int(input()) * {factor})", TESTS) for factor in range(4)]
    trials += [sandbox.Trial(f"import os\nprint({rank} if os.getpid() else 0)", [{"input": "", "output": str(rank)}])]
    dist.barrier()
    sandbox.configure(workers=2)
    results = sandbox.run_many(trials)
    passed = torch.tensor([r.passed for r in results], dtype=torch.int64)
    dist.all_reduce(passed)
    workers = sorted(w.process.pid for w in sandbox.default_pool()._all)
    everybodys: list[list[int] | None] = [None] * size
    dist.all_gather_object(everybodys, workers)
    sandbox.shutdown()
    told = {"statuses": [r.status for r in results], "passed": passed.tolist(), "workers": everybodys}
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
