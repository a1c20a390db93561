"""The command line: exit statuses, one clear line for what is wrong, verdicts as they come."""

import json
import os
import selectors
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.report.runs import make_run
from tests.stages.tiny import TREE
from verizero.pipeline.cli import GROUPS, main

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 60.0
ARITHMETIC = {"question": "1+1=", "answer": "2", "verifier": "exact"}


def recipe(folder, **sections):
    """The path of the tiny recipe, with some sections replaced, written into `folder`."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**TREE, "output": str(folder / "runs"), **sections}))
    return str(path)


def of_file(folder, rows, **source):
    """A data section whose training rows are a file in `folder`."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"train": [{"file": "rows.jsonl", **source}]}


class TestArguments:
    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            ([], "required"),
            (["trane"], "invalid choice: 'trane'"),
            (["train"], "required: recipe"),
            (["train", "absent", "--resume", "maybe"], "invalid choice: 'maybe'"),
            (["train", "absent", "--no-pre"], "unrecognized arguments: --no-pre"),
            (["train", "absent", "--set"], "expected one argument"),
            (["verify", "--batch", "many"], "invalid int value: 'many'"),
            (["report"], "required: folder"),
            (["new", "engine", "x"], "invalid choice: 'engine'"),
        ],
    )
    def test_a_wrong_command_line_exits_with_2(self, argv, said, capsys):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 2
        assert said in capsys.readouterr().err

    def test_help_names_every_command(self, capsys):
        with pytest.raises(SystemExit) as caught:
            main(["--help"])
        assert caught.value.code == 0
        said = capsys.readouterr().out
        modules = [module.__name__.rpartition(".")[2] for modules in GROUPS.values() for module in modules]
        files = {f.stem for f in (ROOT / "pipeline" / "commands").glob("*.py")} - {"__init__", "arguments"}
        assert sorted(modules) == sorted(files), "a command that no group has"
        titles = [line for line in said.splitlines() if line.endswith(":") and not line.startswith((" ", "options"))]
        assert titles == [f"{title}:" for title in GROUPS]
        for command in ("train", "check", "verify", "audit", "eval", "report", "doctor", "sandbox", "try"):
            assert f"\n  {command} " in said


class TestBadInput:
    """What is decided before anything is trained: one line of error, status 1, nothing in the run's folder."""

    def refuse(self, argv, capsys):
        assert main(argv) == 1
        said = capsys.readouterr()
        assert said.out == ""
        *before, last = said.err.splitlines()
        assert last.startswith("verizero: ")
        assert all(line.startswith("[") for line in before), "what was under way, with its time"
        return last

    def test_a_wrong_recipe(self, tmp_path, capsys):
        """tests/config/test_refusals.py has all that is wrong in one."""
        for command in ("train", "eval", "check"):
            said = self.refuse([command, recipe(tmp_path), "--set", "rl.goup_size=4"], capsys)
            assert "'rl.goup_size'; did you mean group_size" in said
        assert not (tmp_path / "runs").exists()

    def test_stages_that_do_not_exist(self, tmp_path, capsys):
        said = self.refuse(["train", recipe(tmp_path), "--stages", "sft,ppo"], capsys)
        assert "'ppo'; it has sft, rl" in said

    def test_a_recipe_that_is_not_there(self, tmp_path, capsys):
        recipe(tmp_path)
        said = self.refuse(["train", str(tmp_path / "mone.yaml")], capsys)
        assert f"did you mean {tmp_path / 'mine.yaml'}?" in said

    @pytest.mark.parametrize(
        "command", ["train", "try", "plan", "check", "eval", "rate", "compare", "doctor", "diagnose --before"]
    )
    def test_the_name_of_a_recipe_with_a_typing_error(self, command, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        said = self.refuse([*command.split(), "demo_shrt"], capsys)
        assert "recipe='demo_shrt' is no file here" in said
        assert "did you mean demo_short or " in said
        assert "did you mean algorithms/dapo?" in self.refuse([*command.split(), "dapo"], capsys)

    @pytest.mark.parametrize("words", ["report {}", "diagnose {}", "promote {}"])
    def test_the_folder_of_a_run_with_a_typing_error(self, words, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "runs" / "demo_short").mkdir(parents=True)
        for name in ("runs/demo_shrt", "runs/demo_shrt/", "demo_short"):
            assert "did you mean runs/demo_short?" in self.refuse(words.format(name).split(), capsys)

    @pytest.mark.parametrize(
        ("rows", "changes", "said"),
        [
            ([ARITHMETIC, {"question": "2+2=", "verifier": "exact"}], [], "rows.jsonl line 2: "),
            ([{**ARITHMETIC, "question": "1+1=Ω"}], [], "'Ω'"),
            ([ARITHMETIC], ["--set", "rollout.max_response_tokens=64"], "rollout.max_response_tokens"),
        ],
    )
    def test_bad_data(self, rows, changes, said, tmp_path, capsys):
        path = recipe(tmp_path, data=of_file(tmp_path, rows), stages=["rl"])
        assert said in self.refuse(["train", path, "--no-prefect", *changes], capsys)
        assert not list(tmp_path.rglob("metrics.jsonl"))

    @pytest.mark.parametrize("given_away_by", ["train", "demonstrations"])
    def test_evaluation_prompts_mostly_found_in_training_stop_the_run(self, given_away_by, tmp_path, capsys):
        asked = {**ARITHMETIC, "id": "held out", "question": "a b c d e f g h i j k l m n", "demonstration": "2"}
        longer = {**asked, "id": "longer", "question": asked["question"] + " o"}
        files = {"train": [{**ARITHMETIC, "id": "sum"}], "demonstrations": [{**asked, "id": "other", "question": "2"}]}
        files[given_away_by].append(longer)
        data = {}
        for name, rows in {**files, "evaluation": [asked]}.items():
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            data[name] = [{"file": f"{name}.jsonl"}]
        said = self.refuse(["train", recipe(tmp_path, data=data), "--no-prefect"], capsys)
        assert "(0 exact, 0 normalised, 1 ngram)" in said
        assert "'held out' in 'longer'" in said
        assert "data.on_overlap" in said
        assert not list(tmp_path.rglob("metrics.jsonl"))

    def test_a_model_that_is_not_there(self, tmp_path, capsys):
        argv = ["eval", recipe(tmp_path), "--model", str(tmp_path / "no: model")]
        assert "no: model" in self.refuse(argv, capsys)

    def test_resume_must_without_a_run(self, tmp_path, capsys):
        argv = ["train", recipe(tmp_path), "--no-prefect", "--resume", "must"]
        assert "checkpoint" in self.refuse(argv, capsys)

    @pytest.mark.parametrize("command", [["report"], ["verify"], ["audit"], ["verify", "--check", "exact"]])
    def test_files_that_are_not_there(self, command, tmp_path, capsys):
        assert str(tmp_path / "absent") in self.refuse([*command, str(tmp_path / "absent")], capsys)
        assert list(tmp_path.iterdir()) == []

    def test_a_batch_below_one(self, tmp_path, capsys):
        (tmp_path / "rows.jsonl").touch()
        said = self.refuse(["verify", str(tmp_path / "rows.jsonl"), "--batch", "0"], capsys)
        assert "batch " in said


@contextmanager
def verifying(*options):
    """`verizero verify` with pipes at both ends: the process, its input, its output."""
    command = [sys.executable, "-m", "verizero.pipeline.cli", "verify", *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        try:
            yield process, process.stdin, process.stdout
        finally:
            process.kill()


def ready(pipe, seconds):
    """Something can be read from the pipe within that time."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def row(number, response="2"):
    """A line for the exact verifier, whose reference is "2"."""
    line = {"id": number, "verifier": "exact", "reference": "2", "response": response}
    return json.dumps(line).encode() + b"\n"


class TestVerify:
    @pytest.mark.run
    def test_each_verdict_comes_while_the_pipe_is_held_open(self):
        with verifying() as (process, stdin, stdout):
            for number in range(3):
                stdin.write(row(number, "2" if number != 1 else "3"))
                stdin.flush()
                assert ready(stdout, PATIENCE_S), f"row {number} has no verdict though nothing more is coming"
                line = json.loads(os.read(stdout.fileno(), 65536))
                assert (line["id"], line["status"], line["score"]) == (number, "graded", float(number != 1))
            assert process.communicate(timeout=PATIENCE_S) == (b"", b"")
            assert process.returncode == 0

    @pytest.mark.run
    def test_text_of_any_kind_passes_and_bad_lines_are_told_in_the_status(self):
        lines = [row(1), b'{"id": "\\ud800", "verifier": "exact", "reference": "2", "response": "\\udfff"}\n']
        lines += [b'{"id": 3, "verifier": "exact", "reference": "\xff", "response": "2"}\n', b"not json\n", row(5)]
        with verifying() as (process, _, _):
            out, err = process.communicate(b"".join(lines), PATIENCE_S)
        found = [json.loads(line) for line in out.splitlines()]
        assert err == b""
        assert [f["status"] for f in found] == ["graded", "graded", "graded", "verifier_error", "graded"]
        assert [f["score"] for f in found] == [1.0, 0.0, 0.0, 0.0, 1.0]
        assert found[1]["id"] == "\ud800"
        assert "line 4" in found[3]["reason"]
        assert process.returncode == 1

    @pytest.mark.run
    def test_a_reader_that_leaves_ends_it_quietly(self):
        with verifying() as (process, stdin, stdout):
            stdin.write(row(0))
            stdin.flush()
            assert ready(stdout, PATIENCE_S)
            stdout.close()
            stdin.write(row(1) * 10)
            stdin.close()
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr.read() == b""

    @pytest.mark.run
    def test_a_file_gives_what_a_stream_gives(self, tmp_path, capsys):
        rows = row(1) + row(2, "3") + b'{"id": 3}\n'
        (tmp_path / "rows.jsonl").write_bytes(rows)
        assert main(["verify", str(tmp_path / "rows.jsonl")]) == 1
        from_file = capsys.readouterr().out
        with verifying() as (process, _, _):
            out, _ = process.communicate(rows, PATIENCE_S)
        assert out.decode() == from_file
        assert [json.loads(line)["id"] for line in from_file.splitlines()] == [1, 2, 3]


class TestReport:
    @pytest.mark.run
    def test_rebuilds_page_and_summary_from_files(self, tmp_path, capsys):
        folder = make_run(tmp_path / "run", rounds=1, steps_per_round=4, sft_steps=3)
        assert main(["report", str(folder)]) == 0
        said = capsys.readouterr().out
        assert f"report: {folder / 'report.html'}" in said
        page, summary = (folder / "report.html").read_bytes(), (folder / "summary.json").read_bytes()
        assert json.loads(summary)["steps"] == 4
        assert json.loads(summary)["after"]["arithmetic"]["pass@1"] > 0
        (folder / "report.html").unlink()
        (folder / "summary.json").unlink()
        assert main(["report", str(folder)]) == 0
        assert (page, summary) == ((folder / "report.html").read_bytes(), (folder / "summary.json").read_bytes())


@pytest.mark.run
class TestTrain:
    def test_trains_evaluates_and_is_done_when_asked_again(self, tmp_path, capsys):
        small = ["sft.steps=4", "rl.rounds=1", "rl.steps_per_round=1", "evaluation.limit=2"]
        argv = ["train", recipe(tmp_path), "--no-prefect", *(x for s in small for x in ("--set", s))]
        assert main(argv) == 0
        folder = tmp_path / "runs" / "tiny"
        assert f"model:  {folder / 'model'}" in capsys.readouterr().out
        metrics = (folder / "metrics.jsonl").read_bytes()
        assert main(argv) == 0
        assert (folder / "metrics.jsonl").read_bytes() == metrics
        capsys.readouterr()
        assert main([*argv, "--resume", "never"]) == 1
        assert str(folder) in capsys.readouterr().err
        assert main(["eval", recipe(tmp_path), "--model", str(folder / "model"), "--set", "evaluation.limit=2"]) == 0
        domains = json.loads(capsys.readouterr().out)
        assert 0 <= domains["arithmetic"]["pass@1"]["value"] <= 1


@pytest.mark.parametrize(
    ("command", "said"), [("train", "continues from the last checkpoint"), ("verify", "not graded")]
)
def test_ctrl_c_says_what_became_of_the_work(command, said, monkeypatch, capsys):
    def stopped(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"verizero.pipeline.commands.{command}.run", stopped)
    assert main([command, "x"]) == 130
    err = capsys.readouterr().err
    assert said in err
    assert ("checkpoint" in err) is (command == "train")
