"""prime-rl: the metrics.jsonl of trainer and orchestrator, and their numbers in W&B.

Source: prime-rl at 559b44772e, src/prime_rl/monitors/file.py (`FileMonitor`), orchestrator/metrics.py and the page
skills/training/monitor-run/SKILL.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from verizero.pipeline.diagnosis.logs.logged import (
    MAX_NUMBER_BYTES,
    Logged,
    LoggedRow,
    first_row,
    flat,
    name_file,
    numbers,
)
from verizero.pipeline.diagnosis.logs.tool import Option, Tool
from verizero.pipeline.files import numbered_jsonl, parse_json

AGENT = re.compile(r"train/agg/effective/[^/]+/(reward/mean|is_truncated/mean|num_output_tokens/mean)$")
PASS = re.compile(r"eval/(.+?)/(?:effective/[^/]+/)?avg@\d+$")
SOLVED = re.compile(r"train/agg/(?:effective|all)/(?:[^/]+/)?solve_(none|all)$")
OF_AGENT = {
    "reward/mean": "reward/sampled",
    "is_truncated/mean": "truncated",
    "num_output_tokens/mean": "length/mean",
}


def _derive(values: dict[str, float], logged: Logged) -> None:
    """Add what the orchestrator counts for its one agent, and the held-out means."""
    for name in [n for n in values if n.startswith(("?train/agg/", "?eval/"))]:
        if (match := AGENT.match(name[1:])) is not None:
            values.setdefault(OF_AGENT[match[1]], values[name])
        elif (match := PASS.match(name[1:])) is not None:
            values[f"evaluation/{match[1].replace('/', '_')}/pass@1"] = values[name]
        elif (match := SOLVED.match(name[1:])) is not None:
            values["groups/sampled"] = 1.0
            values["groups/all_wrong" if match[1] == "none" else "groups/all_right"] = values[name]
        del values[name]
    if "groups/all_wrong" in values and "groups/all_right" in values:
        values["groups/without_signal"] = values["groups/all_wrong"] + values["groups/all_right"]
        values["groups/equal"] = 0.0


TOOL = Tool(
    name="prime-rl",
    title="prime-rl",
    signs=("mismatch_kl/all/mean", "optim/grad_norm", "optim/lr", "loss/mean", "entropy/all/mean"),
    metrics={
        "reward/mean": "reward/sampled",
        "entropy/all/mean": "entropy",
        "entropy/mean": "entropy",
        "mismatch_kl/all/mean": "mismatch/k3",
        "mismatch_kl/mean": "mismatch/k3",
        "optim/grad_norm": "grad_norm",
        "optim/lr": "learning_rate",
        "loss/mean": "loss",
        "seq_len/mean": "length/mean",
        "is_truncated/mean": "truncated",
        "off_policy/mean": "lag",
        "dispatcher/off_policy/mean": "lag",
    },
    options={
        "trainer.optim.lr": Option("rl.optimizer.learning_rate"),
        "trainer.optim.max_norm": Option("rl.optimizer.max_grad_norm"),
        "orchestrator.train.sampling.temperature": Option("rollout.temperature"),
        "orchestrator.train.sampling.max_completion_tokens": Option("rollout.max_response_tokens"),
        "orchestrator.group_size": Option("rl.group_size"),
    },
    written="--{option} {value}",
    where="rl.toml",
    remedies={
        "advantages_vanish": "set temperature = 1.0 in [orchestrator.train.sampling], and a group_size of 8 or more",
        "constant_reward": "call the environment's rubric with a right and a wrong completion",
        "end_token_missing": "compare the renderer's end of a turn with the tokenizer's eos_token",
        "engine_mismatch": "give trainer and inference one number type",
        "length_cap": "double max_completion_tokens in [orchestrator.train.sampling]",
        "learning_rate_high": "divide lr in [trainer.optim] by ten",
        "learning_rate_low": "raise lr in [trainer.optim] by a factor of ten",
        "policy_lag": "lower max_off_policy_steps in [orchestrator]",
        "stale_engine_weights": "look at [weight_broadcast], and at the policy's version in orchestrator.log",
        "too_easy": "set filter_zero_advantages = true in [orchestrator.train], or a curriculum by difficulty",
        "too_hard": "choose easier tasks of the environment, or set a curriculum with pools by difficulty",
    },
    derive=_derive,
)


def is_here(path: Path) -> bool:
    """True if the path is a metrics.jsonl of prime-rl, or a folder with one."""
    return any(_is_metrics(file) for file in _files(path))


def read(path: Path) -> Logged:
    """Return the metrics of trainer and orchestrator, merged by step, and the configuration."""
    logged = Logged()
    for file in _files(path):
        if not _is_metrics(file):
            continue
        name_file(file, logged)
        for line, row in numbered_jsonl(file, MAX_NUMBER_BYTES):
            values = numbers({k: v for k, v in row.items() if k not in ("step", "time")})
            logged.rows.append(LoggedRow(str(file), line, int(row["step"]), values))
    for config in sorted(path.glob("configs/rl.json")) if path.is_dir() else ():
        try:
            tree = parse_json(config.read_bytes())
        except (OSError, ValueError):
            continue
        logged.settings |= flat(tree) if isinstance(tree, dict) else {}
    return logged


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted([*path.glob("metrics.jsonl"), *path.glob("*/metrics.jsonl")])


def _is_metrics(file: Path) -> bool:
    row = first_row(file) if file.suffix == ".jsonl" else None
    return row is not None and {"step", "time"} <= row.keys() and isinstance(row["time"], float) and "kind" not in row
