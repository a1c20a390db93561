"""What leaves a run: a model on the hub with its card, and samples for trackers."""

import base64
import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

import verizero as vz
from tests.api.tiny import ROWS, SMALL, save_tiny
from tests.json_server import serving
from tests.source import ROOT
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.report.card import model_card

TOKEN = "hf_test"


@dataclass
class FakeHub:
    """What was published: repositories with their settings, and the files of each."""

    address: str = ""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    def answer(self, path, body, key):
        path = path.partition("?")[0]
        if not body:
            return 200, {"id": "me/my-model", "siblings": []}
        if key != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid user token."}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            is_new = name not in self.repositories
            self.repositories.setdefault(name, asked)
            return (200 if is_new else 409), {"url": f"{self.address}/{name}"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        name, _, what = path.removeprefix("/api/models/").partition("/preupload/")
        if what:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return 200, {"files": files}
        name, _, what = path.removeprefix("/api/models/").partition("/commit/")
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.commits.append(value["summary"])
            else:
                self.files.setdefault(name, {})[value["path"]] = base64.b64decode(value["content"])
        return 200, {"commitUrl": f"{self.address}/{name}/commit/abc", "commitOid": "abc", "hookOutput": ""}


@contextlib.contextmanager
def fake_hub():
    hub = FakeHub()
    with serving(hub.answer) as hub.address:
        yield hub


TRACKER = """
class Mine:
    def __init__(self, run_dir, run_name, recipe):
        self.file = open(run_dir / "mine.txt", "a")

    def log(self, row, step):
        pass

    def table(self, name, rows, step):
        for row in rows:
            print(name, step, *row, sep="|", file=self.file)

    def close(self):
        self.file.close()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outward")
    save_tiny(folder / "tiny")
    (folder / "mine.py").write_text(TRACKER)
    tracker = {"report.trackers": [f"{folder}/mine.py:Mine"]}
    with contextlib.chdir(folder):
        run = vz.train("tiny", ROWS, reward="math", name="run", steps=1, quiet=True, **SMALL, **tracker)
        return vz.TrainedRun(run.folder.resolve())


def push(run, hub, token=TOKEN, arguments=""):
    """Push in a program of its own: the client reads its address and token when it is imported."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": hub.address, "HF_TOKEN": token, "HF_HOME": str(run.folder), "PYTHONPATH": str(ROOT)}
    text = f"import verizero as vz; print(vz.TrainedRun({str(run.folder)!r}).push('me/my-model'{arguments}))"
    command = [sys.executable, "-c", text]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.run
def test_the_model_is_published_with_its_card_by_the_hubs_own_client(run):
    table = (run.folder / "mine.txt").read_text().splitlines()
    assert {line.split("|")[0] for line in table} == {"before training", "after round 1"}
    sampled = {(r["prompt"], r["response"], r["status"], r["reason"]) for r in run.samples()}
    assert {tuple(line.split("|")[i] for i in (3, 4, 6, 7)) for line in table if line.count("|") == 7} <= sampled

    with fake_hub() as hub:
        refused = push(run, hub, token="hf_other")
        assert "RunError: 'me/my-model' was not pushed (`hf auth login`, or HF_TOKEN" in refused.stderr
        assert "401" in refused.stderr
        done = push(run, hub)
        assert done.stdout == f"{hub.address}/me/my-model\n", done.stderr
        (run.model / "README.md").write_text("---\nlicense: mit\n---\nMine.\n")
        assert push(run, hub, arguments=", private=False").returncode == 0
        assert hub.repositories["me/my-model"]["visibility"] == "private", "one that is there keeps its setting"
    files = hub.files["me/my-model"]
    assert files["README.md"] == b"---\nlicense: mit\n---\nMine.\n", "a card that is there stays"
    assert {n: files[n] for n in files if n != "README.md"} == {
        p.name: p.read_bytes() for p in run.model.iterdir() if p.is_file() and p.name != "README.md"
    }
    assert hub.commits == ["Add the model of a Verizero run"] * 2


@pytest.mark.run
def test_the_card_has_results_with_intervals_and_no_path_of_this_machine(run):
    config = load_recipe(run.folder / "recipe.yaml")
    text = model_card("me/my-model", config, run.summary, {"torch": "2.0"})
    assert str(run.folder.parent) not in text
    card = ModelCard(text)
    metadata = card.data.to_dict()
    assert (metadata["library_name"], metadata["tags"]) == ("transformers", ["verizero", "rl"])
    assert not {"license", "base_model"} & metadata.keys(), "a folder has no name on the hub, a licence is a choice"
    after = run.results["default"]["after"]
    (entry,) = (m for m in metadata["model-index"][0]["results"][0]["metrics"] if m["name"] == "pass@1")
    low, high = (round(x, 4) for x in after["intervals"]["pass@1"])
    assert entry["type"] == "accuracy"
    assert entry["value"] == round(after["pass@1"], 4)
    assert entry["args"] == {"low": low, "high": high, "level": 0.95}
    assert f"| default | {after['pass@1']:.3f} ({low:.3f} to {high:.3f}) |" in text
    recipe = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    assert recipe["model"]["path"] == "tiny"
    assert recipe["rl"]["group_size"] == 4
    named = config.model_copy(update={"model": config.model.model_copy(update={"path": "Qwen/Qwen3-0.6B"})})
    assert ModelCard(model_card("a/b", named, {}, {})).data.base_model == "Qwen/Qwen3-0.6B"
    assert "Not measured: the recipe has no held-out data." in model_card("a/b", named, {}, {})


def test_a_run_without_a_model_is_not_pushed(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(vz.VerizeroError, match="has no trained model yet; let the run end, then push"):
        vz.TrainedRun(tmp_path).push("me/my-model")
