"""Fingerprints: the fields that decide a stage, changes between two of them, and the record of started stages."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from tests.stages.test_stale import short
from tests.stages.tiny import tiny
from verizero.pipeline.config.load import dump, parse
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.data.pairs import Pair
from verizero.pipeline.errors import RunError
from verizero.pipeline.run.choose_checkpoint import STAGES_FILE, differences, hash_rows, read_stages_file, recipe_fields
from verizero.pipeline.types import Call, Message, Prompt


def plain_hash(rows):
    """The hash of rows that are copied field by field."""
    trees = [row if isinstance(row, str) else asdict(row) for row in rows]
    text = "".join(json.dumps(tree, sort_keys=True, default=str) + "\n" for tree in trees)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def test_rows_of_each_kind_have_the_hash_of_their_copied_fields():
    shown = (Message("assistant", "", (Call("0", "add", {"a": 1}),)), Message("tool", "é", answers="0", name="add"))
    nested = {"x": [1, {"b": None}], "y": {"z": (1, Path("p"))}}
    prompts = [Prompt("a", "1+1=", "math", "2"), Prompt("b", "?", "environment", nested, "games", shown, "s", "guess")]
    rows = [*prompts, *(Pair("c", p, "yes", None) for p in prompts), "a text"]
    for row in rows:
        assert hash_rows([row]) == plain_hash([row])
    assert hash_rows(rows) == plain_hash(rows)
    assert len({hash_rows([row]) for row in rows}) == len(rows)


def test_fields_are_those_that_decide_the_stage():
    base = {s: recipe_fields(short().of_stage(s)) for s in ("sft", "rl")}
    for override, of_sft, of_rl in (
        ("sft.steps=21", True, False),
        ("rl.group_size=4", False, True),
        ("rollout.temperature=0.5", False, True),
        ("scoring.no_answer=-1", False, True),
        ("guard.action=stop", False, True),
        ("data.sampling.order=sequential", False, True),
        ("data.template={name: r1_zero}", True, True),
        ("seed=9", True, True),
        ("train.micro_batch_tokens=64", False, False),
        ("train.packing=on", True, True),
        ("evaluation.every_rounds=3", False, False),
        ("sft.evaluate_every=5", False, False),
        ("output=elsewhere", False, False),
        ("sandbox.workers=9", False, False),
    ):
        config = short(override)
        differ = [bool(differences(base[s], recipe_fields(config.of_stage(s)))) for s in ("sft", "rl")]
        assert differ == [of_sft, of_rl], override


def test_a_record_that_cannot_be_read_is_named(tmp_path):
    assert read_stages_file(tmp_path) == []
    (tmp_path / STAGES_FILE).write_text('{"stages": [{"name": 3}]}')
    with pytest.raises(RunError, match=r"stages\.json"):
        read_stages_file(tmp_path)


SERVERS = {"rollout": {"engine": "vllm_server", "vllm": {"urls": ["http://a:1"]}}}
TEACHER = {"stages": ["sample"], "sample": {"endpoint": {"url": "http://a/v1", "model": "teacher"}}}
LAST = {"name": "last", "kind": "sft", "with": {"steps": 4}}
FROM = {"stages": ["sft", {**LAST, "from": "sft"}]}
CHANGES = [
    ({}, {"sandbox": {"min_level": 1, "workers": 3, "url": "http://a", "token_env": "T"}}, []),
    ({}, {"train": {"deterministic": False}}, ["train.deterministic was True, is False"]),
    ({}, {"sandbox": {"cpu_s": 1}}, ["sandbox.cpu_s was None, is 1.0"]),
    (SERVERS, {"rollout": {"vllm": {"urls": [], "servers": 3, "health_timeout_s": 9, "sleep": False}}}, []),
    (SERVERS, {"rollout": {"engine": "vllm"}}, ["rollout.engine was 'vllm_server', is 'vllm'"]),
    (SERVERS, {"rollout": {"vllm": {"max_model_tokens": 48}}}, ["rollout.vllm.max_model_tokens was None, is 48"]),
    (TEACHER, {"sample": {"endpoint": {"url": "https://b/v1", "parallel": 3, "timeout_s": 9}}}, []),
    (TEACHER, {"sample": {"endpoint": {"model": "other"}}}, ["sample.endpoint.model was 'teacher', is 'other'"]),
    (FROM, {"stages": ["sft", {**LAST, "from": "base"}]}, ["from was 'sft', is 'base'"]),
    (FROM, {"stages": ["sft", LAST]}, ["from was 'sft', is None"]),
]


@pytest.mark.parametrize(("before", "change", "differing"), CHANGES, ids=str)
def test_a_change_counts_if_the_last_stage_depends_on_it(before, change, differing):
    configs = tiny(before), tiny(merge(before, change))
    first, second = (recipe_fields(c.of_stage(c.stage_names[-1])) for c in configs)
    assert differences(first, second) == differing


def test_the_policy_that_a_stage_starts_with_is_written_into_the_recipe():
    config = tiny(FROM)
    assert parse(yaml.safe_load(dump(config))) == config
