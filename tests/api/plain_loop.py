"""A loop of just the calls of `vz.open`, which may be killed: `python -m tests.api.plain_loop RECIPE NAME AT`.

AT is "update 3" or "end_step 3": it dies after that call of the third step, and without it the loop runs to its end.
"""

import os
import signal
import sys

import torch

import verizero as vz


def loop(recipe: str, name: str, dies_after: str = "") -> vz.TrainedRun:
    """Do the steps of the recipe's RL by the calls of `vz.open`."""

    def done(call: str) -> None:
        if dies_after == f"{call} {number}":
            os.kill(os.getpid(), signal.SIGKILL)

    with vz.open(recipe, name=name, quiet=True) as s:
        while not s.done:
            number = s.step + 1
            prompts = s.next_prompts()
            groups = s.verify(s.generate(prompts))
            kept = s.select(groups)
            s.update(kept)
            done("update")
            s.publish()
            s.end_step()
            done("end_step")
    return s.run


if __name__ == "__main__":
    torch.set_num_threads(1)
    loop(*sys.argv[1:])
