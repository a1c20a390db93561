"""The few responses that are sampled before training, and what they show."""

import re

import pytest

from tests.checks.before import chat, chat_model, looked, of_chat, recipe, sums
from tests.stages.tiny import TREE, tiny
from verizero.pipeline.checks.before.parts import read_local_parts
from verizero.pipeline.commands.rate import Rated, judged
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run import algorithm
from verizero.pipeline.whole_run import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a small model that was trained by SFT to add."""
    base = tmp_path_factory.mktemp("trained")
    train(
        tiny({"stages": ["sft"], "rl": None, "sft": {"steps": 400}, "evaluation": {"k": 1}}),
        base,
        base / "run",
        "auto",
        Progress(),
    )
    return base / "run" / "model"


def after(model, longest=36, **changes):
    rollout = {"max_response_tokens": longest}
    return tiny({"stages": ["rl"], "sft": None, "rollout": rollout, **changes}, [f"model={{path: {model}}}"])


@pytest.mark.run
@pytest.mark.parametrize("backend", ["torch", "fsdp"])
def test_a_model_that_is_sometimes_right_has_nothing(trained, tmp_path, backend):
    checks, findings = looked(after(trained, train={"backend": backend}), tmp_path, without_model=False)
    assert findings == {}
    assert re.match(
        r"16 prompts rated, mean pass rate 0\.\d*[1-9]\d*; \d+ of 64 answers cut", checks["pass rates"].result
    )


def test_a_model_that_is_made_in_the_run_is_not_sampled(tmp_path):
    checks, _ = looked(tiny(), tmp_path, without_model=False)
    assert checks["pass rates"].result == "the model is made in this run"
    assert not checks["pass rates"].tried


def test_a_model_that_a_stage_trains_first_is_not_sampled(tmp_path):
    changes = {"model": {"path": chat_model(tmp_path), "create": None}}
    checks, _ = looked(
        recipe(tmp_path, sums(demonstration="1"), stages=["sft", "rl"], sft=TREE["sft"], **changes), tmp_path, False
    )
    assert checks["pass rates"].result == "stage sft trains the model before any stage samples from it"


@pytest.mark.parametrize(
    ("rates", "cause"),
    [
        ([0.5] * 5, None),
        ([0.0, 1.0], None),
        ([], None),
        ([0.0] * 5, "too_hard"),
        ([1.0], "too_easy"),
    ],
)
def test_rates_that_are_all_0_or_1_are_a_finding(rates, cause, tmp_path):
    recipe_ = read_local_parts(of_chat(tmp_path, chat_model(tmp_path)), tmp_path)
    found = judged(recipe_, Rated(rates, 0), recipe_.train[: len(rates)])
    assert [f.cause for f in found] == ([] if cause is None else [cause])
    if found:
        assert (found[0].evidence[0].file, found[0].evidence[0].line) == ("train.jsonl", 1)
        assert 0 < found[0].confidence < 1


@pytest.mark.run
def test_answers_that_are_all_wrong_are_found_also_for_an_engine_of_servers(tmp_path):
    config = of_chat(tmp_path, chat_model(tmp_path))
    checks, findings = looked(config, tmp_path, without_model=False)
    assert findings["too_hard"].level == "problem"
    assert checks["pass rates"].result.startswith("16 prompts rated, mean pass rate 0.000; ")
    rollout = config.rollout.model_copy(update={"engine": "vllm_server"})
    served, _ = looked(config.model_copy(update={"rollout": rollout}), tmp_path, without_model=False)
    assert served["pass rates"].result == checks["pass rates"].result


@pytest.mark.run
def test_answers_that_are_cut_for_lack_of_time_tell_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(algorithm, "seconds_per_token", lambda *_: 9.0)
    monkeypatch.setattr(algorithm, "PROBE_TOKENS", 2)
    checks, findings = looked(of_chat(tmp_path, chat_model(tmp_path)), tmp_path, without_model=False)
    assert "answers cut off at 2 tokens" in checks["pass rates"].result
    assert findings == {}


RAISES = """
from verizero.verifiers.base import VerifierParams, verifier


@verifier
def raises(attempt, params: VerifierParams):
    raise ValueError("7")
"""


@pytest.mark.run
def test_a_verifier_that_fails_on_sampled_responses_is_a_finding(tmp_path):
    (tmp_path / "raises.py").write_text(RAISES)
    source = {"file": "train.jsonl", "verifier": {"path": "raises.py:raises"}}
    config = recipe(tmp_path, sums(verifier=None), **chat(chat_model(tmp_path), train=[source]))
    checks, _ = looked(config, tmp_path, without_model=False)
    (finding,) = checks["pass rates"].findings
    assert (finding.cause, finding.level) == ("infrastructure_zeros", "problem")
    assert "fails on 64 of 64 sampled responses, first with: ValueError: 7" in finding.sentence


@pytest.mark.run
def test_prompts_that_a_run_leaves_out_are_not_rated(tmp_path):
    held_out = [{**row, "id": f"held{row['id']}"} for row in sums(3)]
    config = recipe(tmp_path, sums(), held_out, **chat(chat_model(tmp_path), on_overlap="drop"))
    _, findings = looked(config, tmp_path, without_model=False)
    assert [e.line > 3 for e in findings["too_hard"].evidence] == [True] * 3
