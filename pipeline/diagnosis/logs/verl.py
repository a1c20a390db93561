"""verl: the JSONL of its file logger, its console lines, rollout and validation dumps, and Hydra's configuration.

Source: verl at 1dda039b9c, verl/utils/tracking.py (`FileLogger`), verl/utils/logger/aggregate_logger.py
(`LocalLogger`), verl/trainer/ppo/ray_trainer.py (`_write_generations`), metric_utils.py and rollout_corr_helper.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.diagnosis.logs.logged import (
    MAX_NUMBER_BYTES,
    Logged,
    LoggedResponse,
    LoggedRow,
    chosen_files,
    first_row,
    flat,
    name_file,
    numbers,
)
from verizero.pipeline.diagnosis.logs.tool import Option, Tool
from verizero.pipeline.files import numbered_jsonl

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
        "actor_rollout_ref.actor.optim.lr": Option("rl.optimizer.learning_rate"),
        "actor_rollout_ref.actor.optim.lr_warmup_steps": Option("rl.optimizer.warmup_steps"),
        "actor_rollout_ref.actor.grad_clip": Option("rl.optimizer.max_grad_norm"),
        "actor_rollout_ref.actor.kl_loss_coef": Option("rl.algorithm.kl_coef"),
        "actor_rollout_ref.actor.clip_ratio_low": Option("rl.algorithm.clip_low"),
        "actor_rollout_ref.actor.clip_ratio_high": Option("rl.algorithm.clip_high"),
        "actor_rollout_ref.actor.ppo_epochs": Option("rl.algorithm.num_epochs"),
        "actor_rollout_ref.actor.entropy_coeff": Option("rl.algorithm.entropy_coef"),
        "actor_rollout_ref.rollout.temperature": Option("rollout.temperature"),
        "actor_rollout_ref.rollout.top_p": Option("rollout.top_p"),
        "actor_rollout_ref.rollout.n": Option("rl.group_size"),
        "data.max_response_length": Option("rollout.max_response_tokens"),
    },
    where="the command's overrides",
    remedies={
        "advantages_vanish": "set actor_rollout_ref.rollout.temperature=1.0 and actor_rollout_ref.rollout.n=8 or more",
        "constant_reward": "call compute_score of custom_reward_function.path with a right and a wrong solution_str",
        "end_token_missing": "set the tokenizer's eos_token to the end of a turn of its chat template, and read "
        "outputs in trainer.rollout_data_dir",
        "engine_mismatch": "set algorithm.rollout_correction.rollout_is=token with rollout_is_threshold=2.0, and give "
        "actor_rollout_ref.rollout.dtype and the actor one number type",
        "evaluation_leak": "take the rows of data.val_files out of data.train_files",
        "length_cap": "double data.max_response_length",
        "learning_rate_high": "divide actor_rollout_ref.actor.optim.lr by ten",
        "learning_rate_low": "raise actor_rollout_ref.actor.optim.lr by a factor of ten (1e-6 is usual)",
        "kl_too_strong": "lower actor_rollout_ref.actor.kl_loss_coef (0.001 is usual)",
        "other_template": "compare data.apply_chat_template_kwargs and the model's chat template with its training",
        "sampling_differs": "set actor_rollout_ref.rollout.top_p=1.0 and top_k=-1, and one temperature for both",
        "stale_engine_weights": "look at how the engine of actor_rollout_ref.rollout.name gets its weights",
        "too_easy": "set algorithm.filter_groups.enable=True, and filter data.train_files by pass rate",
        "too_hard": "filter data.train_files by pass rate, train by SFT first, or raise actor_rollout_ref.rollout.n",
        "wrong_references": "check reward_model.ground_truth of some rows of data.train_files by hand",
        "false_negatives": "compare refused outputs in trainer.rollout_data_dir with gts, and correct compute_score",
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


def is_here(path: Path) -> bool:
    """True if the path is a file that verl's file logger or dump wrote, or a folder with one."""
    return any(_kind(file) is not None for file in _files(path))


def read(path: Path) -> Logged:
    """Return the metrics, dumps and configuration at the path."""
    logged = Logged()
    dumps: list[Path] = []
    for file in _files(path):
        if (kind := _kind(file)) == "metrics":
            name_file(file, logged)
            for line, row in numbered_jsonl(file, MAX_NUMBER_BYTES):
                if isinstance(row.get("data"), Mapping) and isinstance(row.get("step"), int):
                    logged.rows.append(LoggedRow(str(file), line, row["step"], numbers(row["data"])))
        elif kind == "dump":
            dumps.append(file)
    chosen, left_out = chosen_files(sorted(dumps, key=lambda f: (str(f.parent), int(f.stem))))
    if left_out:
        logged.skipped.append(f"{left_out} of {len(dumps)} dumps of responses, which are many bytes")
    for file in chosen:
        logged.files.append(str(file))
        logged.responses += [
            _response(file, line, row) for line, row in numbered_jsonl(file) if row.keys() >= DUMP_KEYS
        ]
    for name in HYDRA:
        if path.is_dir() and (path / name).is_file():
            logged.settings |= settings_of(path / name)
    return logged


def settings_of(path: Path) -> dict[str, Any]:
    """Return the options of a Hydra configuration, or of its list of overrides; empty if the file is neither."""
    import yaml

    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    if isinstance(tree, list):
        return overrides([str(item) for item in tree])
    return {k: v for k, v in flat(tree).items() if not str(v).startswith("${")} if isinstance(tree, dict) else {}


def overrides(words: list[str]) -> dict[str, Any]:
    """Return the options among words of a command line: a.b=value, also with + before them."""
    options: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.lstrip("+").partition("=")
        if sign and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            options[name] = value_of(value)
    return options


def value_of(text: str) -> Any:
    """Return the value of a text in YAML; a number without a point, as 1e-6, is one too."""
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _files(path: Path) -> list[Path]:
    return (
        [path]
        if path.is_file()
        else sorted([*path.glob("*.jsonl"), *path.glob("*/*.jsonl"), *path.glob("*/*/*.jsonl")])
    )


def _kind(file: Path) -> str | None:
    row = first_row(file) if file.suffix == ".jsonl" else None
    if row is None:
        return None
    if isinstance(row.get("data"), Mapping) and "step" in row:
        return "metrics"
    return "dump" if row.keys() >= DUMP_KEYS and file.stem.isdecimal() else None


def _response(file: Path, line: int, row: Mapping[str, Any]) -> LoggedResponse:
    score = row["score"]
    reference = row.get("gts")
    return LoggedResponse(
        str(file),
        line,
        int(row.get("step", file.stem)),
        str(row["input"]),
        str(row["output"]),
        float(score) if isinstance(score, int | float) else None,
        {k: float(v) for k, v in row.items() if k not in IN_DUMP and isinstance(v, int | float)},
        None if reference is None else str(reference),
        is_held_out=HELD_OUT_FOLDER.search(file.parent.name) is not None,
    )
