"""Runs the tiny recipe in children that are killed at chosen moments, resumes them, and says how each ended.

Run as a script: `python -m tests.stages.kill_driver FOLDER KILLS [RECIPE.yaml] [a.b=c …]`, with a name in `KILLS`;
prints one JSON object. A recipe takes the place of the tiny one. Children are forked after the imports (torch has run
nothing in parallel by then), so that a kill costs a second and not an interpreter's start. A run is killed several
times, and what any of its kills changes would still be there at its end.
"""

import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import torch

from tests.stages.sessions import run_all
from tests.stages.tiny import tiny
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.environments.agent import Agent
from verizero.pipeline.environments.guess import Guess
from verizero.pipeline.environments.tool_use import ToolEpisode
from verizero.pipeline.loop import rollback, rounds
from verizero.pipeline.models.load import create_model, quiet
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.row_types import VARYING
from verizero.pipeline.report.store import Store
from verizero.pipeline.rollout import play
from verizero.pipeline.run import collapse
from verizero.pipeline.run.build import build_tokenizer
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.saving import save_final
from verizero.pipeline.whole_run import finish


def config_of(words):
    """The tiny recipe with these overrides, or the recipe whose file the first word names."""
    return load_recipe(Path(words[0]), words[1:]) if words and words[0].endswith(".yaml") else tiny(overrides=words)


CONFIG = config_of(sys.argv[3:] if __name__ == "__main__" else [])


def die():
    """As the kernel's out-of-memory killer would have it: no handler runs, no buffer is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """Kills this process at the `number`-th time that `phase` begins or ends; "phase of stage": in that stage."""

    def __init__(self, phase, number, when):
        self.phase, self.left, self.when = phase, number, when
        self.lock = threading.Lock()
        self.session = None

    def wrap(self, phase, function):
        named, _, stage = self.phase.partition(" of ")
        in_run = phase.startswith("environment ")  # demonstrations are played too, before the run is open
        if phase != named:
            return function

        def call(*arguments):
            if self.session is None:
                if stage or in_run:
                    return function(*arguments)
            elif stage and self.session.state.stage.name != stage:
                return function(*arguments)
            with self.lock:
                self.left -= 1
                is_now = self.left == 0
            if is_now and self.when == "before":
                die()
            result = function(*arguments)
            if is_now:
                die()
            return result

        return call


def run(folder, fuse, page=False):
    """The whole run, with the fuse in it; resumes an earlier one. `page`: it ends with its page too."""
    os.rename = fuse.wrap("rename", os.rename)
    os.fsync = fuse.wrap("fsync", os.fsync)
    rollback.restore_checkpoint = fuse.wrap("restore", rollback.restore_checkpoint)
    rollback.alarm = fuse.wrap("alarm", rollback.alarm)
    rounds.one_step = fuse.wrap("step", rounds.one_step)
    play.sample = fuse.wrap("turns", play.sample)
    for made in (Guess, ToolEpisode, Agent):
        for name in ("start", "step"):
            setattr(made, name, fuse.wrap(f"environment {name}", getattr(made, name)))
    if fuse.phase == "torn line":
        plain = Store._append

        def torn(self, name, rows):
            fuse.left -= 1
            if fuse.left == 0:
                self._files[name].write(b'{"kind":"step","stage":"r')
                self._files[name].flush()
                die()
            plain(self, name, rows)

        Store._append = torn
    with open_run(CONFIG, Path.cwd(), folder, "auto", Progress()) as session:
        fuse.session = session
        run_all(session, fuse.wrap)
        if page:
            fuse.wrap("finish", finish)(session)
        else:
            save_final(session.run, session.workers.backend)


def in_child(work):
    """How a forked child that does `work` ended: its exit status, or minus the signal."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def lines_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in VARYING} for line in lines]


def left(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return digest(b"".join(str(p.relative_to(folder)).encode() + p.read_bytes() for p in files))


def policy_in(checkpoint):
    """The file of the policy's weights; on a quantised base it has those of the adapters alone."""
    whole = checkpoint / "model" / "model.safetensors"
    return whole if whole.exists() else checkpoint / "adapter" / "adapter_model.safetensors"


def fingerprint(folder):
    newest = max((p for p in (folder / "checkpoints").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    state = json.loads((newest / "state.json").read_text())
    state["store"]["lengths"].pop("metrics.jsonl")  # as long as its times are
    state["store"]["sums"].pop("metrics.jsonl")
    return {
        "metrics": digest(json.dumps(lines_of(folder)).encode()),
        "rollouts": digest((folder / "rollouts.jsonl").read_bytes()),
        "left": left(folder / "stages"),
        "model": digest((folder / "model" / "model.safetensors").read_bytes()),
        "checkpoint": newest.name,
        "state": digest(json.dumps(state, sort_keys=True).encode()),
        "trainer": digest(b"".join(flat(torch.load(newest / "trainer.pt", weights_only=True)))),
        "schedule": digest((newest / "trainer.json").read_bytes()),
        "critic": digest(critic.read_bytes() if (critic := newest / "critic" / "model.safetensors").exists() else b""),
        "policy": digest(policy_in(newest).read_bytes()),
    }


def flat(value):
    """The content of nested values, bit for bit; pickles of equal content differ in what they share."""
    if isinstance(value, torch.Tensor):
        return [str((value.dtype, tuple(value.shape))).encode(), value.reshape(-1).view(torch.uint8).numpy().tobytes()]
    if isinstance(value, dict):
        return [b for k, v in value.items() for b in (repr(k).encode(), *flat(v))]
    if isinstance(value, list | tuple):
        return [b for v in value for b in flat(v)]
    return [repr(value).encode()]


IN_EACH_STAGE = {
    "pretrain": "train 1 before; train 2 after",
    "sft": "train 1 before; train 2 after; train 3 before",
    "rl": "next_prompts 1 before; update 2 after",
    "preference": "sample 1 before; sample 2 after; train 2 after",
    "online_preference": "next_prompts 1 before; update 2 after",
    "distill": "next_prompts 1 before; update 2 after",
    "reward_model": "sample 1 before; sample 3 after; train 2 after; train 1 after",
    "sample": "sample 1 before; sample 2 after; sample 2 after",
    "sft_again": "train 1 before; train 2 after",
    "reward_again": "sample 2 after; train 1 after",
    "rl_again": "next_prompts 1 before; update 2 after",
    "reward_steps": "sample 2 after; train 1 after",
    "rl_steps": "next_prompts 1 before; update 2 after",
}
"""Stage -> kills of one run that has them all: before the stage did anything, and within it."""
KILLS = {
    "anywhere": [
        "fsync 7 before; train 2 before; train 2 after; evaluate 1 before; generate 1 before; verify 2 after; "
        "update 1 before; publish 1 after; evaluate 1 before; step 2 after; finish 1 before",
        "rename 3 before; next_prompts 3 after; select 2 after; publish 1 before; torn line 2 ever; update 2 after; "
        "evaluate 1 after; fsync 20 after; finish 1 after",
        "torn line 22 ever; generate 2 after; rename 2 after",
    ],
    "around updates": ["generate 2 after; update 1 before; rename 1 after; update 1 after"],
    "in turns": [
        "environment start 20 before; environment step 10 after; turns 5 before",
        "update 1 after; rename 2 before; publish 1 after; environment step 7 before",
    ],
    "with agents": ["environment start 3 after; turns 2 after; environment step 9 before; update 1 after"],
    "around roll-backs": [
        "restore 1 before; restore 1 after; alarm 1 after; generate 4 before; step 2 after",
        "update 2 before; publish 1 after",
    ],
    "in each stage": [
        "; ".join(
            f"{phase} of {stage} {number} {when}"
            for stage, kills in IN_EACH_STAGE.items()
            for phase, number, when in (kill.split() for kill in kills.split("; "))
        )
    ],
}
"""Name -> kills of some runs, each killed several times: phase, at which time since its process began, and when."""
SMALL_CHUNKS = {"_epochs.CHUNK_STEPS": 5, "sample.SAMPLED_AT_ONCE": 12, "_pairs.SAMPLED_AT_ONCE": 12}
"""So that short stages have a middle, with checkpoints in it."""


def fuse_of(kill):
    phase, number, when = kill.rsplit(" ", 2)
    return Fuse(phase, int(number), when)


def main(root, scenarios):
    """Every scenario's end, and that of a run never killed."""
    torch.set_num_threads(1)
    tempfile.tempdir = None  # the process that this one is a fork of may have another
    quiet()
    if CONFIG.model.create is not None:
        create_model("qwen2", CONFIG.model.create.config, build_tokenizer(CONFIG), 0)  # its imports, once
    collapse.RATE_AFTER_ROLL_BACK = 0.125  # half the rate may collapse again, as a processor rounds
    for name, small in SMALL_CHUNKS.items():
        module, _, constant = name.partition(".")
        setattr(importlib.import_module(f"verizero.pipeline.stages.{module}"), constant, small)
    whole = in_child(lambda: run(root / "whole", Fuse("", 0, "")))
    results = {"whole": [whole, fingerprint(root / "whole")], "killed": {}}
    for number, text in enumerate(scenarios):
        folder, kills = root / f"killed-{number}", text.split("; ")
        page = "finish" in text or "fsync" in text
        deaths = [(k, in_child(lambda k=k, f=folder, page=page: run(f, fuse_of(k), page))) for k in kills]
        last = in_child(lambda f=folder, page=page: run(f, Fuse("", 0, ""), page))
        results["killed"][text] = {"deaths": deaths, "end": [last, fingerprint(folder)]}
    return results


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), KILLS[sys.argv[2]])))
