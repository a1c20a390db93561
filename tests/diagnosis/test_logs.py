"""Diagnoses of other trainers' logs: recorded runs of TRL, and runs that each tool's own logger has written."""

from __future__ import annotations

import json
import lzma
import os
import pickle
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.diagnose.in_trl.faults import BY_NAME
from benchmarks.diagnose.in_trl.score import RECORDED, script_of
from benchmarks.diagnose.recorded import unpack
from tests.source import ROOT
from tests.test_documents import block, imported
from verizero.pipeline.cli import main
from verizero.pipeline.commands.diagnose import watch
from verizero.pipeline.diagnosis.any_run import Diagnosis, diagnosed
from verizero.pipeline.diagnosis.logs import find, logged, prime_rl, verl, wandb_files
from verizero.pipeline.diagnosis.logs.before import check
from verizero.pipeline.diagnosis.logs.silent import EVALUATIONS, NEEDED_BY, RESPONSES
from verizero.pipeline.diagnosis.logs.training_args import arguments_of
from verizero.pipeline.diagnosis.logs.words import ANY_TOOL
from verizero.pipeline.diagnosis.ranking import causes
from verizero.pipeline.errors import RunError

PATHS = sorted(RECORDED.glob("*.tar.xz"))
FORMATS = Path(__file__).with_name("formats.tar.xz")
OUR_WORDS = re.compile(r"--set|rollouts\.jsonl|metrics\.jsonl|recipe|run\.json|data\.train\b")
"""Words of our own runs, which mean nothing to a user of another trainer."""


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    with lzma.open(FORMATS) as file, tarfile.open(fileobj=BytesIO(file.read())) as tar:
        tar.extractall(folder, filter="data")
    return folder


def recorded(name: str, folder: Path) -> Path:
    return unpack(RECORDED / f"{name}-0.tar.xz", folder)


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.name.removesuffix(".tar.xz"))
def test_the_cause_of_a_recorded_run_of_trl_is_named_first_in_its_words(path: Path, tmp_path: Path) -> None:
    diagnosis = diagnosed([unpack(path, tmp_path)])
    cause = BY_NAME[script_of(path)[0]].cause
    if cause == "none":
        assert [f.cause for f in diagnosis.findings if f.level != "note"] == []
        return
    assert diagnosis.findings[0].cause == cause
    for finding in diagnosis.findings:
        said = " ".join((finding.sentence, finding.remedy, *map(str, finding.evidence)))
        assert not OUR_WORDS.search(said.replace(str(tmp_path), "")), said
        assert all(Path(e.file).is_file() for e in finding.evidence)


@pytest.mark.parametrize(
    ("run", "tool", "cause", "remedy", "file"),
    [
        ("verl/healthy", "verl", None, "", ""),
        ("verl/console/train.log", "verl", None, "", ""),
        ("verl/stale", "verl", "stale_engine_weights", "actor_rollout_ref.rollout.name", "metrics.jsonl:30"),
        ("verl/cut", "verl", "length_cap", "double data.max_response_length", "metrics.jsonl:1"),
        ("verl/dumped", "verl", "false_positives", "compute_score", "rollouts/1.jsonl:"),
        ("openrlhf", "OpenRLHF", "length_cap", "double --rollout.max_new_tokens", "tfevents"),
        ("openrlhf/console/train.log", "OpenRLHF", "too_hard", "--data.prompt_dataset", "train.log:1"),
        ("prime_rl", "prime-rl", "too_hard", "curriculum", "orchestrator/metrics.jsonl:1"),
        ("wandb", "TRL", "length_cap", "set max_completion_length=512 in GRPOConfig", ".wandb:"),
        ("wandb/history.csv", "TRL", "length_cap", "double max_completion_length in GRPOConfig", "history.csv:2"),
        ("wandb_exports/list.json", "TRL", "length_cap", "double max_completion_length", "list.json:1"),
        ("wandb_exports/columns.json", "TRL", "length_cap", "double max_completion_length", "columns.json:1"),
        ("wandb_exports/lines.jsonl", "TRL", "length_cap", "double max_completion_length", "lines.jsonl:1"),
        ("mlruns", "verl", "length_cap", "set data.max_response_length=1024", "clip_ratio:1"),
        ("mlflow", "verl", "length_cap", "set data.max_response_length=1024", "mlflow.db:"),
        ("mlflow/mlflow.db", "verl", "length_cap", "set data.max_response_length=1024", "mlflow.db:"),
    ],
)
def test_the_logs_of_each_tool_are_read(
    run: str, tool: str, cause: str | None, remedy: str, file: str, formats: Path
) -> None:
    diagnosis = diagnosed([formats / run])
    assert diagnosis.title.endswith(f"a run of {tool}")
    if cause is None:
        assert diagnosis.findings == ()
        assert diagnosis.facts.series("reward/sampled")[-1].value > 0.6
        return
    first = diagnosis.findings[0]
    assert first.cause == cause
    assert remedy in first.remedy
    assert any(file in str(e) for e in first.evidence)
    assert not OUR_WORDS.search(first.remedy)


def test_a_console_is_read_with_its_evaluations_and_numbers_that_are_none(formats: Path, tmp_path: Path) -> None:
    facts = diagnosed([formats / "openrlhf" / "console" / "train.log"]).facts
    assert [(e.row.step, e.measure("aime")["value"]) for e in facts.evaluations] == [(s, 0.005) for s in (10, 20, 30)]
    (tmp_path / "trl.log").write_text(
        "".join(
            f"{{'loss': {v}, 'reward': 0.5, 'frac_reward_zero_std': 0.1, 'grad_norm': np.float64(0.25)}}\n"
            for v in ("0.1", "nan", "-inf")
        )
    )
    facts = diagnosed([tmp_path / "trl.log"]).facts
    assert [p.value for p in facts.series("grad_norm")] == [0.25] * 3
    assert [p.value for p in facts.series("loss")] == [0.1]


@pytest.mark.parametrize(
    "run",
    ["verl/cut", "openrlhf/run", "openrlhf/console/train.log", "prime_rl", "wandb", "wandb_exports/lines.jsonl"],
)
def test_the_middle_of_a_large_file_is_left_out_and_said(
    run: str, formats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = diagnosed([formats / run])
    files = [f for f in ((formats / run).rglob("*") if (formats / run).is_dir() else [formats / run]) if f.is_file()]
    half = min(f.stat().st_size for f in files if f.suffix in (".jsonl", ".wandb", ".log") or "tfevents" in f.name) // 2
    for module in (logged, prime_rl, verl, wandb_files):
        monkeypatch.setattr(module, "MAX_NUMBER_BYTES", half)
    part = diagnosed([formats / run])
    assert part.findings[0].cause == whole.findings[0].cause
    assert 1 < len(part.facts.steps) < len(whole.facts.steps)
    assert [row.step for _, row in part.facts.steps][:: len(part.facts.steps) - 1] == [1, 30]
    assert [note for note in part.notes if note.startswith("not read: ") and note.endswith(", in its middle")]
    assert not [note for note in whole.notes if note.startswith("not read")]


def test_of_very_many_steps_some_are_left_out_and_no_evaluation(tmp_path: Path) -> None:
    rows = [{"step": n, "data": {"critic/score/mean": 0.3, "response_length/clip_ratio": 0.5}} for n in range(1, 9002)]
    for row in rows[::1000]:
        row["data"]["val-core/gsm8k/acc/mean@1"] = 0.2
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    diagnosis = diagnosed([tmp_path])
    steps = [row.step for _, row in diagnosis.facts.steps]
    assert steps[:100] == [*range(1, 101)]
    assert steps[-100:] == [*range(8902, 9002)]
    assert [e.row.step for e in diagnosis.facts.evaluations] == [row["step"] for row in rows[::1000]]
    assert diagnosis.findings[0].cause == "length_cap"
    assert f"not read: {9001 - len(steps)} of 9001 steps, evenly over the run" in diagnosis.notes


def test_a_tracker_has_the_evaluations_of_trl_too(formats: Path) -> None:
    (evaluation,) = diagnosed([formats / "wandb_exports" / "list.json"]).facts.evaluations
    assert (evaluation.row.step, evaluation.measure("all", "reward")["value"]) == (20, 0.21)


def test_every_cause_has_a_remedy_in_words_of_no_tool() -> None:
    assert sorted(ANY_TOOL) == sorted(set(causes()) - {"data_refused", "no_room", "not_measured"})
    assert all(set(tool.remedies) <= set(ANY_TOOL) for tool in find.TOOLS.values())


@pytest.mark.parametrize(("names", "silent"), NEEDED_BY.items(), ids=lambda value: str(value[0]))
def test_a_rule_without_its_numbers_says_so_and_is_silent(
    names: tuple[str, ...], silent: tuple[str, ...], tmp_path: Path
) -> None:
    run = next((p for p in PATHS if BY_NAME[script_of(p)[0]].cause in silent), PATHS[0])
    folder = unpack(run, tmp_path)
    state = next(folder.glob("checkpoint-*/trainer_state.json"))
    tree = json.loads(state.read_text())
    theirs = {find.TOOLS["trl"].theirs(name) for name in names}
    if names == ("groups/sampled",):
        theirs.add("frac_reward_zero_std")
    kept = [
        {k: v for k, v in row.items() if k not in theirs and not k.startswith("eval_")} for row in tree["log_history"]
    ]
    if names == ("reward/verdict_std",):
        kept = [{k: v for k, v in row.items() if not k.startswith("rewards/")} for row in kept]
    state.write_text(json.dumps(tree | {"log_history": kept}, indent=2))
    if names in ((RESPONSES,), ("groups/sampled",), ("prompts/distinct",)):
        for table in folder.glob("completions/*.parquet"):
            table.unlink()
    if names == ("kl/coef",):
        (state.parent / "training_args.bin").unlink()
    diagnosis = diagnosed([folder])
    assert any(note.startswith("not judged") and silent[0] in note for note in diagnosis.notes) or names == (
        EVALUATIONS,
    )
    assert not {f.cause for f in diagnosis.findings} & set(silent)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda own: own, True),
        (lambda own: {"text_config": own}, True),
        (lambda own: own | {"hidden_size": 4096, "num_hidden_layers": 32}, False),
        (lambda own: {"model_type": "unknown"}, False),
    ],
    ids=["small", "small, with images", "large", "unknown"],
)
def test_numbers_that_wander_are_weighed_by_the_rate_for_the_models_size(
    change: Callable[[dict[str, Any]], dict[str, Any]], wanted: bool, tmp_path: Path
) -> None:
    """The rate of large models, in a small one whose entropy and reward wandered by three standard errors."""
    folder = unpack(RECORDED / "default_rate-4.tar.xz", tmp_path)
    config = next(folder.glob("checkpoint-*/config.json"))
    config.write_text(json.dumps(change(json.loads(config.read_text()))))
    assert ("learning_rate_low" in {f.cause for f in diagnosed([folder]).findings}) == wanted


def test_reading_runs_nothing_of_the_folder_and_needs_no_torch(tmp_path: Path) -> None:
    folder = recorded("default_rate", tmp_path)
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.system, (f"touch {marker}",))

    arguments = next(folder.glob("checkpoint-*/training_args.bin"))
    assert arguments_of(arguments)["learning_rate"] == 1e-6
    with zipfile.ZipFile(arguments, "w") as archive:
        archive.writestr("training_args/data.pkl", pickle.dumps({"learning_rate": Evil()}))
    program = (
        "import sys; from pathlib import Path; from verizero.pipeline.diagnosis.any_run import diagnosed;"
        "found = diagnosed([Path(sys.argv[1])]).findings; print(found[0].cause, 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["learning_rate_low", "False"]
    assert not marker.exists()


def test_the_diagnosis_loads_little() -> None:
    """It takes half a second of a machine; the limit leaves room for slower ones."""
    heavy = ("torch", "transformers", "prefect", "numpy", "pyarrow", "matplotlib", "sympy")
    program = (
        "import os, sys, verizero.pipeline.diagnosis.any_run;"
        f"print(sum(os.times()[:2]), *[m for m in {heavy} if m in sys.modules])"
    )
    said = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout for _ in range(2)]
    assert [text.split()[1:] for text in said] == [[], []]
    assert min(float(text.split()[0]) for text in said) < 1.5


def test_a_script_is_checked_before_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train_grpo.py"
    script.write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nrate = 3e-3\n"
        "args = GRPOConfig(learning_rate=rate,\nbeta=2.0, num_generations=8)\n"
    )
    assert main(["diagnose", "--before", str(script), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert [f["cause"] for f in found] == ["kl_too_strong", "learning_rate_high"]
    assert "GRPOConfig" in found[0]["remedy"]
    assert [e["line"] for f in found for e in f["evidence"]] == [4, 3]
    assert not (tmp_path / "ran").exists()
    command = tmp_path / "train.sh"
    command.write_text("python -m verl.trainer.main_ppo \\\n  actor_rollout_ref.rollout.n=8 \\\n  actor.lr=2\n")
    config = tmp_path / "ppo.yaml"
    config.write_text("actor_rollout_ref:\n  actor:\n    optim:\n      lr: 0.5\n  rollout:\n    top_p: 0.1\n")
    findings, _ = check([str(command), str(config), "actor_rollout_ref.rollout.n=1"], None)
    assert sorted((Path(e.file).name, e.line) for f in findings for e in f.evidence) == [
        ("actor_rollout_ref.rollout.n=1", 1),
        ("ppo.yaml", 4),
        ("ppo.yaml", 6),
    ]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["actor_rollout_ref.actor.optim.lr=1e-6", "actor_rollout_ref.rollout.n=8"], "Nothing was found"),
        (["actor_rollout_ref.rollout.n=1"], "advantages_vanish"),
        (["--actor.adam.lr=1e-2", "--rollout.top_p=0.5"], "learning_rate_high"),
    ],
)
def test_options_of_a_command_are_checked(words: list[str], cause: str) -> None:
    findings, read = check(words, None)
    assert cause in ({f.cause for f in findings} or {"Nothing was found"})
    assert read.startswith(f"{len(words)} options of ")


def test_what_is_no_log_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.raises(RunError, match=r"no logs were found.*trainer_state\.json"):
        diagnosed([tmp_path])
    with pytest.raises(RunError, match="does not exist"):
        diagnosed([tmp_path / "missing.csv"], "trl")
    (tmp_path / "history.csv").write_text("_step,accuracy\n1,0.5\n")
    with pytest.raises(RunError, match=r"no trainer is known that writes these numbers.*--from trl or verl"):
        diagnosed([tmp_path / "history.csv"])


def test_a_run_is_watched_until_a_problem_is_found_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem, healthy = (diagnosed([recorded(n, tmp_path / n)]) for n in ("default_rate", "beta_of_five"))
    looks: list[Diagnosis | RunError] = [RunError("no logs"), healthy, problem, problem]

    def look() -> Diagnosis:
        found = looks.pop(0)
        if isinstance(found, RunError):
            raise found
        return found

    waited: list[float] = []
    assert watch(look, False, waited.append) == 3
    out, err = capsys.readouterr()
    assert (len(waited), err) == (3, "waiting: no logs\n")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("PROBLEM")] == [
        "kl_too_strong",
        "learning_rate_low",
    ]


def test_one_page_has_the_findings_in_the_tools_words(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["diagnose", str(recorded("default_rate", tmp_path / "run")), "--html", str(page)]) == 3
    text = page.read_text()
    assert "learning_rate_low" in text
    assert "GRPOConfig" in text
    assert "<svg" in text
    assert not re.search(r"(src|href)=\"http", text)


@pytest.mark.parametrize("name", ["callback", "tracker"])
def test_the_ten_lines_of_the_page_find_a_problem_while_a_run_goes(
    name: str, tmp_path: Path, formats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor = imported(
        block((ROOT / "docs" / "diagnose.md").read_text(), "python", name), f"doctor_{name}", tmp_path
    ).Doctor()
    if name == "callback":
        control = SimpleNamespace(should_training_stop=False)
        doctor.on_save(SimpleNamespace(output_dir=str(recorded("default_rate", tmp_path / "run"))), None, control)
        assert control.should_training_stop
        assert "learning_rate=" in capsys.readouterr().out
    else:
        for line in (formats / "verl" / "cut" / "metrics.jsonl").read_text().splitlines():
            doctor.log(json.loads(line)["data"], json.loads(line)["step"])
        assert capsys.readouterr().out.startswith("problem: 55% of the first responses are cut")
