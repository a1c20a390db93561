"""A reward model as a stage: made of pairs, left as a classifier, asked by RL, and resumed after a break."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from tests.stages.broken import run
from tests.stages.marks import MARKS
from tests.stages.start import started
from tests.stages.tiny import SUMS, tiny
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.pairs import JudgedConfig, SampledPairsConfig
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.errors import ConfigError, DataError, RunError
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.loop.sampled_groups import rewarded_by_judge
from verizero.pipeline.run.graders import Graders
from verizero.pipeline.scoring.score import Scorer, attempt_of
from verizero.pipeline.stages._pairs import lines_of_group, lines_of_steps
from verizero.pipeline.stages.reward_model import labelled, open_model
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.train.reward_model import LabelledSteps
from verizero.pipeline.types import Attempt, Group, Prompt, Rollout, ScoredRollout, Verdict
from verizero.verifiers.base import load
from verizero.verifiers.reward_model import Shown

MARKED = [{"generator": {"name": "arithmetic", "params": SUMS}, "verifier": MARKS}]
NO_RL = {"rl": None, "sft": None, "data": {"evaluation": []}}
REWARD = {"name": "reward_model", "params": {"model": "stage:reward_model", "whiten": True}}


def recipe(stages, changes=None, overrides=(), **others):
    sampled = {"sampled": {"prompts": 20, "samples": 6}, "held_out": 0.5}  # few prompts: a tenth may have no pair
    own = {"steps": 4, "batch_size": 8, **sampled, **(changes or {})}
    data = {"train": MARKED, **others.pop("data", {})}
    start = started() if "sft" in stages else ()
    return tiny({"stages": stages, "reward_model": own, "data": data, **others}, (*start, *overrides))


@pytest.mark.run
def test_rl_is_graded_by_the_model_of_the_stage_before_it(tmp_path):
    rl = {"rounds": 1, "steps_per_round": 2, "reward": REWARD, "select": {"keep": "all"}}
    config = recipe(["sft", "reward_model", "rl"], rl=rl)
    run(config, tmp_path / "whole")
    folder = tmp_path / "whole" / "stages" / "reward_model"
    pairs = read_jsonl(folder / "pairs.jsonl")
    assert pairs
    assert all(p["rewards"][0] > p["rewards"][1] for p in pairs)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert model.config.num_labels == 1
    assert float(model.score.weight.detach().abs().max()) > 0
    rows = read_jsonl(tmp_path / "whole" / "metrics.jsonl")
    (last,) = [r["metrics"] for r in rows if r["stage"] == "reward_model" and "held_out/accuracy" in r["metrics"]]
    assert 0 <= last["held_out/accuracy"] <= 1
    sampled = [r for r in read_jsonl(tmp_path / "whole" / "rollouts.jsonl") if r["stage"] == "rl"]
    assert any(r["reason"].startswith("model_score") for r in sampled)
    judged = [r for r in read_jsonl(tmp_path / "whole" / "rollouts.jsonl") if r["stage"].startswith("evaluation/")]
    assert not any(r["reason"].startswith("model_score") for r in judged)


def test_a_model_is_trained_on_the_prompt_that_it_is_asked_about():
    """With a message around the question too, of which a verifier is shown the question alone."""
    prompt = Prompt("p", "2+3=", "equations", "5", message="Add. 2+3=")
    members = []
    for i, (text, score) in enumerate([("5", 1.0), ("6", 0.0)]):
        rollout = Rollout("p", i, (1,), (2 + i,), (-0.1,), text, "stop", 0)
        verdict = Verdict("graded", score, steps=((text, score),))
        members.append(ScoredRollout(rollout, verdict, score, steps=((1, score),)))
    group = Group(prompt, tuple(members))
    item = SimpleNamespace(stage="reward_model", round=1)
    lines = [*lines_of_group(0, group, SampledPairsConfig(), item), *lines_of_steps(group)]
    assert len(lines) == 3
    assert {line["prompt"] for line in lines} == {attempt_of(prompt, "5", "stop").prompt} == {"2+3="}


def test_labels_are_those_of_the_verdicts_steps_that_end_in_a_piece():
    response = Shown(list(range(9)), [3, 5, 8], ["7+8=15 ", "2+5+1=9</think>", "85"])
    line = {"id": "p/0", "response": "7+8=15 2+5+1=9</think>85", "steps": [["7+8=15", 1.0], ["2+5+1=9", 0.0]]}
    assert labelled(response, line) == LabelledSteps((0, 1, 2, 3, 4, 5), (3, 5), (True, False))
    both = {**line, "steps": [["7+8=15", 1.0], ["2+5", 1.0], ["+1=9", 0.0]]}
    assert labelled(response, both).right == (True, False)
    with pytest.raises(DataError, match=r"p/0: a step has reward 0\.5; a label is 0 or 1"):
        labelled(response, {**line, "steps": [["7+8=15", 0.5]]})
    with pytest.raises(DataError, match="p/0: no step has a label"):
        labelled(response, {**line, "steps": []})


def step_rows():
    """Sums of two steps; the second one is wrong in every other row."""
    sums = [(a, b) for a in range(1, 7) for b in range(1, 7)]
    return [
        {"prompt": f"{a}+{b}=", "completions": [f"{a}+{b}", f"{a + b}" if i % 2 else "x"], "labels": [True, i % 2 == 1]}
        for i, (a, b) in enumerate(sums)
    ]


def step_file(folder, rows, step_end="\n"):
    return {**pair_file(folder, rows), "step_end": step_end}


@pytest.mark.run
def test_a_process_reward_model_learns_the_labels_of_a_file(tmp_path):
    config = recipe(["reward_model"], step_file(tmp_path, step_rows()), **NO_RL)
    run(config, tmp_path / "whole")
    lines = read_jsonl(tmp_path / "whole" / "stages" / "reward_model" / "steps.jsonl")
    assert lines[0] == {
        "id": "pairs.jsonl/1",
        "prompt": "1+1=",
        "response": "1+1\nx",
        "steps": [["1+1", 1.0], ["x", 0.0]],
    }
    assert len(lines) == 36
    last = read_jsonl(tmp_path / "whole" / "metrics.jsonl")[-1]["metrics"]
    assert last["held_out/accuracy"] > 0.9


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (
            [{"prompt": "1+1=", "chosen": "2", "rejected": "3"}],
            {},
            r"row 'pairs.jsonl/1' has no steps, .*mapping\.steps",
        ),
        (step_rows(), {"step_end": None}, r"row 'pairs.jsonl/1' has labelled steps, .*set reward_model\.step_end"),
        (step_rows(), {"step_end": ";"}, r"labelled steps 1 and 2 are one piece, as reward_model\.step_end=';' has no"),
    ],
)
def test_rows_that_are_not_of_the_stages_form_are_refused(rows, changes, message, tmp_path):
    with pytest.raises(DataError, match=message):
        run(recipe(["reward_model"], {**step_file(tmp_path, rows), **changes}, **NO_RL), tmp_path / "run")


STEPS_OF_FILE = {"pairs": [{"file": "a.jsonl", "verifier": "exact"}], "on_wrong_chosen": "drop"}


@pytest.mark.parametrize(
    ("own", "again", "message"),
    [
        ({"step_end": "("}, {}, r"'\(' is no regular expression .*ends a step with its line"),
        ({"step_end": "x", "sampled": {"judge": "policy"}}, {}, "sampled.judge gives none; drop sampled.judge, or"),
        ({"step_end": "x", **STEPS_OF_FILE}, {}, "on_wrong_chosen=drop is about pairs, and step_end trains on steps"),
        ({}, {"continues": "sft"}, "continues names 'sft', which leaves no model; name reward_model"),
        ({}, {"continues": "reward_again"}, "continues names 'reward_again', which is no stage before it"),
        ({}, {"continues": "reward_model", "chat": True}, "chat=True with continues: reward_model, .*chat=False"),
        ({}, {"continues": "reward_model", "step_end": "x"}, "step_end=x with continues: .*step_end=None"),
        ({}, {"replay": 0.2}, r"replay=0\.2 without reward_model\.continues"),
    ],
)
def test_what_no_reward_model_can_be_trained_on_is_refused(own, again, message):
    last = {"name": "reward_again", "kind": "reward_model", "with": again}
    with pytest.raises(ConfigError, match=message):
        recipe(["sft", "reward_model", last] if again else ["reward_model"], own)


def pair_file(folder, rows):
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"pairs": [{"file": "pairs.jsonl"}], "steps": 30, "batch_size": 16, "held_out": 0.3}


@pytest.fixture(scope="module")
def of_pairs(tmp_path_factory):
    """The folder of a run on right answers against "x", and on two pairs that teach nothing."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = [{"prompt": f"{a}+{b}=", "chosen": f"{a + b}", "rejected": "x"} for a in range(1, 7) for b in range(1, 7)]
    rows += [{"prompt": "1+1=", "chosen": "2", "rejected": "2"}, {"prompt": "2+2=", "chosen": "", "rejected": "x"}]
    run(recipe(["reward_model"], pair_file(folder, rows), **NO_RL), folder / "run")
    return folder / "run"


@pytest.mark.run
def test_pairs_of_a_file(of_pairs):
    assert len(read_jsonl(of_pairs / "stages" / "reward_model" / "pairs.jsonl")) == 36
    left_out = read_jsonl(of_pairs / "stages" / "reward_model" / "left_out.jsonl")
    assert [row["why"] for row in left_out] == ["with equal sides", "with an empty side"]
    assert read_jsonl(of_pairs / "metrics.jsonl")[-1]["metrics"]["held_out/accuracy"] > 0.9


@pytest.mark.run
def test_it_judges_groups_of_a_later_stage(of_pairs):
    here = SimpleNamespace(ranks=ALONE, folder=of_pairs, base_dir=of_pairs.parent)
    workers = SimpleNamespace(graders=Graders(Scorer(ScoringConfig(), {})))
    recorder = SimpleNamespace(timed=lambda phase: nullcontext())
    members = tuple(
        ScoredRollout(Rollout("p", i, (1,), (2,), (-0.1,), text, "stop", 0), Verdict("graded", 0.0), 0.0)
        for i, text in enumerate(["x", "5"])
    )
    group = Group(Prompt("p", "2+3=", "exact", "5"), members)
    (judged,) = rewarded_by_judge(here, workers, recorder, [group], VerifierChoice(**REWARD), JudgedConfig())
    bad, good = (m.reward for m in judged.members)
    assert good > 0.5 > bad


def test_one_prompt_cannot_be_divided(tmp_path):
    rows = [{"prompt": "1+1=", "chosen": "2", "rejected": str(n)} for n in range(3, 9)]
    with pytest.raises(DataError, match=r"6 pairs to train on and 0 held out"):
        run(recipe(["reward_model"], pair_file(tmp_path, rows), **NO_RL), tmp_path / "run")


@pytest.mark.run
def test_the_verifier_asks_as_the_model_was_trained(of_pairs, tmp_path):
    folder = Path(shutil.copytree(of_pairs / "stages" / "reward_model" / "model", tmp_path / "model"))
    known = json.loads((folder / "reward.json").read_text())
    asked = [Attempt("7", None, "3+4=", False), Attempt("x", None, "3+4=", False)]
    good, bad = load("reward_model").bind({"model": str(folder), "whiten": True}).score(asked)
    assert good.score > 0.5 > bad.score
    raw = float(good.reason.removeprefix("model_score: "))
    z = torch.tensor((raw - known["mean"]) / known["std"], dtype=torch.float64)
    assert good.score == pytest.approx(float(torch.sigmoid(z)), abs=1e-3)
    other = load("reward_model").bind({"model": str(folder), "include_thinking": True}).score(asked)
    assert other[0].is_infrastructure
    assert "was trained with False" in other[0].reason
    # Rounding depends on the number of rows, so there are two as before.
    hidden = [Attempt("<think>x</think>7", None, "3+4=", False), asked[1]]
    cut, _ = load("reward_model").bind({"model": str(folder), "whiten": True}).score(hidden)
    assert cut.score == good.score, "what the model was not shown in training it is not shown now"
    (folder / "reward.json").write_text(json.dumps({**known, "include_thinking": True}))
    whole, _ = load("reward_model").bind({"model": str(folder), "whiten": True}).score(hidden)
    assert whole.score != good.score


def test_a_checkpoint_without_the_stages_model_is_refused(tmp_path):
    for start in (None, tmp_path):
        run, state = SimpleNamespace(resumed_from=start), SimpleNamespace(step=1)
        session = SimpleNamespace(workers=SimpleNamespace(backend=None), run=run, state=state)
        with pytest.raises(RunError, match="is missing"):
            open_model(session, recipe(["reward_model"], **NO_RL).reward_model, 4)  # type: ignore[arg-type]
