"""Write a new verifier that works: its file, its tests, rows to check it on, data, and a recipe that trains on it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.scaffold import Rows, write_part
from verizero.pipeline.seeds import stream

EXAMPLE = Path(__file__).parent / "example.py"
LETTERS, LENGTH, EVALUATION, SLIPS = "abcdef", 4, 60, 0.3
"""Words of 4 of 6 letters: 360 tasks, of which 60 are held out; 30% of demonstrations have two letters swapped."""

TESTS = '''"""Answers that {name} must accept, and answers that it must refuse."""

from pathlib import Path

import pytest

from verizero.pipeline.commands.verifiers.check import check
from verizero.verifiers.base import Attempt, load

HERE = Path(__file__).parent
ACCEPTED = [(r"\\boxed{{abcd}}", "dcba"), ("<think>b?</think>Answer: abc", "cab"), ("ABC", "bca")]
REFUSED = [
    (r"\\boxed{{abdc}}", "dcba"),
    (r"\\boxed{{abc}}", "dcba"),
    (r"\\boxed{{abc}} or \\boxed{{acb}}", "abc"),
    ("", "ab"),
]


def verdict(response: str, reference: str, **params: object):
    bound = load(path="{name}.py:{name}", base=HERE).bind(params)
    return bound.score([Attempt(response, reference)])[0]


@pytest.mark.parametrize(("response", "reference"), ACCEPTED)
def test_right_answers_are_accepted(response: str, reference: str) -> None:
    assert verdict(response, reference).score == 1.0


@pytest.mark.parametrize(("response", "reference"), REFUSED)
def test_wrong_answers_are_refused(response: str, reference: str) -> None:
    assert verdict(response, reference).score == 0.0


def test_parameters_change_the_verdict() -> None:
    assert verdict("ABC", "bca", ignore_case=False).score == 0.0


def test_it_is_fit_to_be_a_reward() -> None:
    report = check("{name}.py:{name}", HERE / "{name}_rows.jsonl", base=HERE)
    assert report.passed, str(report)
'''

RECIPE = """# {name}: a new domain from nothing to a trained model.
# Shows:    a verifier of your own (verifier.path) in SFT and RL.
# Hardware: two CPU cores, 1 GB of memory.
name: {name}
seed: 0
stages: [sft, rl]

model:
  create:
    model_type: qwen2
    config:
      hidden_size: 64
      intermediate_size: 192
      num_hidden_layers: 2
      num_attention_heads: 4
      num_key_value_heads: 4
      max_position_embeddings: 32
      tie_word_embeddings: true
    characters: "abcdef\\\\oxe{{}}d="

data:
  train:
    - file: {name}_train.jsonl
      domain: {name}
      verifier: {{path: "{name}.py:{name}", params: {{ignore_case: true}}}}
  evaluation:
    - file: {name}_evaluation.jsonl
      domain: {name}
      verifier: {{path: "{name}.py:{name}", params: {{ignore_case: true}}}}

sft:
  steps: 150
  batch_size: 64
  optimizer: {{learning_rate: 3e-3, schedule: cosine, warmup_steps: 20}}

rl:
  algorithm: {{name: grpo}}
  rounds: 2
  steps_per_round: 15
  prompts_per_step: 16
  group_size: 8
  optimizer: {{learning_rate: 1e-3}}

rollout:
  max_response_tokens: 16

evaluation:
  k: 4
"""

PRETRAINED = """# {name}: a new domain, learned by a pretrained model.
# Shows:    a verifier of your own (verifier.path) in SFT and RL of a model that exists.
# Hardware: for 135M parameters two CPU cores and 7 GB of memory.
name: {name}
seed: 0
stages: [sft, rl]

# A Hugging Face folder with a chat template, a GGUF file (also package:NAME/x.gguf), or online a name on the hub.
model: {{path: {model}}}

data:
  template: {{name: chat, system: "Answer with the letters in order, in a box."}}
  train:
    - file: {name}_train.jsonl
      domain: {name}
      verifier: {{path: "{name}.py:{name}", params: {{ignore_case: true}}}}
  evaluation:
    - file: {name}_evaluation.jsonl
      domain: {name}
      verifier: {{path: "{name}.py:{name}", params: {{ignore_case: true}}}}

sft:
  steps: 20
  batch_size: 8
  optimizer: {{learning_rate: 5e-5, schedule: cosine, warmup_steps: 3}}

rl:
  algorithm: {{name: grpo, kl_coef: 0}}
  reference: {{schedule: none}}
  rounds: 1
  steps_per_round: 12
  prompts_per_step: 4
  group_size: 8
  optimizer: {{learning_rate: 3e-5, warmup_steps: 2}}

rollout: {{max_response_tokens: 16, max_rows: 64}}
train: {{micro_batch_tokens: 1024}}   # bounds the memory of activations
evaluation: {{k: 4}}
checkpoint: {{every_steps: 12, keep: 1}}
"""
"""The recipe with --model; the other one makes a model of 64 hidden units, whose task is its whole world."""


def new_verifier(name: str, folder: Path, model: str | None = None) -> list[Path]:
    """Write a new verifier `name`: its code, tests, rows for `check`, data and a recipe; return the files' paths.

    The example sorts letters. It works, and is meant to be replaced. The recipe trains `model`, a pretrained one, or
    without it a very small new one.
    Raises: ConfigError if the name is not an identifier, is taken, or a file exists already.
    """
    train, evaluation = _data("{}=" if model is None else "Sort the letters of {}.")
    recipe = RECIPE.format(name=name) if model is None else PRETRAINED.format(name=name, model=json.dumps(model))
    files: dict[str, str | Rows] = {
        f"{name}.py": EXAMPLE.read_text(encoding="utf-8").replace("sorted_letters", name),
        f"test_{name}.py": TESTS.format(name=name),
        f"{name}_rows.jsonl": _rows(name),
        f"{name}_train.jsonl": train,
        f"{name}_evaluation.jsonl": evaluation,
        f"{name}.yaml": recipe,
    }
    return write_part("verifier", name, folder, files)


def _rows(name: str) -> list[dict[str, Any]]:
    """Return rows for `verizero verify --check` and `verizero audit`: right answers and near misses."""
    rows = []
    for i, word in enumerate(["dcba", "badc", "fed", "face", "cab"]):
        right = "".join(sorted(word))
        rows.append(
            {
                "id": i,
                "verifier": name,
                "prompt": f"{word}=",
                "reference": word,
                "accept": [rf"\boxed{{{right}}}", f"<think>{word}</think>Answer: {right}"],
                "refuse": [
                    rf"\boxed{{{right[:-1]}}}",
                    rf"\boxed{{{right}{right[-1]}}}",
                    rf"\boxed{{{right[::-1]}}}",
                    rf"\boxed{{{right}}} or \boxed{{{right[::-1]}}}",
                    f"<think>{right}</think>",
                ],
            }
        )
    return rows


def _data(question: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rng = stream(0, "scaffold")
    words = ["".join(p) for p in itertools.permutations(LETTERS, LENGTH)]
    rng.shuffle(words)
    rows = []
    for word in words:
        shown = sorted(word)
        if rng.random() < SLIPS:
            i = rng.randrange(LENGTH - 1)
            shown[i], shown[i + 1] = shown[i + 1], shown[i]
        demonstration = rf"\boxed{{{''.join(shown)}}}"
        rows.append({"id": word, "question": question.format(word), "answer": word, "demonstration": demonstration})
    held_out = [{k: v for k, v in row.items() if k != "demonstration"} for row in rows[:EVALUATION]]
    return rows[EVALUATION:], held_out
