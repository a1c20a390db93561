"""What a tracker wrote, read back; and that none can slow or end a run."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report import trackers
from verizero.pipeline.report.trackers import INSTALL, Trackers


def read_events(folder: Path) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    found = {}
    for file in sorted(folder.iterdir()):
        for raw in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(raw)
            found |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
    return found


def test_tensorboard_files_hold_every_number_of_every_step(tmp_path: Path) -> None:
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


def test_a_run_started_twice_keeps_both_files(tmp_path: Path) -> None:
    for step in (1, 2):
        opened = Trackers(["tensorboard"], tmp_path, "demo")
        opened.log({"loss": step}, step)
        opened.close()
    assert read_events(tmp_path / "tensorboard") == {("loss", 1): 1.0, ("loss", 2): 2.0}


def test_a_step_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    opened = Trackers(["tensorboard"], tmp_path, "demo")
    row = {f"metric/{i}": float(i) for i in range(60)}
    start = time.perf_counter()
    for step in range(300):
        opened.log(row, step)
    spent = time.perf_counter() - start
    opened.close()
    # About 0.1 ms a step on a quiet core; 5 leaves room for a busy one, and an fsync a step would exceed it.
    assert spent / 300 < 0.005


@pytest.mark.parametrize("name", sorted(INSTALL))
def test_a_missing_tracker_names_the_command_that_installs_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (name, "tensorboard.summary.writer.event_file_writer"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as caught:
        Trackers([name], tmp_path, "demo")
    assert f"report.trackers names {name!r}" in str(caught.value)
    assert f"`{INSTALL[name]}`" in str(caught.value)


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord'.*tensorboard, wandb, mlflow, trackio"):
        Trackers(["tensorboard", "tensorbord"], tmp_path, "demo")


class Recorder:
    """A tracker that keeps what it is told, and fails from a step on."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.fails_at, self.closed = fails_at, False

    def log(self, row: Mapping[str, float], step: int) -> None:
        if self.fails_at is not None and step >= self.fails_at:
            raise ConnectionError("service unavailable")
        self.rows.append((step, dict(row)))

    def close(self) -> None:
        self.closed = True


def test_a_tracker_that_fails_is_dropped_once_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = Recorder(fails_at=2), Recorder()
    monkeypatch.setattr(trackers, "OPENERS", {"bad": lambda *_: bad, "good": lambda *_: good})
    opened = Trackers(["bad", "good", "good"], tmp_path, "demo")
    for step in (1, 2, 3):
        opened.log({"loss": 1.0, "skipped": math.inf}, step)
    opened.close()
    assert [s for s, _ in bad.rows] == [1]
    assert good.rows == [(1, {"loss": 1.0}), (2, {"loss": 1.0}), (3, {"loss": 1.0})]
    assert good.closed
    assert len(opened.failures) == 1
    assert "tracker bad stopped at ConnectionError: service unavailable" in opened.failures[0]


class FakeService(ModuleType):
    """A double of wandb, mlflow and trackio: any call is recorded with its arguments and gives back itself."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = []
        self.info = SimpleNamespace(run_id="mlflow's own")

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: object, **kwargs: object) -> FakeService:
            self.calls.append((name, args, kwargs))
            return self

        return call


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_services_get_the_same_numbers_and_are_closed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = FakeService(name)
    monkeypatch.setitem(sys.modules, name, service)
    opened = Trackers([name], tmp_path, "demo", {"seed": 0})
    opened.log({"loss": 0.5}, 3)
    opened.close()
    assert opened.failures == []
    logged = next((args[0], kw) for called, args, kw in service.calls if called in ("log", "log_metrics"))
    assert logged[0]["loss"] == 0.5
    assert logged[0].get("step", logged[1].get("step")) == 3
    assert service.calls[-1][0] in ("finish", "end_run")
    assert any("demo" in kw.values() for _, _, kw in service.calls)


def test_a_resumed_run_goes_on_in_its_mlflow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless that was begun on another server, which does not know it."""
    started = []
    for where in ("sqlite:///a.db", "sqlite:///a.db", "http://127.0.0.1:5000"):
        service = FakeService("mlflow")
        monkeypatch.setitem(sys.modules, "mlflow", service)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
        Trackers(["mlflow"], tmp_path, "demo").close()
        started += [kw for called, _, kw in service.calls if called == "start_run"]
    assert started == [{"run_name": "demo"}, {"run_id": "mlflow's own"}, {"run_name": "demo"}]


def test_trackers_import_nothing_until_one_is_opened() -> None:
    code = (
        "import sys, verizero.pipeline.report.trackers\n"
        "sys.exit(any(m in sys.modules for m in ('tensorboard', 'torch', 'wandb', 'mlflow', 'trackio')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.integration
def test_tensorboard_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from verizero.pipeline.report.trackers import Trackers\n"
        "t = Trackers(['tensorboard'], Path(sys.argv[1]), 'x'); t.log({'a': 1.0}, 1); t.close()\n"
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0
