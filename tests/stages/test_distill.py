"""Distillation on the policy's own responses as a stage: with every kind of teacher, resumed, and refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.broken import goes_on_as_if_never_broken, run
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


def make_teacher(folder: Path, characters: str = CREATE["characters"]) -> str:
    """Another model of the policy's tokens, of another shape and with likes of its own."""
    tokenizer = character_tokenizer(characters)
    shape = CREATE["config"] | {"hidden_size": 24, "num_hidden_layers": 1}
    model = create_model("qwen2", shape, tokenizer, 7)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    save_folder(model, tokenizer, folder)
    return str(folder)


def recipe(
    teacher: dict[str, Any] | None, stages: list[Any] | None = None, begun: Sequence[str] = (), **distill: Any
) -> RunConfig:
    section = {**SECTION, "teacher": teacher, **distill}
    changes: dict[str, Any] = {"stages": stages or ["distill"], "rl": None, "distill": section}
    return tiny(changes | {"sft": {"steps": 40} if stages else None}, ["evaluation.before_training=false", *begun])


def steps_of(folder: Path, stage: str = "distill") -> list[dict[str, Any]]:
    rows = read_jsonl(folder / "metrics.jsonl")
    return [r["metrics"] for r in rows if r["kind"] == "step" and r["stage"] == stage]


def falls(values: list[float], share: float = 0.8) -> bool:
    return sum(values[-4:]) < share * sum(values[:4])


@pytest.mark.run
@pytest.mark.parametrize(
    "objective",
    [{}, {"over": "sampled", **SLOW}, {"over": "top_k", "top_k": 8, "divergence": "forward_kl"}],
    ids=str,
)
def test_the_student_comes_to_the_teacher_and_goes_on_after_a_break(tmp_path: Path, objective: dict[str, Any]) -> None:
    config = recipe({"path": make_teacher(tmp_path / "teacher")}, **objective)
    assert config.distill is not None
    each = config.distill.steps_per_round
    goes_on_as_if_never_broken(config, tmp_path / "runs", [("update", 2), ("publish", each + 1)])
    steps = steps_of(tmp_path / "runs" / "whole")
    assert len(steps) == 2 * each
    assert falls([m["distill/kl"] for m in steps], 0.9 if objective.get("over") == "sampled" else 0.5)
    for m in steps:
        assert m["groups/trained"] == m["groups/sampled"] == 3, "every group trains, whatever its rewards"
        assert m["rows"] == 12
        assert "reward/sampled" in m
        assert ("distill/outside" in m) == (objective.get("over") == "top_k")


@pytest.mark.run
def test_responses_of_older_policies_are_weighted_and_go_on_after_a_break(tmp_path: Path) -> None:
    teacher = {"path": make_teacher(tmp_path / "teacher")}
    weighted = {"over": "sampled", "stale_weights": "token", **SLOW, "rounds": 1}
    config = recipe(teacher, **weighted).model_dump(mode="json")
    config["rollout"]["max_staleness"] = 2
    goes_on_as_if_never_broken(RunConfig.model_validate(config), tmp_path / "runs", [("update", 5)])
    shares = [m["distill/stale"] for m in steps_of(tmp_path / "runs" / "whole")]
    assert shares == [0.0] + [1.0] * 11
    weights = [m.get("distill/stale_weight", 1.0) for m in steps_of(tmp_path / "runs" / "whole")]
    assert len({w for w in weights if w != 1.0}) == 11


@pytest.mark.run
def test_a_policy_that_reads_the_answer_teaches_itself(tmp_path: Path) -> None:
    """A copy of the policy by its own likes: the hint is no signal yet, and the divergence is that of the prompts."""
    hint = {"hint": "{question} {answer} {question}"}
    begun = [start("sft.steps=40")]
    config = recipe(hint, begun=begun, reference={"schedule": "ema", "alpha": 0.1}, steps_per_round=4)
    goes_on_as_if_never_broken(config, tmp_path, [("update", 3), ("publish", 3)])
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
def test_a_policy_that_reads_what_came_of_its_response_teaches_itself(tmp_path: Path) -> None:
    reference = {"schedule": "ema", "alpha": 0.1}
    begun = [start("sft.steps=40")]
    config = recipe({"feedback": FEEDBACK}, begun=begun, reference=reference, steps_per_round=3, rounds=1)
    goes_on_as_if_never_broken(config, tmp_path, [("update", 2)])
    for m in steps_of(tmp_path / "whole"):
        assert m["rows"] + m["distill/unhinted"] + m["distill/too_long"] == 12
        assert m["distill/with_message"] > 0
        assert m["distill/changed"] > 0
        assert m["distill/kl"] > 0
    shown = [r["prompt"] for r in read_jsonl(tmp_path / "whole" / "rollouts.jsonl")]
    assert all(len(text) < 6 for text in shown), "the policy was asked the question alone"


def test_words_of_a_teacher_that_have_no_tokens_are_refused(tmp_path: Path) -> None:
    refused(recipe({"feedback": {}}), tmp_path, "distill.teacher has characters.*'A'")
    refused(recipe({"hint": "Q: {question}"}), tmp_path, "distill.teacher has characters.*'Q'")


def refused(config: RunConfig, folder: Path, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with open_run(config, folder, folder / "run", "auto", Progress()):
            pass


def test_a_teacher_of_other_tokens_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    refused(
        recipe({"path": make_teacher(tmp_path / "teacher", CREATE["characters"] + "ABC")}),
        tmp_path,
        r"teacher.*vocabulary of \d+ tokens and the policy one of \d+.*'A'",
    )


def test_a_domain_without_a_teacher_and_a_teacher_without_a_domain_are_refused(tmp_path: Path) -> None:
    path = make_teacher(tmp_path / "teacher")
    refused(recipe(None, teachers={"arithmetics": {"path": path}}), tmp_path, "'arithmetics'.*are of arithmetic")
    both = recipe(None, teachers={"arithmetic": {"path": path}}).model_dump(mode="json")
    both["data"]["train"].append({"generator": {"name": "induction", "params": {"num_train": 5, "num_evaluation": 0}}})
    refused(RunConfig.model_validate(both), tmp_path, "no teacher for the domain 'induction'.*distill.teacher")
    programs = both | {"data": both["data"] | {"train": both["data"]["train"][1:]}}
    programs["distill"] = both["distill"] | {"teachers": {}, "teacher": {"hint": "{question} {answer}"}}
    refused(RunConfig.model_validate(programs), tmp_path, r"no prompt of the domain 'induction' has a text or number")


HINT = TeacherConfig(hint="{question} It is {answer}.", system="You know {answer}.")


def test_the_teacher_reads_what_the_recipe_says() -> None:
    prompt = Prompt("p", "1+{answer}=", "math", "2")
    read = teachers_prompt(prompt, HINT)
    assert read is not None
    assert (read.question, read.system) == ("1+{answer}= It is 2.", "You know {answer}.")
    assert teachers_prompt(Prompt("p", "?", "code", ["assert f()"]), HINT) is None
    assert teachers_prompt(prompt, TeacherConfig(path="x")) is prompt
    plain = teachers_prompt(Prompt("p", "?", "code", ["assert f()"]), TeacherConfig(system="Think."))
    assert plain is not None
    assert (plain.question, plain.system) == ("?", "Think.")
