"""TRL's GRPO: `trainer_state.json`, the completions tables, and what lies next to a checkpoint.

Source: TRL 1.16, trl/trainer/grpo_trainer.py (`log`), and transformers 5.19, trainer_callback.py (`TrainerState`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.checks.logs.facts import is_form, is_share
from verizero.pipeline.checks.logs.logged import Logged, LoggedResponse, Tool, numbers, weights_of, whole_reward
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import parse_json

STATE, COMPLETIONS = "trainer_state.json", "completions"
CHECKPOINT = re.compile(r"checkpoint-\d+$")
FIXED_COLUMNS = frozenset({"step", "prompt", "completion", "advantage"})
MARK = re.compile(r"<\|[a-z_]+\|>|<(?:start|end)_of_turn>|\[/?INST\]")
REWARD_PART = re.compile(r"rewards/(.+)/(mean|std)$")
"""Older versions wrote the mean alone, as rewards/NAME."""


def _derive(values: dict[str, float], logged: Logged) -> None:
    """Add whether rewards are shares of right completions, the components, and the held-out reward."""
    for name in [n for n in values if n.startswith("?eval/")]:  # as transformers names them for a tracker
        values.setdefault(name.replace("/", "_", 1), values.pop(name))
    if (deviation := values.get("reward/std")) is not None:  # older versions write no share of groups
        values.setdefault("groups/without_signal", float(deviation == 0))
    settings = numbers(logged.settings)
    size = settings.get("generation_batch_size", UNKNOWN_BATCH)
    parts = {m[1]: v for k, v in values.items() if (m := REWARD_PART.match(k.removeprefix("?"))) and m[2] == "mean"}
    reward = values.get("reward/sampled")
    if len(parts) > 1 and reward is not None:
        _add_parts(values, parts, logged.settings.get("reward_weights"), size)
    elif reward is not None and is_share(reward, values.get("reward/std"), size):
        values["correct/sampled"] = reward
    held_out = values.pop("?eval_reward", None)
    if held_out is not None:
        per_second, seconds = values.get("?eval_samples_per_second", 0.0), values.get("?eval_runtime", 0.0)
        prompts = round(per_second * seconds)
        count = prompts * settings.get("num_generations_eval", settings.get("num_generations", 1.0))
        share = is_share(held_out, values.get("?eval_reward_std"), size) or _is_of_two(
            held_out, values.get("?eval_reward_std")
        )
        values[f"evaluation/all/{'pass@1' if share else 'reward'}"] = held_out
        if count:
            values |= {"evaluation/all/size": count, "evaluation/all/num_prompts": float(prompts)}
    for name in [n for n in values if n.startswith("?eval_")]:
        del values[name]


def _is_of_two(mean: float, deviation: float | None) -> bool:
    """Return True if rewards between 0 and 1 are all one of the two, by the deviation of a batch of unknown size.

    Rewards between 0 and 1 vary by `mean` (1 - `mean`) at most, and by as much if they are 0 and 1 alone.
    """
    largest = mean * (1 - mean)
    return deviation is not None and largest > 0 and 0.98 <= deviation**2 / largest <= MOST_OF_SMALL_BATCH


def _add_parts(values: dict[str, float], parts: dict[str, float], weights: Any, size: float) -> None:
    """Add how much the reward that says what is right varies, and how much the largest of the others does."""
    own = weights_of(weights, len(parts))
    spread = {n: w * values.get(f"?rewards/{n}/std", 0.0) for (n, w) in zip(parts, own, strict=True)}
    shares = [n for n, mean in parts.items() if is_share(mean, values.get(f"?rewards/{n}/std"), size)]
    verdicts = [n for n in shares if not is_form(n)]
    values["reward/others_std"] = max(spread.values())
    if len(verdicts) == 1:
        values["reward/verdict_std"] = spread[verdicts[0]]
        values["reward/others_std"] = max(s for n, s in spread.items() if n != verdicts[0])
        values["correct/sampled"] = parts[verdicts[0]]


UNKNOWN_BATCH, MOST_OF_SMALL_BATCH = 64.0, 1.2
"""Responses of a batch of unknown size; n / (n - 1) of the smallest one, by which its variance is larger."""
TOOL = Tool(
    name="trl",
    title="TRL",
    prefixes=("train/", "train_"),
    signs=(
        "frac_reward_zero_std",
        "completions/clipped_ratio",
        "completions/mean_length",
        "clip_ratio/region_mean",
        "reward_std",
    ),
    metrics={
        "reward": "reward/sampled",
        "reward_std": "reward/std",
        "frac_reward_zero_std": "groups/without_signal",
        "completions/mean_length": "length/mean",
        "completions/clipped_ratio": "truncated",
        "completions/mean_terminated_length": "length/mean_ended",
        "completion_length": "length/mean",
        "kl": "kl/k1",
        "entropy": "entropy",
        "grad_norm": "grad_norm",
        "learning_rate": "learning_rate",
        "loss": "loss",
        "clip_ratio/low_mean": "clip_fraction/low",
        "clip_ratio/high_mean": "clip_fraction/high",
        "sampling/sampling_logp_difference/mean": "mismatch/abs",
        "sampling/sampling_logp_difference/max": "mismatch/abs_max",
        "sampling/importance_sampling_ratio/mean": "mismatch/ratio_mean",
        "sampling/importance_sampling_ratio/max": "mismatch/ratio_max",
    },
    options={
        "learning_rate": "rl.optimizer.learning_rate",
        "warmup_steps": "rl.optimizer.warmup_steps",
        "beta": "rl.algorithm.kl_coef",
        "epsilon": "rl.algorithm.clip_low",
        "epsilon_high": "rl.algorithm.clip_high",
        "num_iterations": "rl.algorithm.num_epochs",
        "entropy_coef": "rl.algorithm.entropy_coef",
        "temperature": "rollout.temperature",
        "top_p": "rollout.top_p",
        "top_k": "rollout.top_k",
        "min_p": "rollout.min_p",
        "repetition_penalty": "rollout.repetition_penalty",
        "max_grad_norm": "rl.optimizer.max_grad_norm",
        "max_completion_length": "rollout.max_response_tokens",
        "num_generations": "rl.group_size",
    },
    ratio_level="importance_sampling_level",
    where="GRPOConfig",
    remedies={
        "advantages_vanish": "set temperature=1.0 and num_generations=8 or more in GRPOConfig",
        "end_token_missing": "set eos_token in GRPOConfig, or tokenizer.eos_token, to the end of a turn in the chat "
        "template",
        "engine_mismatch": "leave vllm_importance_sampling_correction=True in GRPOConfig, and give vLLM the number "
        "type of the trainer",
        "kl_too_strong": "set beta=0.0 in GRPOConfig, or beta=0.04",
        "length_cap": "double max_completion_length in GRPOConfig",
        "other_template": "give processing_class the tokenizer with the model's own chat_template",
        "reward_scales": "set reward_weights in GRPOConfig, or bring all reward_funcs to one scale",
        "sampling_differs": "set temperature and top_p in GRPOConfig alone, with top_p=1.0 and no top_k, and take them "
        "out of generation_kwargs and of the vLLM server",
        "stale_engine_weights": "look for errors of the weight update in the log of `trl vllm-serve`, whose version "
        "has to be the trainer's; let rollout_func sample from the trainer's model",
        "too_hard": "use easier rows in train_dataset, train by SFTTrainer first, or raise num_generations",
        "infrastructure_zeros": "return None from the function in reward_funcs where its service fails, not 0.0",
    },
    derive=_derive,
    logs_if={
        "kl/k1": "logged with beta above 0",
        "mismatch/k3": "logged with use_vllm=True",
        "responses": "written with log_completions=True",
    },
)


def read(path: Path) -> Logged | None:
    """Return what a trainer's output folder, or its trainer_state.json, holds; None if it is neither."""
    logged, tables = Logged(), path / COMPLETIONS
    state = _state(path, logged)
    if state is not None and path not in (state, state.parent):  # of a checkpoint that is named, others may be there
        tables = (state.parent.parent if CHECKPOINT.match(state.parent.name) else state.parent) / COMPLETIONS
    if state is None and not tables.is_dir():
        return None
    if state is not None:
        _read_state(state, logged)
        logged.model = _marks(state.parent) | _size(state.parent)
    if tables.is_dir():
        _read_completions(tables, logged, 0.0 if state is None else state.stat().st_mtime)
    return logged


def _state(path: Path, logged: Logged) -> Path | None:
    """Return the state of the run that was written last, of those in the folder and in the folders in it.

    The path may be the file itself, a checkpoint, a run, or a folder of runs.
    """
    if path.is_file():
        return path if path.name == STATE else None
    runs: dict[Path, list[Path]] = {}
    for form in (f"checkpoint-*/{STATE}", STATE, f"*/checkpoint-*/{STATE}", f"*/{STATE}"):
        for file in sorted(path.glob(form)) if path not in runs or "*/" not in form else ():
            is_part = CHECKPOINT.match(file.parent.name) and file.parent != path
            runs.setdefault(file.parent.parent if is_part else file.parent, []).append(file)
    if not runs:
        return None
    run = logged.newest(runs)
    states = sorted(runs[run], key=lambda p: (p.parent == run, _number(p.parent.name)))
    last = max(reversed(states), key=lambda p: p.stat().st_mtime)
    # Of one run, the state with the most steps: if it was resumed, the folder's may be from before. Where an earlier
    # run has left checkpoints, those are not its own. As texts, one NaN equals another.
    histories = {
        p: [str(entry) for entry in _text_and_history(p)[1] if "train_runtime" not in entry]
        for p in {last, *states[-2:]}
    }
    longest = max(states[-2:], key=lambda p: len(histories[p]))
    if histories[longest][: len(histories[last])] == histories[last]:
        last = longest
    logged.skip_runs([p for p, h in histories.items() if histories[last][: len(h)] != h])
    return last


def _number(name: str) -> int:
    digits = re.findall(r"\d+", name)
    return int(digits[-1]) if digits else -1


def _text_and_history(path: Path) -> tuple[str, list[dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, [dict(entry) for entry in parse_json(text)["log_history"]]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise RunError(f"{path} is no state of a trainer ({exc}); copy it again, or name another checkpoint") from exc


def _read_state(path: Path, logged: Logged) -> None:
    text, history = _text_and_history(path)
    # The file is written with two spaces of indentation, so that each entry begins with a line of its own.
    begins = [n for n, line in enumerate(text.splitlines(), 1) if line == "    {"]
    lines = begins if len(begins) == len(history) else [1] * len(history)
    logged.files.append(str(path))
    for line, entry in zip(lines, history, strict=True):
        if "train_runtime" not in entry:
            own = {k: v for k, v in entry.items() if k not in ("step", "epoch")}
            logged.add_row(path, line, entry.get("step", 0), own)


def _read_completions(folder: Path, logged: Logged, written: float) -> None:
    """Read the completions tables. A table of a step with an evaluation holds held-out prompts too, not told apart."""
    evaluated = {row.step for row in logged.rows if any(name.startswith("eval_") for name in row.values)}
    files = sorted(folder.glob("*.parquet"), key=lambda p: _number(p.stem))
    for path in logged.chosen({f: _number(f.stem) for f in files}, "completions tables", written):
        logged.files.append(str(path))
        for row, values in _table(path):
            step = _number(path.stem)  # the number in a table may be missing
            parts = {k: v for k, v in values.items() if k not in FIXED_COLUMNS and (v is None or _is_number(v))}
            texts = shown(values.get("prompt")), shown(values.get("completion"))
            reward = whole_reward(parts, None)  # `reading_of` knows the weights, which are in another file
            logged.responses.append(LoggedResponse(str(path), row, step, *texts, reward, parts, step in evaluated))


def _table(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        yield from enumerate(pyarrow.parquet.read_table(path).to_pylist(), 1)
    except (OSError, pyarrow.lib.ArrowException):
        return  # a table that is being written


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isinf(value)


def shown(messages: Any) -> str:
    """Return a prompt or completion as text: of a conversation its messages, without their roles if there is one."""
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, list):
        return "" if messages is None else str(messages)
    texts = [str(m.get("content") or "") if isinstance(m, Mapping) else str(m) for m in messages]
    return texts[0] if len(texts) == 1 else "\n".join(texts)


def _size(folder: Path) -> dict[str, int]:
    """Return about how many parameters the model has whose configuration is there; a folder of adapters has none."""
    try:
        own = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        text = own.get("text_config") or own  # of a model that sees
        width, layers, words = (int(text[n]) for n in ("hidden_size", "num_hidden_layers", "vocab_size"))
        inner = int(text.get("intermediate_size") or 4 * width)
        experts = int(text.get("num_local_experts") or text.get("num_experts") or 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {"parameters": layers * (4 * width * width + 3 * width * inner * experts) + words * width}


def _marks(folder: Path) -> dict[str, list[str]]:
    """Return the marks of the chat template, and those of them that the tokenizer's files have no tokens for."""
    template = folder / "chat_template.jinja"
    try:
        tokenizer = parse_json((folder / "tokenizer.json").read_text(encoding="utf-8"))
        own = parse_json((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        text = template.read_text(encoding="utf-8") if template.is_file() else own.get("chat_template")
    except (OSError, ValueError):
        return {}
    if not isinstance(text, str):
        return {}
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    names = {t["content"] for t in tokenizer.get("added_tokens", [])}
    names |= set(vocabulary if isinstance(vocabulary, dict) else [piece[0] for piece in vocabulary])
    marks = sorted(set(MARK.findall(text)))
    return {"marks": marks, "marks_missing": [m for m in marks if m not in names]}
