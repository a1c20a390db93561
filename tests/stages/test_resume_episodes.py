"""Runs of episodes, killed in an environment, between turns or around an update, end with the bytes of one unbroken."""

import json
import sys

import pytest

from tests.processes import others, until
from tests.stages.broken import ROOT, killed
from verizero.pipeline.report.run_files import read_run

pytestmark = pytest.mark.run
FEW = (
    *("sft.steps=12", "rl.rounds=1", "rl.steps_per_round=3", "rl.prompts_per_step=3", "rl.group_size=4"),
    *("rl.select.keep=all", "rl.algorithm={name: grpo, entropy_coef: 0.05}", "evaluation.before_training=false"),
    *("data.evaluation=[]", "data.on_overlap=report", "rollout.max_response_tokens=8"),
    "episodes.cut_turn=answer",
)
NUMBERS = "generator: {name: guess, params: {high: 6, num_demonstrations: 300}}"
SHORT = (
    *("sft.batch_size=8", "checkpoint={every_steps: 1, keep: 2}", "train.threads=1", "report.trackers=[]"),
    "data.train=[{generator: {name: sql, params: {num_train: 20, num_demonstrations: 300}}}]",
)
"""With FEW, a shipped recipe in short form."""


@pytest.mark.parametrize("staleness", [0, pytest.param(1, marks=pytest.mark.nightly)])  # 1: below, too
def test_killed_and_resumed_equals_never_killed(staleness, tmp_path):
    sources = f"data.train=[{{{NUMBERS}}}]"
    killed(tmp_path, "in turns", *FEW, sources, f"rollout.max_staleness={staleness}")


@pytest.mark.nightly
def test_a_shipped_recipe_that_shares_tokens_is_resumed_as_if_never_killed(tmp_path):
    recipe = ROOT / "configs" / "episodes" / "sql.yaml"
    killed(tmp_path, "in turns", str(recipe), *FEW, *SHORT, "rollout.max_staleness=1")
    assert all(step.metrics["tree/ratio"] > 1.2 for step in read_run(tmp_path / "whole").rl_steps)


AGENT = """
import http.client, json, os, time
from urllib.parse import urlsplit

url = urlsplit(os.environ["VERIZERO_URL"])
headers = {"Authorization": "Bearer " + os.environ["VERIZERO_KEY"]}
messages = [{"role": "user", "content": "1 to 6?"}]
try:
    for turn in range(3):
        connection = http.client.HTTPConnection(url.hostname, url.port)
        body = json.dumps({"model": "policy", "messages": messages})
        connection.request("POST", url.path + "/chat/completions", body, headers)
        word = json.load(connection.getresponse())["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": word}, {"role": "user", "content": "again"}]
except Exception:
    time.sleep(600)
print(word)
"""
"""Asks three times; does not end by itself when it is left alone."""


def agent_in(folder):
    (folder / "asks.py").write_text(AGENT)
    command = [sys.executable, "-I", "-S", str(folder / "asks.py")]
    params = f"{{command: {json.dumps(command)}, answer: stdout, step_s: 60}}"
    return f"data.train=[{{{NUMBERS}, environment: {{name: agent, params: {params}}}, verifier: exact}}]"


FEWER = (*FEW, "rl.steps_per_round=2", "rl.prompts_per_step=1")


def test_agents_of_killed_runs_leave_nothing_and_the_same_bytes(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    killed(tmp_path / "runs", "with agents", *FEWER, agent_in(tmp_path))
    assert list(scratch.glob("verizero-*")) == []
    until(lambda: not [words for _, words, _ in others() if "asks.py" in words and str(tmp_path) in words], "their end")
