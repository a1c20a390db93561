"""Recipes of stages that make no sense are refused while they load, with the field or the value that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.errors import ConfigError

DPO = {"name": "dpo"}
ONLINE = {"loss": DPO, "rounds": 1, "steps_per_round": 1, "prompts_per_step": 2, "group_size": 4}
DISTILL = {"teacher": {"path": "x"}, "rounds": 1, "steps_per_round": 1, "prompts_per_step": 2, "group_size": 4}
SECTIONS: dict[str, dict[str, Any]] = {
    "preference": {"loss": DPO, "steps": 4, "batch_size": 4},
    "online_preference": ONLINE,
    "distill": DISTILL,
    "reward_model": {"steps": 4, "batch_size": 8},
    "sample": {"samples": 6},
    "pretrain": {"steps": 1},
}
"""A section that loads, for each kind of stage that the tiny recipe lacks."""
LAST = {"name": "last", "kind": "sft", "with": {"steps": 4}}
REWARD = {"name": "reward_model", "params": {"model": "stage:reward_model"}}
GRPO = "rl.algorithm={name: grpo, kl_coef: 0}"
V32 = "rl.algorithm={name: deepseek_v32}"
AHEAD = "rollout.max_staleness=1"


def recipe(stages: list[Any] | None = None, changes: dict[str, Any] | None = None, *overrides: str) -> RunConfig:
    """The tiny recipe with these stages, sections for them, changes and overrides."""
    chosen = ["sft", "rl"] if stages is None else stages
    sections = {kind: section for kind, section in SECTIONS.items() if kind in chosen}
    return tiny(merge({"stages": chosen, **sections}, changes or {}), overrides)


def guard(**settings: Any) -> dict[str, Any]:
    return {"guard": settings}


def taught(**teacher: Any) -> dict[str, Any]:
    """A section with that teacher laid over the one of DISTILL."""
    return {"distill": {"teacher": teacher}}


def served(**settings: Any) -> dict[str, Any]:
    return {"distill": {"teacher": {"path": None, "url": "http://x/v1", "model": "m"}, **settings}}


def own() -> dict[str, Any]:
    """A teacher that is the policy itself."""
    return {"teacher": {"path": None, "hint": "{question}"}}


def term(**changes: Any) -> dict[str, Any]:
    """A term of distillation in the updates of RL, from the policy itself."""
    return {"rl": {"distill": {"coef": 0.5, "teacher": {"feedback": {}}, **changes}}}


SHOWN = {"train": [{"file": "shown.jsonl", "graded": False}]}
"""Rows without verifiers and answers."""
OF_SECTIONS: list[tuple[list[Any], dict[str, Any], list[str]]] = [
    # rows that are imitated, and no rows
    *(
        (
            [kind],
            {"data": SHOWN},
            [f"stage {kind!r} grades answers", "shown.jsonl has graded: false", "data.demonstrations"],
        )
        for kind in ("rl", "sample", "preference", "online_preference", "distill", "reward_model")
    ),
    *(([kind], {"data": {"train": []}}, ["data.train is empty", repr(kind)]) for kind in ("sft", "rl", "preference")),
    # optimisers
    *(
        (["rl"], {"rl": {"optimizer": {"kind": "adamw_8bit"}}, "train": train}, [f"={train['backend']}, {why}"])
        for train, why in (
            ({"backend": "fsdp"}, "whose ranks divide moments by rows"),
            ({"backend": "deepspeed", "zero": 1}, "which has an AdamW of its own"),
        )
    ),
    (
        ["sft"],
        {"sft": {"optimizer": {"kind": "paged_adamw_8bit"}}, "train": {"device": "cpu"}},
        ["sft.optimizer.kind=paged_adamw_8bit", "sft.optimizer.kind: adamw_8bit"],
    ),
    # a base in 4 bits
    *(
        (stages, merge({"model": {"quantize": "nf4"}, "train": {"lora": {"rank": 2}}}, changes), words)
        for stages, changes, words in (
            (["rl"], {"train": {"lora": None}}, ["model.quantize=nf4", "train.lora: {rank: 16}"]),
            (
                ["rl"],
                {"train": {"backend": "deepspeed", "zero": 1}},
                ["=deepspeed, which divides", "train.backend: fsdp or"],
            ),
            (["reward_model"], {"train": {"backend": "fsdp"}}, ["stage 'reward_model'", "train.backend: torch"]),
            (["rl"], {"rl": {"algorithm": {"name": "ppo", "num_minibatches": 1}}}, ["critic_shared: true"]),
            (["sft", "distill"], taught(path=None, stage="sft"), ["stage 'distill'", "the adapters alone are kept"]),
        )
    ),
    # guard
    (["rl"], guard(limits={"max_kl": -1}), ["guard.limits", "max_kl"]),
    (["rl"], guard(limits={"max_lk": 1}), ["max_kl"]),
    (["rl"], guard(limits={"max_truncated": 40}), ["max_truncated must be above 0 and at most 1, got 40"]),
    (["rl"], guard(limits={"max_flat": 1}), ["max_flat must be above 0 and below 1, got 1"]),
    (["rl"], guard(limits={"max_entropy": 0.5}), ["max_entropy must be above 1, got 0.5"]),
    (
        ["rl"],
        {**guard(action="roll_back"), "train": {"backend": "deepspeed", "zero": 1}},
        ["backend='deepspeed'", "guard.action: stop"],
    ),
    # online preferences
    (["online_preference"], {"online_preference": {"loss": {"beta": 0}}}, ["beta = 0"]),
    (["online_preference"], {"online_preference": {"group_size": 1}}, ["group_size", ">= 2"]),
    (
        ["online_preference"],
        {"online_preference": {"loss": {"name": "simpo"}, "reference": {"schedule": "every_round"}}},
        ["'simpo'", "reference"],
    ),
    (["online_preference"], {"online_preference": {"reference": {"schedule": "none"}}}, ["'dpo'", "reference"]),
    (["online_preference"], {"online_preference": {"judge": "polcy"}}, ["polcy"]),
    (["online_preference"], {"online_preference": {"algorithm": {"name": "grpo"}}}, ["online_preference.algorithm"]),
    (["sft", "online_preference"], {"online_preference": {"judge": REWARD}}, ["online_preference.judge"]),
    # preferences
    (["preference"], {"preference": {"loss": {"name": "dop"}}}, ["did you mean dpo"]),
    (["preference"], {"preference": {"loss": {"name": None, "beta": 0.1}}}, ["preference.loss"]),
    (["preference"], {"preference": {"loss": {"beta": 0}}}, ["beta = 0"]),
    (["preference"], {"preference": {"loss": {"beta": -1}}}, ["beta = -1"]),
    (["preference"], {"preference": {"loss": {"name": "simpo"}, "parts": 2}}, ["preference.parts=2"]),
    (["preference"], {"preference": {"steps": None}}, ["steps", "epochs"]),
    (["preference"], {"preference": {"epochs": 1}}, ["steps", "epochs"]),
    (["preference"], {"preference": {"on_wrong_chosen": "drop"}}, ["pairs"]),
    (
        ["preference"],
        {"preference": {"on_wrong_chosen": "drop", "pairs": [{"file": "x.jsonl", "mapping": {"verifier": None}}]}},
        ["verifier", "x.jsonl"],
    ),
    (
        ["preference"],
        {
            "preference": {
                "on_wrong_chosen": "drop",
                "pairs": [{"file": "x.jsonl", "verifier": "math", "mapping": {"answer": None}}],
            }
        },
        ["verifier", "x.jsonl"],
    ),
    (["preference"], {"preference": {"pairs": [{"file": "x.xlsx"}]}}, ["file", "x.xlsx"]),
    (["preference"], {"preference": {"pairs": [{}]}}, ["file", "hub"]),
    (["preference"], {"preference": {"pairs": [{"file": "x.jsonl"}], "sampled": {"every_part": True}}}, ["sampled"]),
    (["preference"], {"preference": {"sampled": {"samples": 1}}}, ["sampled.samples"]),
    (["preference"], {"preference": {"sampled": {"judge": "jugde"}}}, ["jugde"]),
    (["preference"], {"preference": {"sampled": {"judged": {"rubric": "good? {response}"}}}}, ["{question}"]),
    (["sft", "preference"], {"preference": {"sampled": {"judge": REWARD}}}, ["preference.sampled.judge"]),
    # reward models
    (["rl", "reward_model"], {"rl": {"reward": REWARD}}, ["'reward_model'"]),
    (["sft", "rl"], {"rl": {"reward": REWARD}}, ["'reward_model'"]),
    (["reward_model"], {"reward_model": {"sampled": {"judge": REWARD}}}, ["reward_model", "stage"]),
    (["reward_model"], {"scoring": {"components": [{"verifier": REWARD}]}}, ["'reward_model'", "rl.reward"]),
    (["reward_model"], {"reward_model": {"epochs": 1}}, ["reward_model.steps"]),
    (["reward_model"], {"reward_model": {"on_wrong_chosen": "drop"}}, ["pairs"]),
    # rejection sampling
    (["sample"], {"sample": {"hint": "it is {answer}"}}, ["sample.hint", "{question}"]),
    (["sample"], {"sample": {"endpoint": {"url": "localhost", "model": "m"}}}, ["http"]),
    # texts
    (["sft"], {"sft": {"epochs": 2}}, ["sft.steps", "sft.epochs"]),
    (["sft"], {"sft": {"steps": None}}, ["sft.steps", "sft.epochs"]),
    (["pretrain"], {"pretrain": {"text": ["notes.pdf"]}}, ["'notes.pdf'", ".txt"]),
    # the policy that a stage starts with
    (["sft", {**LAST, "from": "rl"}, "rl"], {}, ["stages.1 (last)", "from: rl", "base, sft"]),
    (["sft", {**LAST, "from": "last"}], {}, ["from: last"]),
    (["sft", {**LAST, "from": "sft"}], {"train": {"lora": {"rank": 2}}}, ["train.lora"]),
    (["sft", {**LAST, "from": "base"}], {"train": {"backend": "deepspeed", "zero": 1}}, ["train.backend='deepspeed'"]),
    # teachers
    (["distill"], {"distill": {"teacher": None}}, ["distill.teacher", "got none"]),
    (["distill"], taught(path="x", url="http://x", model="m"), ["exactly one", "path and url"]),
    (["distill"], taught(path=None), ["exactly one", "got none"]),
    (["distill"], taught(path="x", model="m"), ["without url", "model='m'"]),
    (["distill"], taught(path=None, url="http://x"), ["needs model"]),
    (["distill"], taught(path=None, url="x:80", model="m"), ["http://", "'x:80'"]),
    (["distill"], taught(path=None, hint="The answer is {answer}."), ["hint must hold {question}"]),
    (["distill"], taught(path=None, hint="{question}", feedback={}), ["a hint or feedback", "got both"]),
    (["distill"], taught(feedback={}), ["exactly one", "hint, feedback or system"]),
    (["distill"], taught(path=None, feedback={"right": None, "message": None}), ["right and message are both null"]),
    (["distill"], taught(path=None, feedback={"right": None}), ["template holds {right}", "None"]),
    (["distill"], taught(path=None, feedback={"template": "{question}{right}"}), ["template lacks {message}"]),
    (["distill"], taught(path=None, feedback={"message": "wrong"}), ["message must hold {message}", "'wrong'"]),
    (["distill"], taught(path=None, feedback={"template": "{right}{message}"}), ["template must hold {question}"]),
    (["rl"], {**term(over="sampled"), "rollout": {"max_staleness": 1}}, ["rl.distill.over=sampled", "max_staleness=1"]),
    (["rl"], term(coef=0), ["rl.distill.coef"]),
    (
        ["rl"],
        {"rl": {**term()["rl"], "algorithm": {"name": "dapo"}, "reference": {"schedule": "none"}}},
        ["rl.reference.schedule is 'none'", "rl.distill", "ema"],
    ),
    (["distill"], taught(path=None, stage="rl"), ["stages.0 (distill)", "distill.teacher.stage names 'rl'"]),
    (["sft", "distill"], taught(path=None, stage="sfd"), ["distill.teacher.stage names 'sfd'", "name sft"]),
    (["distill"], served(), ["distill.teacher.url", "over=vocabulary", "top_k: 20"]),
    (
        ["distill"],
        {**served(over="sampled"), "rollout": {"temperature": 0.7}},
        ["distill.teacher.url", "rollout.temperature=0.7"],
    ),
    (["distill"], {"distill": {"over": "top_k"}}, ["over=top_k needs distill.top_k"]),
    (["distill"], {"distill": {"top_k": 5}}, ["over=vocabulary has no use for distill.top_k"]),
    (["distill"], {"distill": {"over": "sampled", "divergence": "forward_kl"}}, ["over=sampled", "forward_kl"]),
    (["distill"], {"distill": {"over": "sampled"}, "rollout": {"max_staleness": 1}}, ["max_staleness=1"]),
    (["distill"], {"distill": {"stale_weights": "token"}}, ["stale_weights=token", "over=vocabulary", "over: sampled"]),
    (
        ["distill"],
        {"distill": {"over": "sampled", "stale_weights": "token"}, "rollout": {"top_p": 0.5}},
        ["over=sampled", "rollout.top_p=0.5"],
    ),
    (["distill"], {"rollout": {"max_staleness": 2}, "train": {"lora": {}}}, ["max_staleness=2", "train.lora: null"]),
    (
        ["distill"],
        {"distill": {"reference": {"schedule": "frozen"}}},
        ["reference.schedule=frozen", "feedback or system"],
    ),
    (["distill"], {"distill": {**own(), "reference": {"schedule": "none"}}}, ["reference.schedule=none"]),
    (["distill"], {"distill": {"select": {"keep": "informative"}, "group_size": 1}}, ["distill.group_size >= 2"]),
    (
        ["sft", {"name": "last", "kind": "distill", "with": {"top_k": 5}}],
        {"distill": DISTILL},
        ["stages.1.with", "distill.top_k"],
    ),
    # programs
    (["rl"], {"sandbox": {"url": "localhost:80"}}, ["sandbox.url"]),
    (["rl"], {"sandbox": {"url": []}}, ["sandbox.url"]),
    (["rl"], {"sandbox": {"min_level": 4}}, ["sandbox.min_level"]),
    (["rl"], {"sandbox": {"cpu_s": 0}}, ["sandbox.cpu_s"]),
    (["rl"], {"sandbox": {"cpus": 1}}, ["sandbox.cpus"]),
    # engines and ranks
    (
        ["rl"],
        {"rollout": {"engine": "vllm_server", "vllm": {"request_timeout_s": 1800}}, "launch": {"kind": "torchrun"}},
        ["request_timeout_s=1800", "launch.phase_timeout_s=1800"],
    ),
    (
        ["rl"],
        {"rollout": {"engine": "vllm_server"}, "launch": {"kind": "slurm", "nodes": 2, "gpus_per_node": 1}},
        ["launch.nodes=2", "rollout.vllm.urls"],
    ),
    (
        ["rl"],
        {
            "rollout": {"engine": "vllm", "vllm": {"tensor_parallel": 2}},
            "launch": {"kind": "torchrun", "gpus_per_node": 3},
        },
        ["tensor_parallel=2", "3 ranks"],
    ),
]
TWO_REWARDS = "scoring.components=[{verifier: {name: length}, weight: 0.25}]"
OF_OVERRIDES: list[tuple[list[str], list[str]]] = [
    (["rl.algorithm={name: rloo, mismatch_stale: bypass}", AHEAD], ["max_staleness=1", "allow: [stale_without_ratio]"]),
    ([GRPO, AHEAD, "rollout.vllm.tensor_parallel=2"], ["tensor_parallel"]),
    ([GRPO, "train.lora={}", AHEAD], ["max_staleness=1", "train.lora: null"]),
    (
        ["model.dtype=bfloat16", "rl.reference={schedule: ema, alpha: 0.05}"],
        ["rl.reference.schedule=ema in stage 'rl'", "alpha=0.05", "model.dtype: float32"],
    ),
    (["rollout.top_p=0.9"], ["top_p=0.9", "rollout.top_k=0", "allow: [cut_sampling]"]),
    (["rollout.top_k=5", "rl.algorithm={name: dapo}"], ["keep_sampling: true", "top_p: 1"]),
    ([V32, "rollout.top_k=50", "rollout.max_kept=20"], ["top_k=50", "rollout.max_kept=20"]),
    (["rollout.top_p=0"], ["top_p"]),
    (["rollout.max_kept=0"], ["max_kept"]),
    (["rl.algorithm={name: grpo, allow: [cut_samplings]}"], ["'cut_samplings'"]),
    (["rl.max_tokens=539"], ["rl.max_tokens=539", "540"]),
    (["rl.algorithm={name: remax}", "rl.max_tokens=629"], ["max_tokens=629", "630"]),
    (
        ["rl.algorithm={name: gdpo, weights: [1, 2, 3]}", TWO_REWARDS, "scoring.truncated=null"],
        ["weights", "3 numbers for 2 rewards"],
    ),
    (["rl.algorithm={name: gdpo, overlong_buffer: 0.2}", TWO_REWARDS, "scoring.truncated=null"], ["shaping"]),
    (["rl.algorithm={name: max_rl}", "scoring.no_answer=-1"], ["scoring.no_answer is -1", "'max_rl'", "dr_grpo"]),
    (
        ["rl.algorithm={name: max_rl}", "scoring.components=[{verifier: length, weight: -0.5}]"],
        ["scoring.components.0.weight is -0.5", "'max_rl'"],
    ),
    (["scoring.components=[{verifier: lenght}]"], ["'lenght'", "did you mean length"]),
]


@pytest.mark.parametrize(("stages", "changes", "words"), OF_SECTIONS, ids=str)
def test_a_section_that_cannot_work_is_refused(stages: list[Any], changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        recipe(stages, changes)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(("overrides", "words"), OF_OVERRIDES, ids=str)
def test_settings_that_contradict_each_other_are_refused(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        recipe(None, None, *overrides)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    "overrides",
    [
        ["rl.max_tokens=540"],
        ["rl.reference={schedule: ema, alpha: 0.05}"],
        ["rl.algorithm={name: rloo, mismatch_stale: bypass, allow: [stale_without_ratio]}", AHEAD],
        ["rollout.top_p=0.9", "rl.algorithm={name: dapo, allow: [cut_sampling]}"],
        ["rollout.top_p=0.9", "rl.algorithm={name: dapo, keep_sampling: true}"],
        ["rollout.engine=vllm_server", "rollout.vllm.request_timeout_s=1799", "launch.kind=torchrun"],
        ["rollout.engine=vllm_server", "rollout.vllm.request_timeout_s=1800"],
        ["rollout.engine=vllm", "rollout.vllm.request_timeout_s=1800", "launch.kind=torchrun"],
        [
            *("rollout.engine=vllm_server", "rollout.vllm.urls=['http://a:1']"),
            "launch={kind: slurm, nodes: 2, gpus_per_node: 1}",
        ],
        ["rollout.engine=vllm", "rollout.vllm.tensor_parallel=3", "launch={kind: torchrun, gpus_per_node: 3}"],
    ],
    ids=str,
)
def test_settings_just_inside_a_limit_or_allowed_by_name_load(overrides: list[str]) -> None:
    recipe(None, None, *overrides)


def test_rows_that_are_imitated_need_no_verifier_and_given_pairs_no_prompts() -> None:
    recipe(["sft"], {"data": SHOWN})
    recipe(["sft", "rl"], {"data": {"demonstrations": SHOWN["train"]}})
    recipe(["preference"], {"data": {"train": []}, "preference": {"pairs": [{"file": "pairs.jsonl"}]}})
