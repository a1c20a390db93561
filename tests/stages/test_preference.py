"""Preference stages: pairs made here or read from files, the reference kept, resumed; and groups that are ranked."""

import json

import pytest

from tests.stages.broken import Broken, goes_on_as_if_never_broken, run
from tests.stages.marks import MARKED
from tests.stages.sessions import go, train_model
from tests.stages.start import start
from tests.stages.tiny import tiny
from verizero.pipeline.errors import DataError, RunError
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.whole_run import train

CALM = {"learning_rate": 1e-3}
NEAR = 1e-5
"""Between two computations of a margin: beta of 0.1 times 30 tokens' log-probs of about 10, times eps of float32."""
SAMPLED = {"prompts": 16, "samples": 6, "pairing": {"per_prompt": 2}}


def recipe(policy="", **preference):
    """A preference stage alone, from that policy, with marks by chance; or from one that knows nothing."""
    section = {"loss": {"name": "dpo"}, "steps": 4, "batch_size": 4, "sampled": SAMPLED, "optimizer": CALM}
    given = {"stages": ["preference"], "preference": {**section, **preference}}
    return tiny({**given, "evaluation": {"before_training": False}}, [policy, MARKED] if policy else [])


def rows(folder, kind):
    return [
        r
        for r in read_jsonl(folder / "metrics.jsonl")
        if r["kind"] == kind and r.get("stage_kind", "preference") == "preference"
    ]


@pytest.mark.run
def test_a_verifier_is_enough_right_answers_against_wrong_ones_of_the_policy(tmp_path):
    train_model(recipe(start()), tmp_path, tmp_path / "run")
    pairs = read_jsonl(tmp_path / "run/stages/preference/pairs-1.jsonl")
    assert pairs
    for pair in pairs:
        assert pair["rewards"] == [1.0, 0.0]
        assert pair["policy_version"] == 0
    steps = rows(tmp_path / "run", "step")
    assert [s["step"] for s in steps] == [1, 2, 3, 4]
    assert steps[0]["metrics"]["preference/margin"] == pytest.approx(0.0, abs=NEAR), "the reference is the policy"
    assert steps[0]["metrics"]["loss"] == pytest.approx(0.693147, abs=1e-5)
    assert steps[-1]["metrics"]["preference/margin"] > 0.01
    (made,) = rows(tmp_path / "run", "pairs")
    assert made["metrics"]["responses"] == 96
    assert made["metrics"]["pairs"] == len(pairs)


BREAKS = [("sample", 1), ("train", 2), ("train", 2)]
"""Training ends twice in each part, and what it did is in a checkpoint once it begins again."""


@pytest.mark.run
@pytest.mark.parametrize(
    ("every_part", "breaks"),
    [(False, []), (True, BREAKS), pytest.param(False, BREAKS, marks=pytest.mark.nightly)],
    ids=["sampled once", "sampled in every part", "sampled once and broken off"],
)
def test_parts_have_their_own_pairs_and_each_its_own_reference_also_after_a_break(
    tmp_path, every_part, breaks, monkeypatch
):
    monkeypatch.setattr("verizero.pipeline.stages._epochs.CHUNK_STEPS", 2)
    # Of 30 prompts, so that none comes twice.
    config = recipe(start(), parts=2, sampled={**SAMPLED, "prompts": 15, "every_part": every_part})
    if breaks:
        goes_on_as_if_never_broken(config, tmp_path, breaks)
    else:
        run(config, tmp_path / "whole")
    folder = tmp_path / "whole/stages/preference"
    first, second = (read_jsonl(folder / f"pairs-{k}.jsonl") for k in (1, 2))
    assert len({p.name.split("-")[1] for p in folder.glob("reference-*")}) == 2
    assert not {p["id"] for p in first} & {p["id"] for p in second}
    versions = {p["policy_version"] for p in first}, {p["policy_version"] for p in second}
    assert (versions[0] == versions[1]) is not every_part
    steps = [s["metrics"] for s in rows(tmp_path / "whole", "step")]
    margins = [m["preference/margin"] for m in steps]
    assert margins[0] == pytest.approx(0.0, abs=NEAR)
    assert margins[4] == pytest.approx(0.0, abs=NEAR), "the second part holds against the policy that the first left"
    assert margins[3] > 0.003
    assert any(m["tree/ratio"] > 1.1 for m in steps), "nothing was shared"


@pytest.mark.run
def test_a_reference_that_is_gone_is_not_made_anew_of_another_policy(tmp_path, monkeypatch):
    monkeypatch.setattr("verizero.pipeline.stages._epochs.CHUNK_STEPS", 1)
    with pytest.raises(Broken):
        run(recipe(start()), tmp_path / "run", ("train", 2))
    next((tmp_path / "run/stages/preference").glob("reference-1-*")).unlink()
    with pytest.raises(RunError, match="reference-1-"):
        train(recipe(start()), tmp_path, tmp_path / "run", "must", Progress())


def file_of(tmp_path, pairs):
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(p) for p in pairs))
    return {"file": "pairs.jsonl", "verifier": "math"}


PAIRS = [{"prompt": f"{a}+9=", "chosen": f"{a + 9}", "rejected": f"{a + 8}", "answer": f"{a + 9}"} for a in range(8)]
WRONG = {"prompt": "8+8=", "chosen": "17", "rejected": "16", "answer": "16"}


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
def test_pairs_of_a_file_are_graded_and_counted_and_nothing_is_lost(tmp_path):
    bad = [
        {"prompt": "1+1=", "chosen": "2", "rejected": "2", "answer": "2"},
        {"prompt": "1+2=", "chosen": "3", "rejected": "", "answer": "3"},
        {"prompt": "1+3=", "chosen": "4" * 90, "rejected": "5", "answer": "4"},
        {"prompt": "1+4=", "chosen": "6", "rejected": "7", "answer": "5"},
    ]
    config = recipe(pairs=[file_of(tmp_path, [*PAIRS, WRONG, *bad])], on_wrong_chosen="drop", epochs=1.5, steps=None)
    words = "\n".join(go(config, tmp_path))
    folder = tmp_path / "run/stages/preference"
    kept = {p["prompt"]: p["chosen"] for p in read_jsonl(folder / "pairs-1.jsonl")}
    assert kept == {p["prompt"]: p["chosen"] for p in PAIRS}
    assert len(rows(tmp_path / "run", "step")) == 3, "1.5 passes over 8 pairs, 4 a step"
    left = {line["row"]["prompt"]: line["why"] for line in read_jsonl(folder / "left_out.jsonl")}
    assert left.keys() == {"8+8=", "1+1=", "1+2=", "1+3=", "1+4="}
    assert left["1+3="].startswith("past the context: ")
    for word in ("with equal sides", "with an empty side", "past the context"):
        assert f"1 {word} (first: " in words
    assert "2 wrong by the verifier, dropped" in words


@pytest.mark.run
@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired"])
def test_labelled_rows_train_losses_of_labels_and_no_other(tmp_path, loss):
    labelled = [
        {"prompt": f"{a}+9=", "completion": f"{a + (9 if a % 2 else 8)}", "label": bool(a % 2)} for a in range(8)
    ]
    source = file_of(tmp_path, labelled)
    config = recipe(pairs=[source], loss={"name": loss})
    train_model(config, tmp_path, tmp_path / "run")
    steps = rows(tmp_path / "run", "step")
    assert [s["metrics"].get("preference/z", -1) >= 0 for s in steps] == [loss == "kto"] * len(steps)
    with pytest.raises(DataError, match="kto"):
        train(recipe(pairs=[source]), tmp_path, tmp_path / "dpo", "auto", Progress())


@pytest.mark.run
def test_a_policy_that_never_differs_makes_no_pairs_and_says_what_to_do(tmp_path):
    config = recipe(sampled={"prompts": 2, "samples": 2})
    with pytest.raises(DataError, match="0 pairs for 1 parts"):
        train_model(config, tmp_path, tmp_path / "run")


@pytest.mark.run
@pytest.mark.parametrize(("loss", "schedule"), [("dpo", "every_round"), ("simpo", None)])
def test_online_the_best_of_a_group_trains_against_its_worst(tmp_path, loss, schedule):
    section = {"loss": {"name": loss}, "rounds": 2, "steps_per_round": 2, "prompts_per_step": 3, "group_size": 6}
    section |= {"optimizer": CALM, "reference": None if schedule is None else {"schedule": schedule}}
    changes = {"stages": ["online_preference"], "sft": None, "online_preference": section}
    train_model(tiny(changes, [start(), MARKED]), tmp_path, tmp_path / "run")
    lines = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    steps = [r["metrics"] for r in lines if r["kind"] == "step"]
    assert len(steps) == 4
    for m in steps:
        assert m["pairs"] >= 1
        assert m["groups/kept"] == m["groups/trained"] + m["groups/carried_out"] - m["groups/carried_in"]
    if loss == "dpo":
        assert [m["reference/version"] for m in steps] == [1, 1, 2, 2]
        near = [abs(m["preference/margin"]) < NEAR for m in steps]
        assert near == [True, False, True, False], "as a round begins, the reference is the policy"
