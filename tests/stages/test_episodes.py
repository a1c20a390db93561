"""A whole run of episodes: tools and a chat template, and rows that the trainer scores as the engine did."""

import json

import pytest

from tests.data.chat_templates import TEMPLATES, bare_tokenizer
from tests.stages.sessions import train_model
from tests.stages.tiny import TREE, tiny
from verizero.pipeline.models.load import create_model, save_folder
from verizero.pipeline.report.row_types import StepRow
from verizero.pipeline.report.run_files import read_metrics, read_rollouts

SIZE = {**TREE["model"]["create"]["config"], "max_position_embeddings": 640}


def chat_folder(path, template):
    """Write a small model whose tokenizer has that chat template."""
    tokenizer = bare_tokenizer()
    tokenizer.chat_template = TEMPLATES[template]
    save_folder(create_model("qwen2", SIZE, tokenizer, 0), tokenizer, path)
    return str(path)


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


def adder_rows(path):
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
def test_a_policy_calls_tools_by_a_chat_template_and_the_trainer_scores_what_the_engine_did(tmp_path):
    recipe = {
        "model": {"create": None, "path": chat_folder(tmp_path / "model", "merges_answers")},
        "data": {"train": adder_rows(tmp_path), "evaluation": [], "template": {"name": "chat", "calls": "hermes"}},
        "sft": {"steps": 120, "batch_size": 4},
        "rl": {"rounds": 1, "steps_per_round": 2, "select": {"keep": "all"}},
        "episodes": {"max_turns": 3},
        "train": {"micro_batch_tokens": 2048},  # a batch of SFT at once: its rows are long
        "rollout": {"max_response_tokens": 70, "parity": {"action": "stop", "tolerance": 1e-5}},
    }
    folder = train_model(tiny(recipe), tmp_path, tmp_path / "run")
    gap = json.loads((folder / "parity.json").read_text())
    assert gap["num_tokens"] > 60
    assert not gap["differs"]
    last = [row for row in read_rollouts(folder) if row.stage == "rl"]
    roles = {m.role for r in last for m in r.messages or ()}
    assert {"user", "assistant", "tool"} <= roles, "SFT taught the form of a call, and the tool answered"
    step = [row for row in read_metrics(folder) if isinstance(row, StepRow) and row.stage == "rl"][-1].metrics
    assert step["tools/add/calls"] > 0
    assert step["episodes/turns"] > 1
    assert step["tokens/observed"] > step["tokens/sampled"]
