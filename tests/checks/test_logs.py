"""Diagnoses of other trainers' logs: recorded runs of TRL, and files that loggers of verl and W&B have written."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
from torch.utils.tensorboard import SummaryWriter

from tests.checks.recorded import OF_TRL, cause_of, of_trl, unpack
from tests.source import ROOT
from tests.test_documents import block, imported
from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.diagnosis import TOOLS, diagnosed
from verizero.pipeline.checks.logs.logged import NOT_FINITE, numbers
from verizero.pipeline.cli import main
from verizero.pipeline.errors import RunError

PATHS = sorted(OF_TRL.glob("*.tar.xz"))
FORMATS = Path(__file__).with_name("formats.tar.xz")
OUR_WORDS = re.compile(r"--set|rollouts\.jsonl|metrics\.jsonl|recipe|run\.json|data\.train\b")
"""Words of our own runs, which mean nothing to a user of another trainer."""


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    folder = unpack(FORMATS, tmp_path_factory.mktemp("formats"))
    with SummaryWriter(folder / "tensorboard") as events:  # as transformers calls it
        events.add_text("args", json.dumps({"max_completion_length": 256, "num_generations": 8}))
        for row in json.loads((folder / "wandb_exports" / "list.json").read_text()):
            for name in row.keys() - {"_step", "_runtime", "_timestamp"}:
                events.add_scalar(name, float(row[name]), row["train/global_step"])
    return folder


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.name.removesuffix(".tar.xz"))
def test_the_cause_of_a_recorded_run_of_trl_is_named_first_in_its_words(path, tmp_path):
    diagnosis, cause = diagnosed(of_trl(path.name.removesuffix(".tar.xz"), tmp_path)), cause_of(path)
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
        ("tensorboard", "TRL", "length_cap", "set max_completion_length=512 in GRPOConfig", "tfevents"),
        ("verl/dumped", "verl", "false_positives", "compute_score", "rollouts/1.jsonl:"),
        ("wandb/history.csv", "TRL", "length_cap", "double max_completion_length in GRPOConfig", "history.csv:2"),
        ("wandb_exports/list.json", "TRL", "length_cap", "double max_completion_length", "list.json:1"),
        ("wandb_exports/columns.json", "TRL", "length_cap", "double max_completion_length", "columns.json:1"),
        ("wandb_exports/lines.jsonl", "TRL", "length_cap", "double max_completion_length", "lines.jsonl:1"),
    ],
)
def test_the_logs_of_each_tool_are_read(run, tool, cause, remedy, file, formats):
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


def test_a_console_is_read_with_numbers_that_are_none(tmp_path):
    line = "{{'loss': {}, 'reward': 0.5, 'frac_reward_zero_std': 0.1, 'grad_norm': np.float64(0.25)}}\n"
    (tmp_path / "trl.log").write_text("".join(map(line.format, ("0.1", "nan", "-inf"))))
    diagnosis = diagnosed([tmp_path / "trl.log"])
    points = [[(p.step, p.value) for p in diagnosis.facts.series(n)] for n in ("grad_norm", "loss", "not_finite")]
    assert points == [[(1, 0.25), (2, 0.25), (3, 0.25)], [(1, 0.1)], [(2, 1), (3, 1)]]
    assert (diagnosis.findings[0].cause, diagnosis.findings[0].level) == ("not_finite", "problem")


def test_a_held_out_or_best_loss_that_is_no_number_is_none_of_an_update():
    for name in ("eval_loss", "eval/loss", "val_loss", "best_loss", "validation/loss"):
        assert numbers({name: math.nan, "train/grad_norm": 0.5}) == {"train/grad_norm": 0.5}
    assert numbers({"train/policy_loss": math.inf}) == {NOT_FINITE: 1.0}


def write_state(folder, age_s, **values):
    """A state of TRL of as many steps as the folder's name says, written so many seconds ago."""
    folder.mkdir(parents=True)
    count = int(folder.name.rpartition("-")[2])
    entry = {"loss": 0.1, "grad_norm": 0.2, "reward": 0.0, "reward_std": 0.0, "learning_rate": 1e-6, **values}
    history = [{"step": step, **entry} for step in range(1, count + 1)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    os.utime(folder / "trainer_state.json", times=(time.time() - age_s,) * 2)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"loss": 0.0, "grad_norm": math.nan, "kl": math.nan, "entropy": math.nan}, "not_finite"),
        ({"grad_norm": 0.0, "reward_std": 0.4, "reward": 0.5}, "gradient_zero"),
        ({"reward": -1.0}, "advantages_vanish"),
    ],
)
def test_a_state_alone_shows_steps_that_teach_nothing(values, cause, tmp_path):
    write_state(tmp_path / "checkpoint-60", 0, **values)
    assert [f.cause for f in diagnosed([tmp_path]).findings if f.level == "problem"] == [cause]


def test_a_small_evaluation_is_known_by_its_seconds_and_the_weights_by_the_script(tmp_path):
    """Four prompts with two answers each, 0 or 1, and a function of weight 0 that accepts no right one."""
    state = tmp_path / "out" / "checkpoint-60"
    held_out = {"eval_reward": 0.375, "eval_reward_std": 0.5175, "eval_runtime": 0.5, "eval_samples_per_second": 8.0}
    write_state(state, 0, reward=0.4, reward_std=0.49, **held_out)
    (tmp_path / "train.py").write_text("GRPOConfig(num_generations_eval=2, reward_weights=[1.0, 0.0])\n")
    (tmp_path / "out" / "completions").mkdir()
    columns = {"prompt": [f"{n // 4}?" for n in range(40)], "completion": list("abcd" * 10), "step": [1] * 40}
    columns |= {"lenient": [1.0, 1.0, 0.0, 0.0] * 10, "exact": [1.0, 0.0, 0.0, 0.0] * 10, "advantage": [0.0] * 40}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "out" / "completions" / "completions_00001.parquet")
    judged = diagnosed([tmp_path / "out", tmp_path / "train.py"])
    assert {r.row.reward for r in judged.facts.samples + judged.facts.held_out} == {0.0, 1.0}
    assert "4 prompts" in next(f.sentence for f in judged.findings if f.cause == "evaluation_too_small")


@pytest.mark.parametrize(
    ("reward", "of_folder", "judged"),
    [(0.5, False, 60), (0.0, False, 500), (0.0, True, 500)],
    ids=["another run", "one run", "one run, resumed"],
)
def test_the_newest_run_is_judged_and_its_file_is_named(reward, of_folder, judged, tmp_path):
    """Of one run, the checkpoint with the most steps, in whatever order its folders were copied."""
    write_state(tmp_path / "checkpoint-500", 3 * 86400, reward=reward)
    write_state(tmp_path / "checkpoint-60", 0)
    if of_folder:
        (tmp_path / "checkpoint-60" / "trainer_state.json").rename(tmp_path / "trainer_state.json")
    (tmp_path / "train.py").write_text("GRPOConfig(beta=0.0)")
    diagnosis = diagnosed([tmp_path, tmp_path / "train.py"])
    assert len(diagnosis.facts.steps) == judged
    assert diagnosis.notes[-1] == f"judged: {tmp_path}/checkpoint-{judged}/trainer_state.json"
    assert any("older runs, as " in note for note in diagnosis.notes) == (reward > 0)


def lines(first, last, value):
    of_trl = ({"loss": 0.1, "reward": value, "reward_std": 0.4, "epoch": i / 50} for i in range(first, last + 1))
    of_verl = ({"step": i, "data": {"critic/score/mean": value, "actor/pg_loss": 0}} for i in range(first, last + 1))
    return "".join(f"{row}\n" for row in of_trl), "".join(json.dumps(row) + "\n" for row in of_verl)


@pytest.mark.parametrize(("name", "which"), [("train.log", 0), ("nohup.out", 0), ("metrics.jsonl", 1)])
def test_a_folder_of_logs_has_the_newest_run_alone(name, which, tmp_path):
    older, log = tmp_path / f"older{Path(name).suffix}", tmp_path / "logs" / name
    older.write_text(lines(1, 90, 0.9)[which])
    os.utime(older, times=(time.time() - 86400,) * 2)
    log.parent.mkdir()
    log.write_text(lines(1, 60, 0.8)[which] + lines(1, 20, 0.3)[which] + lines(11, 30, 0.4)[which])
    diagnosis = diagnosed([tmp_path])
    points = diagnosis.facts.series("reward/sampled")
    assert [(p.step, p.value) for p in points] == [(i, 0.3 if i < 11 else 0.4) for i in range(1, 31)]
    assert f"not read: 1 older runs, as {older}; name one of them to judge it" in diagnosis.notes
    assert diagnosis.facts.without_cause == "No cause was found; the reward went from 0.30 to 0.40."


@pytest.mark.parametrize(
    "line",
    [
        *("{" * 200_000, "{'loss':" * 20_000, "{'loss': " + "(" * 90_000, "{'loss': tensor(" + "a" * 90_000),
        *('{"a":' * 90_000, '{"step": 1e999, "data": {"critic/score/mean": 1e999}}', "\0{'loss': \0", "x" * 11_000_000),
        *("\udcff{'loss': \udcff}", "step:" + "9" * 5000 + " - a:1", "step:1 - a:1", '{"step": ' + "9" * 5000 + "}"),
    ],
    ids=range(12),
)
def test_no_line_hangs_or_ends_the_reader(line, tmp_path):
    for which, name in enumerate(("train.log", "metrics.jsonl")):
        text = f"{lines(1, 10, 0.3)[which]}{line}\n{lines(11, 20, 0.3)[which]}"
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
        began = time.monotonic()
        assert len(diagnosed([tmp_path / name]).facts.series("reward/sampled")) == 20
        assert time.monotonic() - began < 5, "a square of the length would take minutes"


@pytest.mark.parametrize("option", ["epsilon=-1.0", "epsilon=7", "beta=[1]", "learning_rate='auto'", "top_p=1e999"])
def test_no_value_of_an_option_ends_the_diagnosis(option, tmp_path):
    folder, script = of_trl("healthy-0", tmp_path)
    script.write_text(f"GRPOConfig({option}, temperature='0.9')")
    diagnosis = diagnosed([folder, script])
    assert (diagnosis.findings, diagnosis.facts.setting("rollout", "temperature")) == ((), 0.9)
    assert any("which is no number" in note for note in diagnosis.notes) == (not option.startswith("epsilon"))


def test_a_chart_of_two_runs_is_asked_about(tmp_path):
    (tmp_path / "chart.csv").write_text(
        '"Step","A - train/reward","A - train/reward__MIN","B - train/reward"\n1,0,0,1\n'
    )
    with pytest.raises(RunError, match=r"chart.csv has train/reward of 2 runs \(A, B\); export the chart of one"):
        diagnosed([tmp_path / "chart.csv"])


def test_a_tracker_has_the_evaluations_of_trl_too(formats):
    (evaluation,) = diagnosed([formats / "wandb_exports" / "list.json"]).facts.evaluations
    assert (evaluation.row.step, evaluation.measure("all", "reward")["value"]) == (20, 0.21)


def test_every_remedy_of_a_tool_is_of_a_cause():
    assert all(cause.elsewhere for cause in CAUSES.values())
    assert all(set(tool.remedies) <= set(CAUSES) for tool in TOOLS.values())


@pytest.mark.parametrize("needs", sorted({c.needs for c in CAUSES.values() if c.needs and c.needs != ("evaluations",)}))
def test_a_rule_without_its_numbers_says_so_and_is_silent(needs, tmp_path):
    silent = {cause.name for cause in CAUSES.values() if cause.needs == needs}
    path = next((p for p in PATHS if cause_of(p) in silent), PATHS[0])
    folder, script = of_trl(path.name.removesuffix(".tar.xz"), tmp_path)
    state = next(folder.glob("checkpoint-*/trainer_state.json"))
    tree = json.loads(state.read_text())
    theirs = {TOOLS["trl"].theirs(name) for name in needs}
    theirs |= {"frac_reward_zero_std", "reward_std"} if needs == ("groups/sampled",) else set()
    parts = "rewards/" if needs == ("reward/verdict_std",) else "eval_"
    kept = [
        {k: v for k, v in row.items() if k not in theirs and not k.startswith(("eval_", parts))}
        for row in tree["log_history"]
    ]
    state.write_text(json.dumps(tree | {"log_history": kept}, indent=2))
    if needs[0] in ("responses", "groups/sampled", "prompts/distinct"):
        for table in folder.glob("completions/*.parquet"):
            table.unlink()
    diagnosis = diagnosed([folder] if needs == ("kl/coef",) else [folder, script])
    assert any(note.startswith("not judged") and min(silent) in note for note in diagnosis.notes)
    assert not {f.cause for f in diagnosis.findings} & silent


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
def test_numbers_that_wander_are_weighed_by_the_rate_for_the_models_size(change, wanted, tmp_path):
    """The rate of large models, in a small one whose entropy and reward wandered by three standard errors."""
    folder, _ = of_trl("default_rate-4", tmp_path)
    config = next(folder.glob("checkpoint-*/config.json"))
    config.write_text(json.dumps(change(json.loads(config.read_text()))))
    assert ("learning_rate_low" in {f.cause for f in diagnosed([folder]).findings}) == wanted


def test_the_diagnosis_loads_little():
    heavy = ("torch", "transformers", "prefect", "numpy", "pyarrow", "sympy")
    program = (
        f"import sys, verizero.pipeline.checks.diagnosis;print('loaded', *[m for m in {heavy} if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["loaded"]


def test_without_its_package_tensorboard_is_refused_or_left_out_of_a_folder_with_other_logs(
    formats, tmp_path, monkeypatch
):
    folder, _ = of_trl("default_rate-0", tmp_path)
    shutil.copytree(formats / "tensorboard", folder / "runs")
    assert not [n for n in diagnosed([folder]).notes if "not read: " in n or "no option of the run is known" in n]
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    with pytest.raises(RunError, match=r"events.*`pip install tensorboard`"):
        diagnosed([folder / "runs"])
    missing, unknown, *_ = diagnosed([folder]).notes
    assert missing.startswith("not read: ")
    assert unknown.startswith("no option of the run is known: give its script")


def test_what_is_no_log_is_refused_with_what_was_looked_for(tmp_path):
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.raises(RunError, match=r"no logs were found.*trainer_state\.json"):
        diagnosed([tmp_path])
    with pytest.raises(RunError, match="does not exist"):
        diagnosed([tmp_path / "missing.csv"], "trl")
    (tmp_path / "history.csv").write_text("_step,accuracy\n1,0.5\n")
    with pytest.raises(RunError, match=r"no trainer is known that writes these numbers.*--from trl or verl"):
        diagnosed([tmp_path / "history.csv"])


def test_one_page_has_the_findings_in_the_tools_words(tmp_path):
    page = tmp_path / "page.html"
    assert main(["diagnose", *map(str, of_trl("default_rate-0", tmp_path)), "--html", str(page)]) == 3
    text = page.read_text()
    assert "learning_rate_low" in text
    assert "GRPOConfig" in text
    assert "<svg" in text
    assert not re.search(r"(src|href)=\"http", text)


@pytest.mark.parametrize("name", ["callback", "tracker"])
def test_the_ten_lines_of_the_page_find_a_problem_while_a_run_goes(name, tmp_path, formats, capsys):
    doctor = imported(
        block((ROOT / "docs" / "diagnose.md").read_text(), "python", name), f"doctor_{name}", tmp_path
    ).Doctor()
    if name == "callback":
        control = SimpleNamespace(should_training_stop=False)
        doctor.on_save(SimpleNamespace(output_dir=str(of_trl("default_rate-0", tmp_path)[0])), None, control)
        assert control.should_training_stop
        assert "learning_rate=" in capsys.readouterr().out
    else:
        for line in (formats / "verl" / "cut" / "metrics.jsonl").read_text().splitlines():
            doctor.log(json.loads(line)["data"], json.loads(line)["step"])
        assert capsys.readouterr().out.startswith("problem: 55% of the first responses are cut")
