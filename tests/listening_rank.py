"""Ranks of one machine that say at which addresses they listen. Run one as `python -m tests.listening_rank`."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.warm import ROOT
from verizero.pipeline.train.ranks import join, leave


def listened() -> list[str]:
    """The addresses at which this process listens, as the kernel writes them: bytes in hexadecimal, the last first."""
    own = {os.readlink(f) for f in Path("/proc/self/fd").iterdir() if f.is_symlink() and os.path.lexists(f)}
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()
    ]
    return sorted({f[1].split(":")[0] for f in lines if f[3] == "0A" and f"socket:[{f[9]}]" in own})


def said_by_ranks(place: Mapping[str, str]) -> list[str]:
    """What two ranks print that meet at this place. Call it where programs begin as forks."""
    words = [sys.executable, "-m", "tests.listening_rank"]
    ranks = [
        subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    return [process.communicate(timeout=120)[0] for process in ranks]


if __name__ == "__main__":
    ranks = join(60.0)
    print(json.dumps([listened(), ranks.gather(ranks.rank)]))
    ranks.barrier()
    leave()
