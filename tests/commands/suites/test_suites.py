"""`verizero eval`: the shipped suites on rows in their data sets' columns, through endpoints and a tiny model."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.commands.suites.answering import answering
from tests.commands.suites.rows import COUNT, SUITES, write_rows
from tests.source import ROOT
from tests.test_documents import block
from verizero.pipeline.cli import main
from verizero.pipeline.commands.eval import compared, evaluate_suites
from verizero.pipeline.commands.suites import asking
from verizero.pipeline.commands.suites.asking import config_of, load_suites, questions_here
from verizero.pipeline.commands.suites.models import Measured, measured_of
from verizero.pipeline.config.data import DataConfig, Source
from verizero.pipeline.config.suite_files import SUITES as FOLDER
from verizero.pipeline.config.suites import load_suite
from verizero.pipeline.data.prompts import read_prompts
from verizero.pipeline.data.rows_of_source import row_of
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import ConfigError, GradersFailed
from verizero.pipeline.models.load import create_model, save_folder
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.run_files import read_run

ALONE = {"samples": 1}
GYM = "reasoning_gym"
"""The shipped suite whose rows are made here."""
ASCII = "".join(map(chr, range(32, 127))) + "\n\t"


def loaded_from(folder, *names, **changes):
    return load_suites(names or list(SUITES), folder, ALONE | changes)


def answers_of(loaded, kind):
    answers = {}
    for own in loaded:
        for i, prompt in enumerate(own.prompts):
            answers[prompt.asked] = getattr(SUITES[own.suite.name](i), kind)(prompt.asked)
    return answers


def tiny_model(folder, context=2048):
    tokenizer = character_tokenizer(ASCII)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 1, "max_position_embeddings": context, "tie_word_embeddings": True}  # fmt: skip
    save_folder(create_model("qwen2", shape, tokenizer, 0), tokenizer, folder)
    return folder


@pytest.mark.run
@pytest.mark.parametrize(("kind", "value"), [("right", 1.0), ("near", 0.0)])
def test_gold_answers_are_right_and_near_misses_wrong(tmp_path, kind, value):
    loaded = loaded_from(write_rows(tmp_path / "rows"))
    answers = answers_of(loaded, kind)
    assert len(answers) == COUNT * len(SUITES)
    with answering(answers.__getitem__) as model:
        (measurement,) = evaluate_suites(measured_of([model.url], tmp_path / "out"), loaded, [], Progress())
    for name in SUITES:
        row = measurement.row.domains[name]
        wrong = [(p, v) for p, v in row["by_prompt"] if v != value]
        assert (row["num_prompts"], row["grader_failures"], wrong) == (COUNT, 0, []), name
    assert measurement.row.verdicts == {"graded": COUNT * len(SUITES)}


@pytest.mark.run
def test_all_statuses_are_counted_and_no_failed_grader_is_a_wrong_answer(tmp_path):
    """A suite of a user's own, with a verifier of its own in the file's folder."""
    (tmp_path / "mine.py").write_text(
        "from verizero.verifiers.base import Verdict, VerifierParams, verifier\n\n"
        "@verifier\ndef mine(attempt, params: VerifierParams):\n"
        "    if attempt.response == 'breaks':\n        raise ValueError('no')\n"
        "    if attempt.response == 'nothing':\n        return Verdict('no_answer', reason='nothing')\n"
        "    if attempt.response == 'abstains':\n        return Verdict('abstained')\n"
        "    return attempt.response == attempt.reference\n"
    )
    words = ["yes", "no", "breaks", "nothing", "abstains"]
    rows = [{"id": f"q{i}", "question": f"word {i}?", "answer": "yes"} for i in range(len(words))]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "own.yaml").write_text(
        "title: Own\nrows: {file: own.jsonl, verifier: {path: 'mine.py:mine'}, prompt: 'Say it. {question}'}\n"
    )
    slow = {"id": "slow", "question": "loop?", "answer": {"tests": [{"input": "", "output": "1"}]}}
    (tmp_path / "slow.jsonl").write_text(json.dumps(slow) + "\n")
    (tmp_path / "slow.yaml").write_text(
        "title: Slow\nrows: {file: slow.jsonl, verifier: {name: code, params: {cpu_s: 1}}}\n"
    )
    answers = {f"Say it. word {i}?": word for i, word in enumerate(words)}
    answers["loop?"] = "```python\nwhile True: pass\n```"
    loaded = load_suites([str(tmp_path / "own.yaml"), str(tmp_path / "slow.yaml")], None, {})
    with answering(answers.__getitem__) as model:
        (done,) = evaluate_suites(measured_of([model.url], tmp_path / "out"), loaded, [], Progress())
    assert done.row.verdicts == {"abstained": 1, "graded": 2, "no_answer": 1, "timeout": 1, "verifier_error": 1}
    own = done.row.domains["own"]
    assert (own["grader_failures"], own["by_prompt"]) == (1, [["q0", 1.0], ["q1", 0.0], ["q3", 0.0]])
    with answering(lambda _: "breaks") as model:
        with pytest.raises(GradersFailed, match="suite own"):
            evaluate_suites(measured_of([model.url], tmp_path / "broken"), loaded[:1], [], Progress())


class _Noting(Progress):
    def __init__(self):
        self.begun = []

    def begin(self, what, done, total):
        self.begun.append(what)

    def under_way(self, what, done=0, total=0):
        self.begun.append(what)


@pytest.mark.run
def test_a_tiny_model_is_asked_each_question_once_and_shown_row_by_row(tmp_path, monkeypatch):
    loaded = loaded_from(write_rows(tmp_path / "rows"), max_tokens=6)
    models = measured_of([str(tiny_model(tmp_path / "model"))])
    shown = _Noting()
    done = evaluate_suites(models, loaded, ["train.device=cpu"], shown)
    lines = compared(done, loaded)
    # The count begins when the engine is there: what is under way would else be its start, until the last answer.
    begun = shown.begun.index(f"ask {models[0].label}")
    assert "starts the engine" in shown.begun[:begun]
    assert "starts the engine" not in shown.begun[begun:]
    folder = tmp_path / "model" / "suites"
    kept = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert len(kept) == COUNT * len(SUITES) == len({row["key"] for row in kept})
    assert all(row["tokens"] == 6 for row in kept if row["was_cut"])
    assert {d["num_prompts"] for d in done[0].row.domains.values()} == {COUNT}
    assert sum(done[0].row.verdicts.values()) == len(kept)
    page = (folder / "report.html").read_text()
    assert lines[-1] == f"page: {folder / 'report.html'}"
    assert all(row["id"] in page for row in kept)

    # Nothing is asked again; what the first command was killed over is.
    def refuse(*_):
        raise AssertionError("asked again")

    first = (folder / "rollouts.jsonl").read_bytes()
    whole = (folder / "answers.jsonl").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(asking, "at_start", refuse)
        evaluate_suites(models, loaded, ["train.device=cpu"], Progress())
    (folder / "answers.jsonl").write_bytes(whole[: len(whole) // 2])  # in the middle of a line
    compared(evaluate_suites(models, loaded, ["train.device=cpu"], Progress()), loaded)
    assert (folder / "rollouts.jsonl").read_bytes() == first
    assert sorted((folder / "answers.jsonl").read_bytes().splitlines()) == sorted(whole.splitlines())


@pytest.mark.run
def test_tasks_of_reasoning_gym_are_graded_by_its_scorers(tmp_path):
    pytest.importorskip("reasoning_gym")
    tree = yaml.safe_load((FOLDER / f"{GYM}.yaml").read_text())
    sets = tree["rows"]["generator"]["params"]["datasets"]
    assert len(sets) == len({part["name"] for part in sets}) == 103
    sets[:] = [part for part in sets if part["name"] in ("chain_sum", "word_sorting", "syllogism", "spiral_matrix")]
    tree["rows"]["generator"]["params"]["num_evaluation"] = 12
    (tmp_path / "gym.yaml").write_text(yaml.safe_dump(tree))
    (own,) = load_suites([str(tmp_path / "gym.yaml")], None, {"max_tokens": 4})
    right = {p.asked: f"So <answer>{p.reference['entry']['answer']}</answer>" for p in own.prompts}
    near = {message: re.sub(r"(\w)(\W*)</answer>", r"\1x\2</answer>", text) for message, text in right.items()}
    for answers, value in ((right, 1.0), (near, 0.0)):
        with answering(answers.__getitem__) as model:
            (done,) = evaluate_suites(measured_of([model.url], tmp_path / str(value)), [own], [], Progress())
        assert done.row.verdicts == {"graded": 12}
        assert {mean for _, mean in done.row.domains["gym"]["by_prompt"]} == {value}
    models = measured_of([str(tiny_model(tmp_path / "model"))])
    (done,) = evaluate_suites(models, [own], ["train.device=cpu"], Progress())
    assert (done.row.domains["gym"]["num_prompts"], done.row.domains["gym"]["grader_failures"]) == (12, 0)


def test_a_short_context_shortens_answers_and_leaves_long_prompts_unasked(tmp_path):
    rows = [{"question": "a" * n, "answer": "1", "id": str(n)} for n in (10, 30, 90)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "r.yaml").write_text("title: R\nmax_tokens: 80\nrows: {file: r.jsonl, verifier: exact}\n")
    (own,) = load_suites([str(tmp_path / "r.yaml")], None, {})
    model = Measured("m", str(tiny_model(tmp_path / "model", context=100)), tmp_path)
    config, questions = questions_here(model, [own], config_of(model, []))
    assert [(q.prompt.id, q.is_too_long) for q in questions] == [("10", False), ("30", False), ("90", True)]
    assert {q.sampling.max_tokens for q in questions} == {70} == {config.rollout.max_response_tokens}


def test_choices_are_ordered_by_their_texts_and_are_not_part_of_the_question(tmp_path):
    rows = write_rows(tmp_path, "gpqa_diamond") / "gpqa_diamond.csv"
    source = Source.model_validate({"file": str(rows), "mapping": "gpqa", "prompt": "Choose.\n{question}"})
    prompts, _ = read_prompts([source], 0)
    letters = {p.reference["answer"] for p in prompts}
    assert letters == set("ABCD")  # the right answer has no place of its own
    assert all(p.question.startswith("What is") and "A)" not in p.question for p in prompts)
    assert all(p.asked.startswith("Choose.\nWhat is") and "\nD) " in p.asked for p in prompts)
    # Another seed, and another order of rows, gives the same messages; so does the file that a run writes of them.
    turned, _ = read_prompts([source.model_copy(update={"shuffle": True})], 5)
    assert {p.id: p.asked for p in turned} == {p.id: p.asked for p in prompts}
    (tmp_path / "again.jsonl").write_text("".join(json.dumps(row_of(p)) + "\n" for p in prompts))
    again, _ = read_prompts([Source(file=str(tmp_path / "again.jsonl"))], 0)
    assert [(p.asked, p.question, p.reference) for p in again] == [(p.asked, p.question, p.reference) for p in prompts]


def test_a_recipe_names_suites_among_its_held_out_rows(tmp_path):
    write_rows(tmp_path, "gsm8k")
    tree = {"evaluation": ["math500", {"suite": "gsm8k", "file": "gsm8k.jsonl", "limit": 3}]}
    first, second = DataConfig.model_validate(tree, context={"base": tmp_path}).evaluation
    assert (first.hub.id, first.domain) == ("HuggingFaceH4/MATH-500", "math500")
    assert (second.hub, second.domain, second.limit) == (None, "gsm8k", 3)
    prompts, _ = read_prompts([second], 0, tmp_path)
    assert [p.reference for p in prompts] == ["940", "1001", "1062"]
    assert "\\boxed{}" in prompts[0].asked
    with pytest.raises(ConfigError, match="did you mean gsm8k"):
        DataConfig.model_validate({"evaluation": ["gsm8"]})


def test_shipped_suites_name_revisions_and_sources_and_are_in_the_table_of_the_page_with_its_examples(tmp_path):
    assert {p.stem for p in FOLDER.glob("*.yaml")} == {*SUITES, GYM}
    assert load_suite("aime25", Path.cwd()).samples == 32
    page = (ROOT / "docs" / "suites.md").read_text(encoding="utf-8")
    (tmp_path / "sums.yaml").write_text(block(page, "yaml", "suite"))
    assert load_suite("sums.yaml", tmp_path).samples == 8
    sources = DataConfig.model_validate(yaml.safe_load(block(page, "yaml", "evaluation"))).evaluation
    assert [s.domain for s in sources] == ["math500", "gsm8k", "humaneval"]
    for name in (*SUITES, GYM):
        suite = load_suite(name, Path.cwd())
        if name != GYM:  # LiveCodeBench's data set is still being moved to other files
            assert (suite.rows.hub.revision is None) == (name == "livecodebench")
            assert suite.published
        how = "greedy" if suite.temperature == 0 else f"{suite.samples} at temperature {suite.temperature}"
        choice = suite.rows.verifier
        verifier = suite.rows.mapping.default_verifier if choice is None else choice.name
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert [cell.strip() for cell in line.split("|")[3:5]] == [how, f"`{verifier}`"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suite", "gsm8k"], "hf download --repo-type dataset openai/gsm8k --revision cc7b047b.* --data-dir"),
        (["--suite", "gsm8k", "--data-dir", "."], "no file gsm8k that ends in .jsonl"),
        (["--suite", "gsm9k"], "did you mean"),
        (["--suite", "absent.yaml"], "no such file"),
    ],
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["eval", "model", *arguments]) == 1
    assert re.search(said, capsys.readouterr().err)


def test_files_of_suites_are_checked(tmp_path):
    for text, said in (
        ("title: x\nrows: {file: r.jsonl, verifier: exact}\nsamples: 3\n", "samples=3 with temperature=0"),
        ("title: x\nrows: {file: r.jsonl, verifier: exact, environment: guess}\n", "without an environment"),
        ("title: x\n", "must hold `rows`"),
        ("title: x\nrows: {file: r.jsonl, verifier: exact}\nrow: 1\n", "row: Extra inputs"),
        ("title: x\nrows: {file: r.jsonl, verifier: exact, prompt: hello}\n", "prompt must hold {question}"),
    ):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(ConfigError, match=said):
            load_suite("x.yaml", tmp_path)


def test_the_page_of_one_model_is_read_as_a_run(tmp_path):
    (own,) = loaded_from(write_rows(tmp_path / "rows", "gsm8k"), "gsm8k")
    with answering(answers_of([own], "right").__getitem__) as model:
        done = evaluate_suites(measured_of([model.url], tmp_path / "out"), [own], [], Progress())
    lines = compared(done, [own])
    assert "pass@1 1.000 [0.676, 1.000]" in lines[0]
    (row,) = read_run(tmp_path / "out").evaluations
    assert row.label == "made"
    assert "length" not in row.domains["gsm8k"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "published: meta-llama/Llama-3.1-8B-Instruct 0.845" in page
    assert "name a second one to compare" in page
