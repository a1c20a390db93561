"""Runs of several stages: items, positions, counters and files; stages that begin with the policy of an earlier one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.broken import Broken, goes_on_as_if_never_broken
from tests.stages.broken import run as run_whole
from tests.stages.sessions import train_model
from tests.stages.tiny import FOUR_STAGES, tiny
from verizero.pipeline.config.load import load_recipe, only_stages
from verizero.pipeline.errors import CheckpointError, ConfigError
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.demonstrations import demonstration_rows
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.whole_run import items_by_stage, run_items


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return train_model(tiny(FOUR_STAGES), folder, folder)


@pytest.mark.run
def test_rows_name_stage_and_kind(run):
    rows = read_jsonl(run / "metrics.jsonl")
    steps = [(r["stage"], r["stage_kind"], r["step"]) for r in rows if r["kind"] == "step"]
    assert steps[:40] == [("sft", "sft", n) for n in range(1, 41)]
    assert steps[40:44] == [("rl", "rl", n) for n in range(1, 5)]
    assert steps[44:49] == [("sft_again", "sft", n) for n in range(1, 6)]
    assert steps[49:] == [("rl_again", "rl", n) for n in (5, 6)]
    evaluated = [r["stage"] for r in rows if r["kind"] == "evaluation"]
    assert evaluated == ["base", "sft", "rl", "rl", "sft_again", "rl_again"]
    metrics = [r["metrics"] for r in rows if r.get("stage_kind") == "rl" and r["kind"] == "step"]
    assert metrics[4]["tokens/generated"] < metrics[3]["tokens/generated"]  # a budget of tokens is of one stage
    assert [m["critic/warming_up"] for m in metrics] == [1, 0, 0, 0, 1, 0]  # each stage begins with a new critic
    assert {r["stage"] for r in map(json.loads, (run / "rollouts.jsonl").open())} >= {"rl", "rl_again"}


@pytest.mark.run
def test_a_done_run_has_nothing_left_and_is_in_its_last_stage(run):
    before = (run / "metrics.jsonl").read_bytes()
    with open_run(tiny(FOUR_STAGES), run, run, "auto", Progress()) as session:
        assert session.setup.config.stage_names == ("rl_again",)
        assert (session.state.num_done, session.state.rl_step, session.state.step_in_stage) == (5, 6, 2)
    train_model(tiny(FOUR_STAGES), run, run)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_sft_trains_on_what_a_stage_left(tmp_path):
    with open_run(tiny(FOUR_STAGES), tmp_path, tmp_path, "auto", Progress()) as session:
        own = demonstration_rows(session.run, session.setup, session.recorder, "sft", None)
        left = session.run.stage_folder("collect")
        left.mkdir(parents=True)
        row = {"id": "a", "question": "1+1=", "answer": "2", "verifier": "math", "demonstration": "2"}
        (left / "demonstrations.jsonl").write_text(json.dumps(row) + "\n")
        config = session.setup.config
        sft = config.sft.model_copy(update={"demonstrations": "collect"})
        setup = replace(session.setup, config=config.model_copy(update={"sft": sft}), demonstrations=None)
        (row_left,) = demonstration_rows(session.run, setup, session.recorder, "sft", None)
    assert row_left not in own
    assert session.run.tokenizer.decode(row_left.ids).startswith("1+1=")
    assert row_left.spans == ((len("1+1="), len(row_left.ids)),)


@pytest.mark.run
def test_a_round_is_over_when_its_evaluation_is(tmp_path):
    """Said once for each round that took a step, by the process in which it ended, when its evaluation is written."""
    rounds = {"rounds": 4, "steps_per_round": 1, "select": {"keep": "all"}, "max_tokens": 3 * 18 * 30}
    config = tiny({"stages": ["rl"], "rl": rounds, "evaluation": {"every_rounds": 2}})
    heard = []
    said = "verizero.round.completed"

    def listen(name, fields):
        if name != said:
            return
        last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
        heard.append((name, fields["round"], last["kind"]))

    for number in range(2):
        with open_run(config, Path.cwd(), tmp_path, "auto", Progress()) as session:
            session.recorder.listener = listen
            items = [item for _, own in items_by_stage(session.run, session.state) for item in own]
            run_items(session, items if number else items[:4])
    assert heard == [(said, 1, "step"), (said, 2, "evaluation"), (said, 3, "step")]


BETWEEN = {"name": "between", "kind": "sft", "with": {"steps": 3}}
RL = {"rounds": 1, "steps_per_round": 2, "select": {"keep": "all"}}


def recipe(*stages, **changes):
    given = {
        "stages": list(stages),
        "sft": {"steps": 20},
        "rl": RL,
        "data": {"evaluation": []},
        "rollout": {"max_response_tokens": 10},
    }
    return tiny({**given, **changes})


def last(start, kind="sft"):
    own = {"steps": 4} if kind == "sft" else {"steps_per_round": 3}
    return {"name": "last", "kind": kind, "with": own, **({} if start is None else {"from": start})}


def weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.run
@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_stages_between_leave_no_trace_in_the_policy(tmp_path, kind):
    run_whole(recipe("sft", last(None, kind)), tmp_path / "plain")
    config = recipe("sft", BETWEEN, last("sft", kind))
    if kind == "sft":  # broken between the stages, it has weights of `between`
        goes_on_as_if_never_broken(config, tmp_path / "from", [("train", 2)])
    else:
        run_whole(config, tmp_path / "from" / "whole")
    assert weights(tmp_path / "from" / "whole") == weights(tmp_path / "plain")


@pytest.mark.run
def test_base_is_the_model_that_the_first_stage_starts_from(tmp_path):
    run_whole(recipe("sft", last("base")), tmp_path / "from")
    run_whole(recipe(last(None)), tmp_path / "plain")
    assert weights(tmp_path / "from") == weights(tmp_path / "plain")
    run_whole(recipe("sft", last(None)), tmp_path / "other")
    assert weights(tmp_path / "other") != weights(tmp_path / "plain")


@pytest.mark.run
def test_an_end_that_cannot_be_trusted_is_refused(tmp_path):
    config = recipe("sft", BETWEEN, last("sft"))
    with pytest.raises(Broken):
        run_whole(config, tmp_path / "run", ("train", 3))
    (tmp_path / "run" / "checkpoints" / "00000001" / "trainer.pt").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"checkpoint .*00000001: trainer.pt has 4 bytes"):
        run_whole(config, tmp_path / "run")


def test_a_stage_left_out_is_not_begun_with():
    path = Path(__file__).parents[2] / "configs" / "stages" / "star.yaml"
    config = load_recipe(path)
    assert [s.start for s in config.stages if s.kind == "sft"] == [None, "sft", "sft"]
    with pytest.raises(ConfigError, match="from: sft is no stage before it"):
        only_stages(config, ["reason_2", "imitate_2"], path.parent)
