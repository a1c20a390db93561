"""The command line: exit statuses, one clear line for what is wrong, verdicts as they come."""

import json
import shlex
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.commands.test_check import recipe
from tests.report.runs import make_run
from tests.source import ROOT
from verizero.pipeline.cli import GROUPS, main

PATIENCE_S = 60.0
READERS = ("train", "eval", "check")
MORE_READERS = ("try", "plan", "rate", "compare", "doctor", "diagnose --before")
"""Commands that take a recipe."""
ARITHMETIC = {"question": "1+1=", "answer": "2", "verifier": "exact"}


def of_file(folder, rows, **source):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"train": [{"file": "rows.jsonl", **source}]}


class TestArguments:
    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            ([], "required"),
            (["trane"], "invalid choice: 'trane'"),
            (["train", "absent", "--no-pre"], "unrecognized arguments: --no-pre"),
            (["verify", "--batch", "many"], "invalid int value: 'many'"),
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

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            # tests/config/test_refusals.py has all that is wrong in a recipe
            *((f"{command} mine.yaml --set rl.goup_size=4", "'rl.goup_size'; did you mean") for command in READERS),
            ("train mine.yaml --stages sft,ppo", "'ppo'; it has sft, rl"),
            ("train mine.yaml --no-prefect --resume must", "checkpoint"),
            ("train mone.yaml", "did you mean mine.yaml?"),
            ("eval mine.yaml --model 'no: model'", "no: model"),
            ("verify rows.jsonl --batch 0", "batch "),
            *((f"{command} absent", "absent") for command in ("report", "verify", "audit", "verify --check exact")),
            *(
                (f"{command} {folder}", "did you mean runs/demo_short?")
                for command in ("report", "diagnose", "promote")
                for folder in ("runs/demo_shrt", "runs/demo_shrt/", "demo_short")
            ),
            *((f"{command} demo_shrt", "did you mean demo_short or ") for command in (*READERS, *MORE_READERS)),
            ("train dapo", "did you mean algorithms/dapo?"),
        ],
    )
    def test_wrong_words(self, words, said, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        recipe(tmp_path)
        (tmp_path / "rows.jsonl").touch()
        (tmp_path / "runs" / "demo_short").mkdir(parents=True)
        assert said in self.refuse(shlex.split(words), capsys)
        assert not list(tmp_path.rglob("metrics.jsonl"))

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


@contextmanager
def verifying(*options):
    command = [sys.executable, "-m", "verizero.pipeline.cli", "verify", *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        try:
            yield process, process.stdin, process.stdout
        finally:
            process.kill()


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
                line = json.loads(stdout.readline())
                assert (line["id"], line["status"], line["score"]) == (number, "graded", float(number != 1))
            assert process.communicate(timeout=PATIENCE_S) == (b"", b"")
            assert process.returncode == 0

    @pytest.mark.run
    def test_a_stream_of_any_text_gives_what_a_file_gives_and_bad_lines_are_told_in_the_status(self, tmp_path, capsys):
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
        (tmp_path / "rows.jsonl").write_bytes(b"".join(lines))
        assert main(["verify", str(tmp_path / "rows.jsonl")]) == 1
        assert out.decode() == capsys.readouterr().out

    @pytest.mark.run
    def test_a_reader_that_leaves_ends_it_quietly(self):
        with verifying() as (process, stdin, stdout):
            stdin.write(row(0))
            stdin.flush()
            assert stdout.readline()
            stdout.close()
            stdin.write(row(1) * 10)
            stdin.close()
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr.read() == b""


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
        assert (
            main(["eval", recipe(tmp_path), "--model", str(folder / "model"), "--set", "evaluation.limit=2", "--json"])
            == 0
        )
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
