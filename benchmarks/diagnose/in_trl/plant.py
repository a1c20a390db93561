"""Runs scripts of TRL, healthy ones and those with a fault, and shows whether each fault hurts.

    python -m benchmarks.diagnose.in_trl.plant [NAMES] --seeds 5 --folder runs/diagnose_trl

A finished run is not repeated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.diagnose.in_trl.faults import BY_NAME, Script
from verizero.pipeline.files import locked

BASE = {
    "max_steps": 24,
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "max_completion_length": 24,
    "learning_rate": 6e-4,
    "lr_scheduler_type": "constant_with_warmup",
    "logging_steps": 1,
    "log_completions": True,
    "num_completions_to_print": 0,
    "report_to": "none",
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}
NOTE = "planted.json"
NUM_STARTS = 2
"""Start models, and divisions of the sums into training and held-out ones; runs of other seeds share them."""


def main() -> None:
    """Run what the command line names, one run at a time, and print a line for each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help="scripts; default: all")
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--folder", type=Path, default=Path("runs/diagnose_trl"))
    asked = options.parse_args()
    prepare_process()
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for name in asked.names or BY_NAME:
            print(line(BY_NAME[name], seed, planted(BY_NAME[name], seed, asked.folder)), flush=True)


def prepare_process() -> None:
    """Load what every run needs, so that the forks of this process begin at once; one thread, which forks survive."""
    os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch
    import transformers
    import trl  # noqa: F401
    from trl import GRPOTrainer  # noqa: F401

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


def planted(script: Script, seed: int, base: Path) -> dict[str, Any]:
    """Train by the script into base/name/seed/output unless that was done, and return the note of it."""
    folder = base / script.name / f"seed{seed}"
    if (folder / NOTE).is_file():
        return dict(json.loads((folder / NOTE).read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun = time.monotonic()
    process = multiprocessing.get_context("fork").Process(target=train, args=(script, seed, folder, base / "starts"))
    process.start()
    process.join()
    note = {"name": script.name, "cause": script.cause, "seed": seed, "status": process.exitcode}
    note |= {"seconds": round(time.monotonic() - begun, 1), **_scores(folder)}
    (folder / NOTE).write_text(json.dumps(note, indent=1))
    return note


def train(script: Script, seed: int, folder: Path, starts: Path) -> None:
    """Do what a user's script does, from the data to `trainer.train()`."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from benchmarks.diagnose.in_trl import start, tasks
    from benchmarks.diagnose.in_trl.server import Server

    with (folder / "console.txt").open("w") as console:  # what a user sees, and what the trainer prints
        os.dup2(console.fileno(), 1)
        os.dup2(console.fileno(), 2)
    random.seed(seed)
    with locked(starts, wait=True):  # two of these programs may run at once
        first = seed % NUM_STARTS
        source = start.make(starts / str(first), first)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    if script.loaded is not None:
        script.loaded(model, tokenizer)
    train_rows, held_out = tasks.rows(seed % NUM_STARTS)

    def dataset(rows: list[dict[str, Any]]) -> Any:
        return Dataset.from_list(
            [{"prompt": [{"role": "user", "content": r["question"]}], "answer": r["answer"]} for r in rows]
        )

    evaluates = script.evaluates_on is not None
    extra = {"eval_strategy": "steps", "eval_steps": 10, "per_device_eval_batch_size": 64} if evaluates else {}
    steps = script.arguments.get("max_steps", BASE["max_steps"])
    arguments = {**BASE, **extra, **script.arguments, "seed": seed, "save_steps": steps}
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=list(script.rewards),
        args=GRPOConfig(output_dir=str(folder / "output"), **arguments),
        train_dataset=dataset(script.data(train_rows, seed) if script.data else train_rows),
        eval_dataset=dataset(script.evaluates_on(train_rows, seed)) if script.evaluates_on else None,
    )
    if script.server is not None:
        trainer.use_vllm, trainer._last_loaded_step = True, -1
        trainer.vllm_generation = Server(trainer, **script.server)
    before = solved(model, source, held_out)
    trainer.train()
    after = solved(model, source, held_out)
    (folder / "scores.json").write_text(json.dumps({"before": before, "after": after}))
    for weights in (
        *folder.glob("output/*/*.safetensors"),
        *folder.glob("output/*/*.pt"),
        *folder.glob("output/*/*.pth"),
    ):
        weights.unlink()


def solved(model: Any, source: Path, held_out: list[dict[str, Any]]) -> float:
    """Return the share of held-out sums that the model solves, in the form of its training."""
    import torch
    from transformers import AutoTokenizer

    from benchmarks.diagnose.in_trl.rewards import boxed
    from benchmarks.diagnose.in_trl.tasks import ASSISTANT, END, USER

    tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    tasks = held_out
    texts = [f"{USER}{r['question']}{END}{ASSISTANT}" for r in tasks]
    inputs = tokenizer(texts, return_tensors="pt", padding=True).to(model.device)
    model.eval()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        out = model.generate(**inputs, do_sample=True, max_new_tokens=24, top_k=0, eos_token_id=tokenizer.eos_token_id)
    answers = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return float(sum(boxed(a) == r["answer"] for a, r in zip(answers, tasks, strict=True))) / len(tasks)


def line(script: Script, seed: int, note: dict[str, Any]) -> str:
    """Return the row of one run."""
    scores = f"{note.get('before')} -> {note.get('after')}"
    return f"{script.name:34} {script.cause:26} seed {seed}  {scores}  {note['seconds']} s, status {note['status']}"


def _scores(folder: Path) -> dict[str, float]:
    path = folder / "scores.json"
    return {k: round(v, 3) for k, v in json.loads(path.read_text()).items()} if path.is_file() else {}


if __name__ == "__main__":
    main()
