"""Distillation on the policy's own responses as a stage: with every kind of teacher, resumed, and refused."""

import pytest
import torch

from tests.stages.broken import run
from tests.stages.start import start
from tests.stages.tiny import TREE, tiny
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.teaching import TeacherConfig
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.models.load import create_model, save_folder
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.teachers import teachers_prompt
from verizero.pipeline.types import Prompt

CREATE = TREE["model"]["create"]
SECTION = {
    "rounds": 2,
    "steps_per_round": 6,
    "prompts_per_step": 3,
    "group_size": 4,
    "optimizer": {"learning_rate": 6e-2},
}
SLOW = {"steps_per_round": 12, "optimizer": {"learning_rate": 2e-2}}
"""A loss on the sampled token alone is noisier, so the student takes smaller steps, and more of them."""


def make_teacher(folder, characters=CREATE["characters"]):
    """Another model of the policy's tokens, of another shape and with likes of its own."""
    tokenizer = character_tokenizer(characters)
    shape = CREATE["config"] | {"hidden_size": 24, "num_hidden_layers": 1}
    model = create_model("qwen2", shape, tokenizer, 7)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    save_folder(model, tokenizer, folder)
    return str(folder)


def recipe(teacher, stages=None, begun=(), **distill):
    section = {**SECTION, "teacher": teacher, **distill}
    changes = {"stages": stages or ["distill"], "rl": None, "distill": section}
    return tiny(changes | {"sft": {"steps": 40} if stages else None}, ["evaluation.before_training=false", *begun])


def steps_of(folder):
    rows = read_jsonl(folder / "metrics.jsonl")
    return [r["metrics"] for r in rows if r["kind"] == "step" and r["stage"] == "distill"]


def falls(values, share=0.8):
    return sum(values[-4:]) < share * sum(values[:4])


@pytest.mark.run
@pytest.mark.parametrize(
    "objective",
    [
        pytest.param({}, marks=pytest.mark.nightly),
        {"over": "sampled", **SLOW},
        {"over": "top_k", "top_k": 8, "divergence": "forward_kl"},
    ],
    ids=str,
)
def test_the_student_comes_to_the_teacher(tmp_path, objective):
    config = recipe({"path": make_teacher(tmp_path / "teacher")}, **objective)
    each = config.distill.steps_per_round
    run(config, tmp_path / "run")
    steps = steps_of(tmp_path / "run")
    assert len(steps) == 2 * each
    assert falls([m["distill/kl"] for m in steps], 0.9 if objective.get("over") == "sampled" else 0.5)
    for m in steps:
        assert m["groups/trained"] == m["groups/sampled"] == 3, "every group trains, whatever its rewards"
        assert m["rows"] == 12
        assert "reward/sampled" in m
        assert ("distill/outside" in m) == (objective.get("over") == "top_k")


@pytest.mark.run
def test_responses_of_older_policies_are_weighted(tmp_path):
    teacher = {"path": make_teacher(tmp_path / "teacher")}
    weighted = {"over": "sampled", "stale_weights": "token", "rounds": 1, "steps_per_round": 6}
    config = recipe(teacher, **weighted).model_dump(mode="json")
    config["rollout"]["max_staleness"] = 2
    run(RunConfig.model_validate(config), tmp_path / "run")
    steps = steps_of(tmp_path / "run")
    assert [m["distill/stale"] for m in steps] == [0.0] + [1.0] * 5
    assert len({m["distill/stale_weight"] for m in steps[1:]} - {1.0}) == 5


@pytest.mark.run
def test_a_policy_that_reads_the_answer_teaches_itself(tmp_path):
    """A copy of the policy by its own likes: the hint is no signal yet, and the divergence is that of the prompts."""
    hint = {"hint": "{question} {answer} {question}"}
    begun = [start("sft.steps=40")]
    config = recipe(hint, begun=begun, reference={"schedule": "ema", "alpha": 0.1}, steps_per_round=4)
    run(config, tmp_path / "whole")
    steps = steps_of(tmp_path / "whole")
    assert [m["reference/version"] for m in steps] == [float(1 + i) for i in range(8)]
    assert all(m["distill/unhinted"] == m["distill/too_long"] == 0 for m in steps)
    assert falls([m["distill/kl"] for m in steps], 1.0)
    same = recipe({"hint": "{question}"}, begun=begun, steps_per_round=1, rounds=1)
    run(same, tmp_path / "same")
    assert steps_of(tmp_path / "same")[0]["distill/kl"] == pytest.approx(0.0, abs=1e-6), "no hint, no lesson"


FEEDBACK = {
    "template": "{right}{message}{question}",
    "right": "{right}, ",
    "message": "{message}, ",
    "max_message_tokens": 9,
}


@pytest.mark.run
def test_a_policy_that_reads_what_came_of_its_response_teaches_itself(tmp_path):
    reference = {"schedule": "ema", "alpha": 0.1}
    begun = [start("sft.steps=40")]
    config = recipe({"feedback": FEEDBACK}, begun=begun, reference=reference, steps_per_round=3, rounds=1)
    run(config, tmp_path / "whole")
    for m in steps_of(tmp_path / "whole"):
        assert m["rows"] + m["distill/unhinted"] + m["distill/too_long"] == 12
        assert m["distill/with_message"] > 0
        assert m["distill/changed"] > 0
        assert m["distill/kl"] > 0
    shown = [r["prompt"] for r in read_jsonl(tmp_path / "whole" / "rollouts.jsonl")]
    assert all(len(text) < 6 for text in shown), "the policy was asked the question alone"


INDUCTION = {"generator": {"name": "induction", "params": {"num_train": 5, "num_evaluation": 0}}}
ARITHMETIC = TREE["data"]["train"]


@pytest.mark.parametrize(
    ("distill", "train", "words"),
    [
        ({"teacher": {"feedback": {}}}, ARITHMETIC, "distill.teacher has characters.*'A'"),
        ({"teacher": {"hint": "Q: {question}"}}, ARITHMETIC, "distill.teacher has characters.*'Q'"),
        ({"teacher": {"path": "other"}}, ARITHMETIC, r"vocabulary of \d+ tokens and the policy one of \d+.*'A'"),
        ({"teachers": {"arithmetics": {"path": "other"}}}, ARITHMETIC, "'arithmetics'.*are of arithmetic"),
        (
            {"teachers": {"arithmetic": {"path": "other"}}},
            [*ARITHMETIC, INDUCTION],
            "no teacher for the domain 'induction'.*distill.teacher",
        ),
        (
            {"teacher": {"hint": "{question} {answer}"}},
            [INDUCTION],
            "no prompt of the domain 'induction' has a text or number",
        ),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused_before_anything_is_trained(
    distill, train, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    make_teacher(tmp_path / "other", CREATE["characters"] + "ABC")
    config = recipe(**{"teacher": None, **distill}).model_dump(mode="json")
    config["data"]["train"] = train
    with pytest.raises(ConfigError, match=words):
        with open_run(RunConfig.model_validate(config), tmp_path, tmp_path / "run", "auto", Progress()):
            pass


HINT = TeacherConfig(hint="{question} It is {answer}.", system="You know {answer}.")


def test_the_teacher_reads_what_the_recipe_says():
    prompt = Prompt("p", "1+{answer}=", "math", "2")
    read = teachers_prompt(prompt, HINT)
    assert (read.question, read.system) == ("1+{answer}= It is 2.", "You know {answer}.")
    assert teachers_prompt(Prompt("p", "?", "code", ["assert f()"]), HINT) is None
    assert teachers_prompt(prompt, TeacherConfig(path="x")) is prompt
    plain = teachers_prompt(Prompt("p", "?", "code", ["assert f()"]), TeacherConfig(system="Think."))
    assert (plain.question, plain.system) == ("?", "Think.")
