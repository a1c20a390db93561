"""What a tracker wrote, read back; and that none can slow or end a run."""

import json
import math
import os
import subprocess
import sys

import pytest

from tests.environments.packages import venv_with
from tests.source import ROOT
from verizero.pipeline import registry
from verizero.pipeline.config.sections import ReportConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.trackers import base
from verizero.pipeline.report.trackers.base import COLUMNS, MOST_CHARACTERS, MOST_SAMPLES, Trackers


def read_events(folder):
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    found = {}
    for file in sorted(folder.iterdir()):
        for raw in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(raw)
            found |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
    return found


def test_tensorboard_files_hold_every_number_of_every_step(tmp_path):
    opened = Trackers(["tensorboard"], tmp_path, "demo")
    for step in range(1, 200):
        opened.log({"reward/sampled": step / 200, "kl/k3": math.nan, "entropy": -step}, step)
    opened.close()
    opened.close()
    found = read_events(tmp_path / "tensorboard")
    assert len(found) == 2 * 199
    for step in range(1, 200):
        assert found["reward/sampled", step] == pytest.approx(step / 200)
        assert found["entropy", step] == -step
    assert opened.failures == []


@pytest.mark.parametrize("name", registry.names("trackers"))
def test_a_missing_tracker_names_the_command_that_installs_it(name, tmp_path, monkeypatch):
    for module in (name, "tensorboard.summary.writer.event_file_writer"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as caught:
        Trackers([name], tmp_path, "demo")
    assert f"report.trackers names {name!r}" in str(caught.value)
    assert f"run `pip install '{name}>=" in str(caught.value)


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no tracker is called 'tensorbord'.*tensorboard"):
        ReportConfig(trackers=("tensorboard", "tensorbord"))
    (tmp_path / "mine.py").write_text("class Other: ...\n")
    with pytest.raises(ConfigError, match=r"mine\.py has no 'Mine'; it has Other"):
        Trackers([f"{tmp_path}/mine.py:Mine"], tmp_path, "demo")


class Recorder:
    """A tracker without tables that keeps what it is told, and fails from a step on."""

    def __init__(self, fails_at=None):
        self.rows = []
        self.fails_at, self.closed = fails_at, False

    def log(self, row, step):
        if self.fails_at is not None and step >= self.fails_at:
            raise ConnectionError("service unavailable")
        self.rows.append((step, dict(row)))

    def close(self):
        self.closed = True


def test_a_tracker_that_fails_is_dropped_once_and_the_others_go_on(tmp_path, monkeypatch):
    bad, good = Recorder(fails_at=2), Recorder()
    monkeypatch.setattr(base, "find_opener", {"bad": lambda *_: bad, "good": lambda *_: good}.__getitem__)
    opened = Trackers(["bad", "good", "good"], tmp_path, "demo")
    for step in (1, 2, 3):
        opened.log({"loss": 1.0, "skipped": math.inf}, step)
    opened.table("after", [["d", "p", "r", 1.0, "graded", "equal"]], 3)
    opened.close()
    assert [s for s, _ in bad.rows] == [1]
    assert good.rows == [(1, {"loss": 1.0}), (2, {"loss": 1.0}), (3, {"loss": 1.0})]
    assert good.closed
    assert len(opened.failures) == 1
    assert "tracker bad stopped at ConnectionError: service unavailable" in opened.failures[0]


ROWS = [["sums", "1+1=", "2", 1.0, "graded", "equal"], ["sums", "1+2=", "é", None, "no_answer", "empty"]]


OWN = """
from pathlib import Path


class Mine:
    def __init__(self, run_dir, run_name, recipe):
        self.file = open(Path(run_dir) / "mine.txt", "a")

    def log(self, row, step):
        print(step, *row, file=self.file)

    def table(self, name, rows, step):
        print(step, name, len(rows), max(len(row[2]) for row in rows), file=self.file)

    def close(self):
        self.file.close()
"""


class EntryPoint:
    name, value = "mine", "theirs:Mine"

    def __init__(self, loads):
        self.load = lambda: loads


@pytest.mark.parametrize("how", ["path", "entry point of a class", "entry point of a module"])
def test_a_new_tracker_is_one_file(how, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN.replace("Mine", "Tracker") if how.endswith("module") else OWN)
    name = "mine.py:Mine"
    if how != "path":
        module = registry.import_file(tmp_path / "mine.py", "tracker")
        entry = EntryPoint(module if how.endswith("module") else module.Mine)
        monkeypatch.setattr(registry, "_installed", lambda kind, path: (entry,) if kind == "trackers" else ())
        name = "mine"
    (asked,) = ReportConfig.model_validate({"trackers": [name]}, context={"base": tmp_path}).trackers
    opened = Trackers([asked], tmp_path, "demo")
    opened.log({"loss": 0.5}, 3)
    opened.table("after round 1", [["d", "p", "x" * 9999, 1.0, "graded", "equal"]] * 99, 4)
    opened.close()
    assert opened.failures == []
    assert (tmp_path / "mine.txt").read_text() == f"3 loss\n4 after round 1 {MOST_SAMPLES} {MOST_CHARACTERS}\n"


REAL = """
import sys
from pathlib import Path
from verizero.pipeline.report.trackers.base import Trackers

opened = Trackers([sys.argv[1]], Path(sys.argv[2]), "demo", {"seed": 0})
opened.log({"loss": 0.5, "evaluation/pass@1": 0.25}, 3)
opened.table("after sft", ROWS, 3)
opened.close()
print(opened.failures)
"""
VERSIONS = {"wandb": "wandb==0.31.0", "mlflow": "mlflow==3.17.2"}
READ = {
    # What each keeps on this machine: (the numbers of step 3, the rows of the table).
    "wandb": """
import json, struct
import wandb
from wandb.proto.wandb_internal_pb2 import Record

wandb.teardown()  # its service writes the last records when it ends
(file,) = Path(sys.argv[2]).glob("wandb/offline-run-*/run-demo.wandb")
data, whole, row, at = file.read_bytes(), b"", {}, 7
while at + 7 <= len(data):  # records in blocks of 32 KiB: checksum, length, kind (1: whole, 4: the last part), content
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
    whole += data[at + 7 : at + 7 + size]
    at += 7 + size
    if kind in (1, 4):
        record, whole = Record.FromString(whole), b""
        if record.WhichOneof("record_type") == "history":
            for item in record.history.item:
                row[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
table = file.parent / "files" / row["samples/after sft/path"]
print(row["loss"], row["evaluation/pass@1"], row["step"], json.dumps(json.loads(table.read_text())["data"]))
""",
    "mlflow": """
import json, mlflow
mlflow.set_tracking_uri(f"sqlite:///{Path(sys.argv[2]).resolve() / 'mlflow' / 'runs.db'}")
mlflow.set_experiment("verizero")
(run,) = mlflow.search_runs(output_format="list")
numbers = run.data.metrics
step = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")[0].step
table = mlflow.load_table("samples/after-sft.json", run_ids=[run.info.run_id])
rows = [[None if v != v else v for v in row] for row in table[COLUMNS].values.tolist()]
print(numbers["loss"], numbers["evaluation/pass_at_1"], step, json.dumps(rows))
""",
}


@pytest.mark.run
@pytest.mark.nightly
@pytest.mark.parametrize("name", list(READ))
def test_the_real_service_keeps_numbers_and_samples_on_this_machine(name, tmp_path):
    python = venv_with(tmp_path / "venv", VERSIONS[name]) / "bin" / "python"
    own = {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "WANDB_DIR": str(tmp_path), "HOME": str(tmp_path)}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **own}
    text = f"ROWS = {ROWS!r}\nCOLUMNS = {list(COLUMNS)!r}\n{REAL}{READ[name]}"
    command = [python, "-c", text, name, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = ["[]", f"0.5 0.25 3 {json.dumps(ROWS)}"]
    assert [line for line in done.stdout.splitlines() if line.startswith(("[", "0"))][-2:] == wanted
