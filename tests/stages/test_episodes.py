"""Whole runs of episodes: tools and a chat template, rows that the trainer scores as the engine did, equal bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.chat_templates import TEMPLATES, bare_tokenizer
from tests.stages.sessions import Heard, run_all
from tests.stages.tiny import TREE, tiny
from verizero.pipeline.models.load import create_model, save_folder
from verizero.pipeline.report.row_types import RolloutRow, StepRow
from verizero.pipeline.report.run_files import read_metrics, read_rollouts
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.saving import save_final

SIZE = {**TREE["model"]["create"]["config"], "max_position_embeddings": 640}


def chat_folder(path: Path, template: str) -> str:
    """Write a small model whose tokenizer has that chat template."""
    tokenizer = bare_tokenizer()
    tokenizer.chat_template = TEMPLATES[template]
    save_folder(create_model("qwen2", SIZE, tokenizer, 0), tokenizer, path)
    return str(path)


def changes(environment: str, **params: Any) -> dict[str, Any]:
    """Return the changes of the tiny recipe that play this environment."""
    few = {} if environment == "guess" else {"num_train": 12, "num_evaluation": 3}
    generator = {"name": environment, "params": few | {"num_demonstrations": 60} | params}
    source = {"generator": generator, "environment": {"name": environment}}
    return {
        "data": {
            "train": [source],
            "evaluation": [source | {"generator": generator | {"split": "evaluation"}}],
            "on_overlap": "report",
        },
        "sft": {"steps": 40},
        "rl": {"rounds": 1, "steps_per_round": 2, "select": {"keep": "all"}},
        "episodes": {"max_turns": 3},
    }


def whole_run(folder: Path, change: dict[str, Any]) -> Path:
    """Do a whole run of the tiny recipe with these changes; return its folder."""
    folder.mkdir(exist_ok=True)
    with open_run(tiny(change), folder, folder / "run", "auto", Heard()) as session:
        run_all(session)
        save_final(session.run, session.workers.backend)
    return folder / "run"


def rows_of(folder: Path) -> list[RolloutRow]:
    return [row for row in read_rollouts(folder) if row.messages is not None]


ADDER = """
from verizero.pipeline.environments.base import EnvironmentParams
from verizero.pipeline.environments.tool_use import ToolEpisode
from verizero.pipeline.environments.tools.base import Toolbox, tool
from verizero.pipeline.types import Verdict


class Params(EnvironmentParams):
    pass


@tool
def add(a: int, b: int) -> int:
    \"\"\"Return a + b.\"\"\"
    return a + b


def adder(params: Params, prompt, task_seed, sample_seed):
    return ToolEpisode(Toolbox([add]), lambda m: Verdict("graded", float(m.content.strip() == prompt.reference)))
"""


def adder_rows(path: Path) -> list[dict[str, Any]]:
    """Write an environment of one tool, and rows with conversations that use it; return the rows' source."""
    (path / "adder.py").write_text(ADDER)
    rows = []
    for i in range(24):
        a, b = i % 6, 3 + i // 6
        calls = [{"name": "add", "arguments": {"a": a, "b": b}}]
        shown = [{"role": "assistant", "content": "", "calls": calls}, {"role": "tool", "content": str(a + b)}]
        shown.append({"role": "assistant", "content": str(a + b)})
        rows.append({"id": str(i), "question": f"{a}+{b}", "answer": str(a + b), "demonstration": shown})
    (path / "rows.jsonl").write_text("".join(json.dumps(r | {"verifier": "environment"}) + "\n" for r in rows))
    return [{"file": "rows.jsonl", "environment": {"path": "adder.py:adder"}}]


@pytest.mark.run
def test_a_policy_calls_tools_by_a_chat_template_and_the_trainer_scores_what_the_engine_did(tmp_path: Path) -> None:
    recipe = changes("guess")
    recipe["model"] = {"create": None, "path": chat_folder(tmp_path / "model", "merges_answers")}
    recipe["data"] = {"train": adder_rows(tmp_path), "evaluation": [], "template": {"name": "chat", "calls": "hermes"}}
    recipe["sft"] = {"steps": 120, "batch_size": 4}
    recipe["train"] = {"micro_batch_tokens": 2048}  # a batch of SFT at once: its rows are long
    recipe["rollout"] = {"max_response_tokens": 70, "parity": {"action": "stop", "tolerance": 1e-5}}
    folder = whole_run(tmp_path, recipe)
    gap = json.loads((folder / "parity.json").read_text())
    assert gap["num_tokens"] > 60
    assert not gap["differs"]
    last = [r for r in rows_of(folder) if r.stage == "rl"]
    roles = {m.role for r in last for m in r.messages or ()}
    assert {"user", "assistant", "tool"} <= roles, "SFT taught the form of a call, and the tool answered"
    step = [row for row in read_metrics(folder) if isinstance(row, StepRow) and row.stage == "rl"][-1].metrics
    assert step["tools/add/calls"] > 0
    assert step["episodes/turns"] > 1
    assert step["tokens/observed"] > step["tokens/sampled"]


@pytest.mark.run
def test_equal_runs_of_episodes_end_with_equal_bytes(tmp_path: Path) -> None:
    recipe = changes("guess", high=8, tries=3)
    recipe["data"]["train"][0]["environment"]["params"] = {"high": 8, "tries": 3}
    recipe["data"]["evaluation"][0]["environment"]["params"] = {"high": 8, "tries": 3}
    recipe["rollout"] = {"max_response_tokens": 6}
    ends = []
    for name, workers in (("a", 1), ("b", 6)):
        recipe["episodes"] = {"max_turns": 3, "workers": workers}
        folder = whole_run(tmp_path / name, recipe)
        ends.append(((folder / "rollouts.jsonl").read_bytes(), (folder / "model" / "model.safetensors").read_bytes()))
    assert ends[0] == ends[1]
    assert b'"role":"assistant"' in ends[0][0]
