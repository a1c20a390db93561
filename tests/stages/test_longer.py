"""A run whose recipe asks for more rounds, steps or epochs continues, where nothing so far depended on their number."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.stages.kill_driver import fingerprint
from tests.stages.sessions import go
from tests.stages.test_stale import rows, short
from tests.stages.tiny import tiny
from verizero.pipeline.errors import RunError
from verizero.pipeline.run.choose_checkpoint import STALE_FOLDER

SFT = ("stages=[sft]", "sft.steps=4")
RL = ("stages=[rl]", "sft=null", "rl.rounds=1", "rl.steps_per_round=2", "rl.select.keep=all", "data.evaluation=[]")
RL += ("rollout.max_response_tokens=8",)  # a policy that was not trained answers at full length


def weights(folder: Path) -> bytes:
    return (folder / "run" / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("ended")
    go(tiny(overrides=RL), base)
    return base


@pytest.fixture
def base(ended: Path, tmp_path: Path) -> Path:
    """An ended run of RL."""
    return Path(shutil.copytree(ended, tmp_path / "longer"))


@pytest.mark.integration
@pytest.mark.parametrize("more", ["rl.rounds=2", "rl.steps_per_round=4"])
def test_rl_that_ended_goes_on_as_if_it_had_been_asked_at_once(base: Path, tmp_path: Path, more: str) -> None:
    name, _, now = more.partition("=")
    before = 1 if name == "rl.rounds" else 2
    config = tiny(overrides=[*RL, more])
    assert f"rl continues: {name} was {before}, is {now}" in go(config, base)
    (tmp_path / "once").mkdir()
    go(config, tmp_path / "once")
    assert fingerprint(base / "run") == fingerprint(tmp_path / "once" / "run")
    assert weights(base) == weights(tmp_path / "once")
    assert [line for line in go(config, base) if "continues" in line] == []
    assert fingerprint(base / "run") == fingerprint(tmp_path / "once" / "run"), "an ended run is not trained again"
    assert not (base / "run" / STALE_FOLDER).exists()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (("rl.rounds=2", "rl.steps_per_round=1"), "has done 2 of its steps already"),
        (("rl.rounds=2", "seed=4"), "Undo the change"),
        (("rl.group_size=4",), "Undo the change"),
    ],
)
def test_what_it_depends_on_must_stay(base: Path, changes: tuple[str, ...], reason: str) -> None:
    with pytest.raises(RunError, match=reason) as caught:
        go(tiny(overrides=[*RL, *changes]), base)
    assert f"--set model.path={base / 'run' / 'model'}" in str(caught.value)


@pytest.mark.integration
@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_a_rate_that_has_fallen_names_the_two_ways(tmp_path: Path, schedule: str) -> None:
    falls = (*SFT, f"sft.optimizer.schedule={schedule}", "data.evaluation=[]")
    go(tiny(overrides=falls), tmp_path)
    model = tmp_path / "run" / "model"
    with pytest.raises(RunError) as caught:
        go(tiny(overrides=[*falls, "sft.steps=6"]), tmp_path)
    message = str(caught.value)
    assert f"sft.optimizer.schedule={schedule} has lowered its learning rate towards the old end already" in message
    assert "Keep sft.steps: 4, or start a new run from the model of this one" in message
    assert f"--set model.path={model}" in message
    assert model.is_dir()


@pytest.mark.integration
@pytest.mark.parametrize(("unit", "more"), [("steps", "6"), ("epochs", "0.3")])
def test_sft_goes_on_where_its_rate_is_constant(tmp_path: Path, unit: str, more: str) -> None:
    length = {"steps": ("sft.steps=4",), "epochs": ("sft.steps=null", "sft.epochs=0.2")}[unit]
    recipe = ("stages=[sft]", "data.evaluation=[]", *length)
    for name in ("longer", "once"):
        (tmp_path / name).mkdir()
    go(tiny(overrides=recipe), tmp_path / "longer")
    config = tiny(overrides=[*recipe, f"sft.{unit}={more}"])
    (line,) = [line for line in go(config, tmp_path / "longer") if "continues" in line]
    assert line.startswith(f"sft continues: sft.{unit} was ")
    go(config, tmp_path / "once")
    assert weights(tmp_path / "longer") == weights(tmp_path / "once")
    steps = [[json.loads(text) for text in (tmp_path / name / "run" / "metrics.jsonl").read_text().splitlines()]
             for name in ("longer", "once")]  # fmt: skip
    assert [(row["step"], row["metrics"]["loss"]) for row in steps[0]] == [
        (row["step"], row["metrics"]["loss"]) for row in steps[1]
    ]


@pytest.mark.integration
def test_stages_after_it_are_put_aside_and_run_again(tmp_path: Path) -> None:
    for name in ("longer", "once"):
        rows(tmp_path / name)
    go(short(), tmp_path / "longer")
    (line,) = [line for line in go(short("rl.rounds=2"), tmp_path / "longer") if "continues" in line]
    assert line == (
        "rl continues: rl.rounds was 1, is 2; sft_again is stale, and the earlier results are kept in stale/1"
    )
    go(short("rl.rounds=2"), tmp_path / "once")
    assert fingerprint(tmp_path / "longer" / "run") == fingerprint(tmp_path / "once" / "run")
