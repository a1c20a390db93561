"""verl: the JSONL of its file logger, its console lines, rollout and validation dumps, and Hydra's configuration.

Source: verl at 1dda039b9c, verl/utils/tracking.py (`FileLogger`), verl/utils/logger/aggregate_logger.py
(`LocalLogger`), verl/trainer/ppo/ray_trainer.py (`_write_generations`), metric_utils.py and rollout_corr_helper.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.checks.logs.logged import Logged, LoggedResponse, Tool, first_row, numbers
from verizero.pipeline.checks.logs.options import settings_of_file

DUMP_KEYS = frozenset({"input", "output", "score"})
HYDRA = (".hydra/config.yaml", "config.yaml")
VALIDATION = re.compile(r"val-(?:core|aux)/(.+)/(?:acc|reward|score)/mean@(\d+)$")
OLDER_VALIDATION = re.compile(r"val/test_score/(.+)$")
HELD_OUT_FOLDER = re.compile(r"val|test|eval", re.IGNORECASE)
IN_DUMP = frozenset({*DUMP_KEYS, "gts", "step", "request_id"})


def _derive(values: dict[str, float], logged: Logged) -> None:
    """Add the held-out scores, and whether the training score is a share of right responses."""
    for name in [n for n in values if n.startswith("?val")]:
        match = VALIDATION.match(name[1:]) or OLDER_VALIDATION.match(name[1:])
        if match is not None:
            values.setdefault(f"evaluation/{match[1].replace('/', '_')}/pass@1", values[name])
        del values[name]
    low, high = values.get("?critic/score/min"), values.get("?critic/score/max")
    mean = values.get("reward/sampled")
    if low in (0.0, 1.0) and high in (0.0, 1.0) and mean is not None:
        values["correct/sampled"] = mean
        if low == high:
            values["groups/without_signal"] = 1.0
    highest, lowest = values.get("?critic/advantages/max"), values.get("?critic/advantages/min")
    if highest is not None and lowest is not None:
        values["reward/std"] = highest - lowest
        if highest == lowest:
            values["groups/without_signal"] = 1.0
    if (k3 := values.get("mismatch/k3")) is not None:
        values.setdefault("mismatch/k1", k3)


TOOL = Tool(
    name="verl",
    title="verl",
    signs=("critic/score/mean", "actor/pg_loss", "response_length/clip_ratio", "actor/pg_clipfrac", "actor/ppo_kl"),
    metrics={
        "critic/score/mean": "reward/sampled",
        "critic/rewards/mean": "reward/mean",
        "response_length/mean": "length/mean",
        "response_length/clip_ratio": "truncated",
        "actor/kl_loss": "kl/k1",
        "actor/reward_kl_penalty": "kl/k1",
        "actor/entropy": "entropy",
        "actor/entropy_loss": "entropy",
        "actor/grad_norm": "grad_norm",
        "actor/lr": "learning_rate",
        "actor/pg_loss": "loss",
        "actor/pg_clipfrac": "clip_fraction/high",
        "critic/vf_explained_var": "critic/explained_variance",
        "rollout_corr/kl": "mismatch/k1",
        "rollout_corr/k3_kl": "mismatch/k3",
        "rollout_corr/rollout_is_mean": "mismatch/ratio_mean",
        "training/rollout_probs_diff_mean": "mismatch/probability",
        "training/off_policy/trajectory_staleness/mean": "lag",
    },
    options={
        "actor_rollout_ref.actor.optim.lr": "rl.optimizer.learning_rate",
        "actor_rollout_ref.actor.optim.lr_warmup_steps": "rl.optimizer.warmup_steps",
        "actor_rollout_ref.actor.kl_loss_coef": "rl.algorithm.kl_coef",
        "actor_rollout_ref.actor.clip_ratio_low": "rl.algorithm.clip_low",
        "actor_rollout_ref.actor.clip_ratio_high": "rl.algorithm.clip_high",
        "actor_rollout_ref.actor.ppo_epochs": "rl.algorithm.num_epochs",
        "actor_rollout_ref.actor.entropy_coeff": "rl.algorithm.entropy_coef",
        "actor_rollout_ref.rollout.temperature": "rollout.temperature",
        "actor_rollout_ref.rollout.top_p": "rollout.top_p",
        "actor_rollout_ref.rollout.n": "rl.group_size",
        "data.max_response_length": "rollout.max_response_tokens",
    },
    where="the command's overrides",
    remedies={
        "advantages_vanish": "set actor_rollout_ref.rollout.temperature=1.0 and actor_rollout_ref.rollout.n=8 or more",
        "end_token_missing": "set the tokenizer's eos_token to the end of a turn of its chat template, and read "
        "outputs in trainer.rollout_data_dir",
        "engine_mismatch": "set algorithm.rollout_correction.rollout_is=token with rollout_is_threshold=2.0, and give "
        "actor_rollout_ref.rollout.dtype and the actor one number type",
        "length_cap": "double data.max_response_length",
        "learning_rate_low": "raise actor_rollout_ref.actor.optim.lr by a factor of ten (1e-6 is usual)",
        "kl_too_strong": "lower actor_rollout_ref.actor.kl_loss_coef (0.001 is usual)",
        "other_template": "compare data.apply_chat_template_kwargs and the model's chat template with its training",
        "sampling_differs": "set actor_rollout_ref.rollout.top_p=1.0 and top_k=-1, and one temperature for both",
        "stale_engine_weights": "look at how the engine of actor_rollout_ref.rollout.name gets its weights",
        "too_easy": "set algorithm.filter_groups.enable=True, and filter data.train_files by pass rate",
        "too_hard": "filter data.train_files by pass rate, train by SFT first, or raise actor_rollout_ref.rollout.n",
        "false_positives": "compare accepted outputs in trainer.rollout_data_dir with gts, and correct compute_score",
        "infrastructure_zeros": "let compute_score raise or retry where its service fails, in place of a score of 0",
    },
    logs_if={
        "kl/k1": "logged with actor_rollout_ref.actor.use_kl_loss=True",
        "mismatch/k3": "logged with actor_rollout_ref.rollout.calculate_log_probs=True",
        "responses": "dumped with trainer.rollout_data_dir=FOLDER",
    },
    derive=_derive,
)


def read(path: Path) -> Logged | None:
    """Return what verl's logger and dumps wrote at a path, and the configuration there; None if there is nothing."""
    files = (
        [path] if path.is_file() else sorted(f for depth in ("*", "*/*", "*/*/*") for f in path.glob(f"{depth}.jsonl"))
    )
    kinds = {file: kind for file in files if (kind := _kind(file)) is not None}
    if not kinds:
        return None
    logged = Logged()
    logs, written = {f: [f] for f, kind in kinds.items() if kind == "metrics"}, 0.0
    if logs:
        log = logged.newest(logs)
        logged.files, written = [str(log)], log.stat().st_mtime
        for line, row in logged.objects(log):
            if isinstance(row.get("data"), Mapping):
                logged.add_row(log, line, row.get("step"), row["data"])
    dumps = sorted((f for f, kind in kinds.items() if kind == "dump"), key=lambda f: (str(f.parent), int(f.stem)))
    for file in logged.chosen({f: int(f.stem) for f in dumps}, "dumps of responses", written):
        logged.files.append(str(file))
        logged.responses += [
            _response(file, line, row) for line, row in logged.objects(file) if row.keys() >= DUMP_KEYS
        ]
    for name in HYDRA:
        if (path / name).is_file():
            logged.settings |= settings_of_file(path / name, logged)
    return logged


def _kind(file: Path) -> str | None:
    """Return "metrics" for a file of the logger, and "dump" for one of responses, which has a step as its name."""
    if file.suffix != ".jsonl":
        return None
    if isinstance((first_row(file, "data", "step") or {}).get("data"), Mapping):
        return "metrics"
    return "dump" if file.stem.isdecimal() and first_row(file, *DUMP_KEYS) is not None else None


def _response(file: Path, line: int, row: Mapping[str, Any]) -> LoggedResponse:
    score = row["score"]
    return LoggedResponse(
        str(file),
        line,
        int(file.stem),
        str(row["input"]),
        str(row["output"]),
        _number(score),
        {k: v for k, own in row.items() if k not in IN_DUMP and (v := _number(own)) is not None},
        is_held_out=HELD_OUT_FOLDER.search(file.parent.name) is not None,
    )


def _number(value: Any) -> float | None:
    """Return a finite number, also of True and False; None for anything else."""
    return numbers({"": value + 0}).get("") if isinstance(value, int | float) else None
