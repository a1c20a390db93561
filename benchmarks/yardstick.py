"""One GRPO step of ours against one of TRL's GRPOTrainer, on equal work, turn by turn in one process.

Work: 32 prompts of 6 tokens, 8 answers each of at most 64 tokens, a Qwen2 of 0.8M parameters in float32, no KL term,
one AdamW update on the whole batch. "full": the end token is never drawn, every answer has 64 tokens. "natural": the
model was first taught to end with a chance of 1/16 at each token, so answers have the lengths that they have.
TRL's own settings are chosen for speed here: no gradient checkpointing, no bf16, fused AdamW, transformers' generate.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

PROMPTS, GROUP, NEW_TOKENS, MICRO_ROWS = 32, 8, 64, 64
OUR_ROWS = 32
"""Each side has the micro-batch that is fastest for it, or as fast as any: the update is the same."""
CHARACTERS = "0123456789+-*/=() abcdefghijklmnopqrstuvwxyz<>?.,:\nABCDEFGHIJK"
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
FAST: dict[str, Any] = {
    "learning_rate": 1e-4,
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


def compare(lengths: str, steps: int, rounds: int) -> None:
    """Print, for each side, the median seconds of a step, and the ratio theirs / ours of each round."""
    from pipeline.data.tokenizer import character_tokenizer
    from pipeline.models.load import create_model, quiet, save_folder

    quiet()
    tokenizer = character_tokenizer(CHARACTERS)
    model = create_model("qwen2", SIZES, tokenizer, 0)
    if lengths == "natural":
        teach_to_end(model, tokenizer.eos_token_id)
    with tempfile.TemporaryDirectory() as folder:
        save_folder(model, tokenizer, Path(folder))
        ratios = []
        for turn in range(rounds):
            ours, our_length = our_steps(folder, lengths, steps, turn)
            theirs, their_length = trl_steps(folder, lengths, steps, turn)
            ratios.append(theirs["total"] / ours["total"])
            print(json.dumps({"turn": turn, "ours": ours, "trl": theirs, "mean_length": [our_length, their_length]}))
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


def questions(turn: int) -> list[str]:
    """Two-digit sums."""
    rng = random.Random(turn)
    return [f"{rng.randint(10, 99)}+{rng.randint(10, 99)}=" for _ in range(PROMPTS)]


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


def our_steps(folder: str, lengths: str, steps: int, turn: int) -> tuple[dict[str, float], float]:
    """Median seconds of our step by phase, the first one left out, and the mean answer length."""
    from pipeline.algorithms.base import load_algorithm
    from pipeline.config.sections import OptimizerConfig
    from pipeline.models.load import load_model, load_tokenizer
    from pipeline.rollout.engine import Request, Sampling
    from pipeline.rollout.torch_engine import TorchEngine
    from pipeline.train.prepare import Controllers, Settings
    from pipeline.train.step import update
    from pipeline.train.torch_backend import TorchBackend
    from pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

    tokenizer, model = load_tokenizer(folder), load_model(folder)
    _, parts = load_algorithm("grpo", {"kl_coef": 0.0})
    backend = TorchBackend(model)
    backend.start(OptimizerConfig(learning_rate=1e-4), steps + 1)
    engine = TorchEngine(model, [tokenizer.eos_token_id] if lengths == "natural" else [-1], tokenizer.pad_token_id)
    seconds: list[dict[str, float]] = []
    num_tokens = []
    for step in range(steps + 1):
        begin = time.perf_counter()
        engine.publish(step)
        prompts = [Prompt(str(i), q, "math", "") for i, q in enumerate(questions(turn * 1000 + step))]
        requests = [
            Request(tuple(tokenizer(p.question)["input_ids"]), tuple(step * 9999 + i * GROUP + k for k in range(GROUP)))
            for i, p in enumerate(prompts)
        ]
        answers = engine.generate(requests, Sampling(NEW_TOKENS))
        generated = time.perf_counter()
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
        settings = Settings(tokenizer.pad_token_id, 1.0, OUR_ROWS * 72, step, NEW_TOKENS, Controllers(parts))
        update(backend, parts, groups, settings)
        end = time.perf_counter()
        seconds.append({"generate": generated - begin, "rest": end - generated, "total": end - begin})
    return medians(seconds[1:]), statistics.mean(num_tokens)


def trl_config(folder: str, lengths: str, steps: int, tokenizer: Any) -> Any:
    """TRL's settings for the work above, the fast ones where it has a choice."""
    from trl import GRPOConfig

    suppress = {} if lengths == "natural" else {"suppress_tokens": [tokenizer.pad_token_id, tokenizer.eos_token_id]}
    return GRPOConfig(
        output_dir=str(Path(folder) / "out"),
        max_steps=steps + 1,
        beta=0.0,
        per_device_train_batch_size=MICRO_ROWS,
        gradient_accumulation_steps=PROMPTS * GROUP // MICRO_ROWS,
        num_generations=GROUP,
        max_completion_length=NEW_TOKENS,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        generation_kwargs=suppress,
        **FAST,
    )


def trl_steps(folder: str, lengths: str, steps: int, turn: int) -> tuple[dict[str, float], float]:
    """The same of TRL's trainer; generation is timed around its own generate call."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = [{"prompt": q} for step in range(steps + 1) for q in questions(turn * 1000 + step)]
    config = trl_config(folder, lengths, steps, tokenizer)
    seconds: list[dict[str, float]] = []
    generated: list[float] = []
    num_tokens: list[int] = []

    class Clock(TrainerCallback):
        begin = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            Clock.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            total = time.perf_counter() - Clock.begin
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
        begin = time.perf_counter()
        out = plain(*arguments, **named)
        generated.append(time.perf_counter() - begin)
        num_tokens.extend(len(ids) for ids in out[0])
        return out

    trainer._generate_single_turn = timed
    trainer.train()
    return medians(seconds[1:]), statistics.mean(num_tokens)


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """The median of each column."""
    return {name: round(statistics.median(r[name] for r in rows), 3) for name in rows[0]}
