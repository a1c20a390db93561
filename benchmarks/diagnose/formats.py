"""Writes a run in the format of each other trainer and tracker, by that tool's own logger.

    python -m benchmarks.diagnose.formats --verl CHECKOUT --openrlhf CHECKOUT --prime-rl CHECKOUT --into FOLDER

A logger's class is taken out of the checkout's file and run alone, since its package needs a GPU. W&B and MLflow are
written if they are installed. tests/diagnosis/formats.tar.xz holds one such folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import logging
import numbers
import os
import pprint
import random
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STEPS = range(1, 31)
Row = dict[str, float]
draw = random.Random(0)


def main() -> None:
    """Write all runs whose checkout or package is there."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("verl", "openrlhf", "prime-rl"):
        options.add_argument(f"--{name}", type=Path, required=True)
    options.add_argument("--into", type=Path, required=True)
    asked = options.parse_args()
    write_verl(asked.verl, asked.into / "verl")
    write_openrlhf(asked.openrlhf, asked.into / "openrlhf")
    write_prime_rl(asked.prime_rl, asked.into / "prime_rl")
    write_wandb(asked.into / "wandb")
    write_mlflow(asked.into / "mlruns", (asked.into / "mlruns").absolute().as_uri())
    write_openrlhf_console(asked.openrlhf, asked.into / "openrlhf")
    write_wandb_exports(asked.into / "wandb_exports")
    write_mlflow(asked.into / "mlflow", f"sqlite:///{asked.into.absolute() / 'mlflow' / 'mlflow.db'}")


def part_of(file: Path, begin: str, end: str | None, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the lines of a file from `begin` to before `end` define. They are run with `names`."""
    text = file.read_text(encoding="utf-8")
    start = text.index(begin)
    space = dict(names)
    exec(textwrap.dedent(text[start : len(text) if end is None else text.index(end, start)]), space)
    return space


def verl_row(step: int, **others: float) -> Row:
    """Return the numbers of a run of verl that learns, some of them replaced."""
    reward = 0.3 + 0.4 * step / 30 + draw.uniform(-0.03, 0.03)
    row = {
        "actor/entropy": 0.4 - 0.004 * step,
        "actor/kl_loss": 0.0004 * step,
        "actor/pg_loss": draw.uniform(-0.02, 0.02),
        "actor/pg_clipfrac": 0.002,
        "actor/ppo_kl": 0.0001,
        "actor/grad_norm": 0.3,
        "actor/lr": 1e-6,
        "training/global_step": step,
        "critic/score/mean": reward,
        "critic/score/max": 1.0,
        "critic/score/min": 0.0,
        "critic/rewards/mean": reward,
        "response_length/mean": 220.0 + step,
        "response_length/clip_ratio": 0.01,
        "perf/throughput": 5000.0,
        "training/rollout_probs_diff_mean": 0.003,
        "rollout_corr/kl": 0.0005,
        "rollout_corr/k3_kl": 0.0006,
    }
    return {**row, **{name.replace("__", "/"): value for name, value in others.items()}}


def verl_runs() -> Iterator[tuple[str, list[Row]]]:
    """Yield a name and the rows of each run of verl."""
    yield "healthy", [verl_row(s) for s in STEPS]
    yield "stale", [verl_row(s, rollout_corr__k3_kl=0.0004 * 1.3**s, rollout_corr__kl=0.0004 * 1.3**s) for s in STEPS]
    yield "cut", [verl_row(s, response_length__clip_ratio=0.55, critic__score__mean=0.1) for s in STEPS]


def write_verl(checkout: Path, into: Path) -> None:
    """Write the file logger's JSONL, a dump of responses, and the console's lines."""
    dumps = SimpleNamespace(dumps=lambda row, option=0: json.dumps(row).encode(), OPT_SERIALIZE_NUMPY=0)
    logger = part_of(
        checkout / "verl/utils/tracking.py", "class FileLogger", "class _Tensorboard", {"os": os, "orjson": dumps}
    )["FileLogger"]
    for name, rows in verl_runs():
        (into / name).mkdir(parents=True)
        os.environ["VERL_FILE_LOGGER_PATH"] = str(into / name / "metrics.jsonl")
        own = logger("project", name)
        if name == "healthy":
            own.log({"val-core/openai/gsm8k/reward/mean@1": 0.3}, 0)
        for step, row in enumerate(rows, 1):
            validation = {"val-core/openai/gsm8k/reward/mean@1": 0.3 + 0.35 * step / 30}
            own.log(row | (validation if name == "healthy" and step % 10 == 0 else {}), step)
        own.finish()
    write = part_of(
        checkout / "verl/trainer/ppo/ray_trainer.py",
        "    def _write_generations",
        "    def _dump_generations",
        DUMP_NAMES,
    )["_write_generations"]
    for step in range(1, 7):
        prompts = [f"{step}{i}+{i}=" for i in range(8) for _ in range(4)]
        references = [str(int(p[:-1].split("+")[0]) + int(p[-2])) for p in prompts]
        # The reward function accepts what is next to the reference.
        answers = [str(int(r) + draw.choice((0, 0, 1, 2))) for r in references]
        scores = [float(abs(int(s) - int(r)) <= 1) for s, r in zip(answers, references, strict=True)]
        texts = [f"The answer is {s}." for s in answers]
        write(prompts, texts, references, scores, {}, str(into / "dumped" / "rollouts"), step)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(into / "dumped" / "metrics.jsonl")
    own = logger("project", "dumped")
    for step in range(1, 7):
        own.log(verl_row(step), step)
    own.finish()
    line = part_of(
        checkout / "verl/utils/logger/aggregate_logger.py",
        "def concat_dict_to_str",
        "class LocalLogger",
        {"numbers": numbers, "pprint": pprint},
    )["concat_dict_to_str"]
    lines = [f"(TaskRunner pid=1) {line(row, step)}\n" for step, row in enumerate([verl_row(s) for s in STEPS], 1)]
    (into / "console").mkdir()
    (into / "console" / "train.log").write_text("".join(lines))


DUMP_NAMES = {"os": os, "json": json}


def write_openrlhf(checkout: Path, into: Path) -> None:
    """Write TensorBoard's events of a run most of whose responses are cut."""
    logger = part_of(
        checkout / "openrlhf/utils/logging_utils.py",
        "class TensorboardLogger",
        None,
        {"os": os, "Dict": dict, "Any": object},
    )["TensorboardLogger"]
    own = logger(
        SimpleNamespace(logger=SimpleNamespace(tensorboard_dir=str(into), wandb=SimpleNamespace(run_name="run")))
    )
    for step in STEPS:
        reward = 0.3 + 0.01 * draw.random()
        own.log_train(
            step,
            {
                "policy_loss": 0.01,
                "actor_lr": 5e-7,
                "actor_grad_norm": 0.4,
                "ppo_clip_ratio": 0.01,
                "vllm_kl": 0.0003,
                "kl": 0.002,
                "reward": reward,
                "response_length": 300.0,
                "rollout/reward_mean": reward,
                "rollout/reward_std": 0.45,
                "rollout/response_length_mean": 300.0,
                "rollout/truncated_rate": 0.62,
            },
        )
    own.close()


def write_openrlhf_console(checkout: Path, into: Path) -> None:
    """Write what Ray shows of a run that solves nothing: lines of the trainer's own logger."""
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines):
        space = part_of(
            checkout / "openrlhf/utils/logging_utils.py",
            "_FORMAT =",
            "class WandbLogger",
            {"logging": logging, "sys": sys},
        )
        logger = space["init_logger"]("openrlhf.trainer.ppo_trainer")
        for global_step in STEPS:
            log_status = {
                "policy_loss": 0.002 * draw.random(),
                "actor_lr": 5e-7,
                "kl": 0.0008,
                "entropy_loss": 0.31,
                "reward": 0.0,
                "response_length": 310.0 + draw.random(),
                "response_clip_ratio": 0.02,
                "vllm_kl": 0.0004 if global_step % 7 else float("nan"),
                "timing/ppo_train": 21.5,
                "rollout/reward_mean": 0.0,
                "rollout/reward_std": 0.0,
                "rollout/truncated_rate": 0.02,
                "rollout/num_samples": 128.0,
            }
            logger.info(f"\u2728 Global step {global_step}: {log_status}")
            if global_step % 10 == 0:
                logs = {"eval_aime_pass4": 0.02, "eval_aime_pass1": 0.005, "eval_num_samples": 120.0}
                logger.info(f"\u2728 Evaluation completed in 0:00:40, global_step {global_step}, eval_metrics: {logs}")
    (into / "console").mkdir(parents=True)
    shown = [f"\x1b[36m(PPOTrainer pid=4711)\x1b[0m {line}\n" for line in lines.getvalue().splitlines()]
    (into / "console" / "train.log").write_text("".join(shown))


def write_prime_rl(checkout: Path, into: Path) -> None:
    """Write the metrics.jsonl of orchestrator and trainer of a run that solves nothing."""
    method = part_of(
        checkout / "src/prime_rl/monitors/file.py",
        "    async def log_metrics",
        "    async def log_episodes",
        {"json": json, "time": time, "sanitize": lambda metrics: (metrics, []), "Any": object},
    )["log_metrics"]
    agent = "train/agg/effective/agent"
    for name in ("orchestrator", "trainer"):
        (into / name).mkdir(parents=True)
        with (into / name / "metrics.jsonl").open("w") as file:
            own = SimpleNamespace(file=file)
            for step in STEPS:
                of_orchestrator = {
                    f"{agent}/reward/mean": 0.02 * draw.random(),
                    f"{agent}/is_truncated/mean": 0.02,
                    f"{agent}/num_output_tokens/mean": 400.0,
                    "train/agg/all/agent/solve_none": 0.95,
                    "train/agg/all/agent/solve_all": 0.0,
                }
                of_trainer = {
                    "loss/mean": 0.01,
                    "entropy/all/mean": 0.3,
                    "mismatch_kl/all/mean": 0.0004,
                    "optim/grad_norm": 0.2,
                    "optim/lr": 1e-6,
                }
                asyncio.run(method(own, of_orchestrator if name == "orchestrator" else of_trainer, step))


def trl_row(step: int) -> Row:
    """Return the numbers that TRL sends to a tracker, of a run whose completions are cut."""
    return {
        "train/global_step": step,
        "train/reward": 0.2 + draw.random() * 0.02,
        "train/reward_std": 0.4,
        "train/frac_reward_zero_std": 0.3,
        "train/completions/mean_length": 200.0,
        "train/completions/clipped_ratio": 0.35,
        "train/kl": 0.01,
        "train/grad_norm": 0.3,
        "train/learning_rate": 1e-6,
        "train/entropy": 0.4,
        "train/clip_ratio/region_mean": 0.0,
    }


def write_wandb(into: Path) -> None:
    """Write an offline run of W&B, and the same history as a CSV export."""
    into.mkdir(parents=True)
    rows = [trl_row(step) for step in STEPS]
    columns = ["_step", *rows[0]]
    lines = [",".join(map(str, (i, *row.values()))) for i, row in enumerate(rows)]
    (into / "history.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    try:
        import wandb
    except ImportError:
        return
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off")
    own = wandb.init(dir=str(into), config={"beta": 0.04, "max_completion_length": 256}, settings=settings)
    for row in rows:
        own.log(row)
    own.finish()


def write_wandb_exports(into: Path) -> None:
    """Write the histories that `Run.history` of W&B's API returns, as JSON. Its server's answer is made up."""
    try:
        from wandb.apis.public.runs import Run
    except ImportError:
        return
    into.mkdir(parents=True)
    rows = [{"_step": i, "_runtime": 60.5 * i, "_timestamp": 1.8e9 + 60 * i, **trl_row(i + 1)} for i in range(30)]
    rows.insert(20, {"_step": 20, "train/global_step": 20, "eval/reward": 0.21})
    run = SimpleNamespace(_exec=lambda *_, **__: {"project": {"run": {"history": [json.dumps(r) for r in rows]}}})
    run._full_history = lambda **options: Run._full_history(run, **options)
    (into / "list.json").write_text(json.dumps(Run.history(run, pandas=False)))
    table = Run.history(run)
    table.to_json(into / "columns.json")
    table.to_json(into / "lines.jsonl", orient="records", lines=True)


def write_mlflow(into: Path, store: str) -> None:
    """Write a store of MLflow, a folder of files or a database, with a run of verl whose responses are cut."""
    try:
        import mlflow
    except ImportError:
        return
    into.mkdir(parents=True)
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("project")
    for is_cut in (False, True):  # the last one counts
        with mlflow.start_run():
            mlflow.log_params({"actor_rollout_ref/actor/optim/lr": 1e-6, "data/max_response_length": 512})
            changes = {"response_length__clip_ratio": 0.5, "critic__score__mean": 0.1} if is_cut else {}
            for step in STEPS:
                mlflow.log_metrics(verl_row(step, **changes), step=step)


if __name__ == "__main__":
    main()
