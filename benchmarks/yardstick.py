"""One GRPO step of ours against one of TRL's GRPOTrainer, on equal work, turn by turn in one process.

Work: 32 prompts of 6 tokens, 8 answers each of at most 64 tokens, a Qwen2 of 0.8M parameters in float32, no KL term,
one AdamW update on the whole batch. "full": the end token is never drawn, every answer has 64 tokens. "natural": the
model was first taught to end with a chance of 1/16 at each token, so answers have the lengths that they have.
TRL's own settings are chosen for speed here: no gradient checkpointing, fused AdamW, transformers' generate. In
bfloat16 each side has float32 masters: TRL by autocast, ours by its optimiser.
"""

import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts.machine import CHARACTERS

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
LEARNING_RATE = 1e-6
"""So small that responses of both sides keep their lengths: else a side that learns to write more has more work."""
FAST: dict[str, Any] = {
    "learning_rate": LEARNING_RATE,
    "lr_scheduler_type": "constant",
    "use_cpu": True,
    "bf16": False,
    "fp16": False,
    "gradient_checkpointing": False,
    "optim": "adamw_torch_fused",
    "save_strategy": "no",
    "report_to": "none",
    "logging_steps": 10_000,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}
"""Settings of TRL's trainers that are fastest here, and leave the update what ours is."""


@dataclass(frozen=True)
class Work:
    """The work of both sides."""

    lengths: str
    """full: all responses have `new_tokens`; natural: they end where the model ends them."""
    steps: int
    """Steps that are timed, after one that is not."""
    prompts: int = 32
    group: int = 8
    new_tokens: int = 64
    micro_rows: int = 32
    our_tokens: int = 128 * (8 + 64)
    """Each side has the micro-batch that is fastest for it, or as fast as any: the update is the same."""
    device: str = "cpu"
    dtype: str = "float32"


def now(work: Work) -> float:
    """Return the time, once the device has done all that was asked of it."""
    if work.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


Side = tuple[dict[str, float], float]
"""Median seconds by phase, and the mean length of responses."""


def both_sides(folder: str, work: Work, turn: int) -> tuple[dict[str, float], dict[str, float], list[float]]:
    """Return the median seconds of a step by phase of ours and of TRL's, and both mean lengths of responses."""
    ours, our_length = our_steps(folder, work, turn)
    theirs, their_length = trl_steps(folder, work, turn)
    return ours, theirs, [our_length, their_length]


def compare(lengths: str, steps: int, rounds: int) -> None:
    """Print, for each side, the median seconds of a step, and the ratio theirs / ours of each round."""
    from verizero.pipeline.data.tokenizer import character_tokenizer
    from verizero.pipeline.models.load import create_model, quiet, save_folder

    quiet()
    tokenizer = character_tokenizer(CHARACTERS)
    model = create_model("qwen2", SIZES, tokenizer, 0)
    if lengths == "natural":
        teach_to_end(model, tokenizer.eos_token_id)
    with tempfile.TemporaryDirectory() as folder:
        save_folder(model, tokenizer, Path(folder))
        ratios = []
        for turn in range(rounds):
            ours, theirs, mean_lengths = both_sides(folder, Work(lengths, steps), turn)
            ratios.append(theirs["total"] / ours["total"])
            print(json.dumps({"turn": turn, "ours": ours, "trl": theirs, "mean_length": mean_lengths}))
    print(
        json.dumps(
            {
                "lengths": lengths,
                "trl_over_ours": [round(r, 2) for r in ratios],
                "median": round(statistics.median(ratios), 2),
                "threads": torch.get_num_threads(),
            }
        )
    )


def questions(work: Work, turn: int, step: int) -> list[str]:
    """Two-digit sums."""
    rng = random.Random(turn * 1000 + step)
    return [f"{rng.randint(10, 99)}+{rng.randint(10, 99)}=" for _ in range(work.prompts)]


def reward(text: str) -> float:
    """Something that differs within a group: the share of digits."""
    return sum(c.isdigit() for c in text) / max(1, len(text))


def teach_to_end(model: Any, eos: int) -> None:
    """Fit the model to random text whose lines end with a chance of 1/16 at each token."""
    noise = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        rows = torch.randint(2, len(CHARACTERS) + 2, (32, 48), generator=noise)
        ends = torch.rand(32, 48, generator=noise) < 1 / 16
        rows[ends] = eos
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def our_steps(folder: str, work: Work, turn: int) -> Side:
    """Median seconds of our step by phase, the first one left out, and the mean answer length."""
    from verizero.pipeline.algorithms.base import load_algorithm
    from verizero.pipeline.config.sections import OptimizerConfig
    from verizero.pipeline.models.load import load_model, load_tokenizer
    from verizero.pipeline.rollout.engine import Request, Sampling
    from verizero.pipeline.rollout.torch_engine import TorchEngine
    from verizero.pipeline.train.backend import Backend
    from verizero.pipeline.train.step import Settings, update
    from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

    tokenizer, model = load_tokenizer(folder), load_model(folder, work.dtype, work.device)
    _, parts = load_algorithm("grpo", {"kl_coef": 0.0})
    backend = Backend(model)
    backend.start(OptimizerConfig(learning_rate=LEARNING_RATE), work.steps + 1)
    ends = [tokenizer.eos_token_id] if work.lengths == "natural" else [-1]
    engine = TorchEngine(model, ends, tokenizer.pad_token_id)
    seconds: list[dict[str, float]] = []
    num_tokens = []
    for step in range(work.steps + 1):
        begin = now(work)
        engine.publish(step)
        prompts = [Prompt(str(i), q, "math", "") for i, q in enumerate(questions(work, turn, step))]
        requests = [
            Request(
                tuple(tokenizer(p.question)["input_ids"]),
                tuple(step * 9999 + i * work.group + k for k in range(work.group)),
            )
            for i, p in enumerate(prompts)
        ]
        answers = engine.generate(requests, Sampling(work.new_tokens))
        generated = now(work)
        groups = []
        for prompt, request, some in zip(prompts, requests, answers, strict=True):
            members = []
            for k, a in enumerate(some):
                text = tokenizer.decode(list(a.token_ids), skip_special_tokens=True)
                rollout = Rollout(
                    prompt.id, k, request.prompt_ids, a.token_ids, a.logprobs, text, a.finish_reason, step
                )
                members.append(ScoredRollout(rollout, Verdict("graded", reward(text)), reward(text)))
                num_tokens.append(len(a.token_ids))
            groups.append(Group(prompt, tuple(members)))
        settings = Settings(tokenizer.pad_token_id, 1.0, work.our_tokens, step, work.new_tokens)
        update(backend, parts, groups, settings)
        end = now(work)
        seconds.append({"generate": generated - begin, "rest": end - generated, "total": end - begin})
    return medians(seconds[1:]), statistics.mean(num_tokens)


def trl_config(folder: str, work: Work, tokenizer: Any) -> Any:
    """TRL's settings for the work above, the fast ones where it has a choice."""
    from trl import GRPOConfig

    ends = [tokenizer.pad_token_id, tokenizer.eos_token_id]
    return GRPOConfig(
        output_dir=str(Path(folder) / "out"),
        max_steps=work.steps + 1,
        beta=0.0,
        per_device_train_batch_size=work.micro_rows,
        gradient_accumulation_steps=work.prompts * work.group // work.micro_rows,
        num_generations=work.group,
        max_completion_length=work.new_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        generation_kwargs={} if work.lengths == "natural" else {"suppress_tokens": ends},
        **{**FAST, "use_cpu": work.device == "cpu", "bf16": work.dtype == "bfloat16"},
    )


def trl_steps(folder: str, work: Work, turn: int) -> Side:
    """The same of TRL's trainer; generation is timed around its own generate call."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = [{"prompt": q} for step in range(work.steps + 1) for q in questions(work, turn, step)]
    config = trl_config(folder, work, tokenizer)
    seconds: list[dict[str, float]] = []
    generated: list[float] = []
    num_tokens: list[int] = []

    class Clock(TrainerCallback):
        begin = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            Clock.begin = now(work)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            total = now(work) - Clock.begin
            seconds.append({"generate": generated[-1], "rest": total - generated[-1], "total": total})

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [reward(c) for c in completions],
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    plain = trainer._generate_single_turn

    def timed(*arguments: Any, **named: Any) -> Any:
        begin = now(work)
        out = plain(*arguments, **named)
        generated.append(now(work) - begin)
        num_tokens.extend(len(ids) for ids in out[0])
        return out

    trainer._generate_single_turn = timed
    trainer.train()
    return medians(seconds[1:]), statistics.mean(num_tokens)


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """The median of each column."""
    return {name: round(statistics.median(r[name] for r in rows), 3) for name in rows[0]}
