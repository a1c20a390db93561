"""Recipes that make no sense are refused while they load, with the field or the value that is wrong.

This is the place for refusals of a recipe's values: a table for each section.
"""

import pytest

from tests.stages.tiny import TREE, tiny
from verizero.pipeline.config.load import parse
from verizero.pipeline.errors import ConfigError

FEW = {"rounds": 1, "steps_per_round": 1, "prompts_per_step": 2, "group_size": 4}
SECTIONS = {
    "preference": {"loss": {"name": "dpo"}, "steps": 4, "batch_size": 4},
    "online_preference": {"loss": {"name": "dpo"}, **FEW},
    "distill": {"teacher": {"path": "x"}, **FEW},
    "reward_model": {"steps": 4, "batch_size": 8},
    "sample": {"samples": 6},
    "pretrain": {"steps": 1},
}
"""A section that loads, for each kind of stage that the tiny recipe lacks."""
MAX_RL = "rl.algorithm={name: max_rl}"
NOT_GRADED = "[{file: shown.jsonl, graded: false}]"
BITS = ("model.quantize=nf4", "train.lora={rank: 2}")
ZERO = "train={backend: deepspeed, zero: 1, device: cpu}"
STAGE_MODEL = "{name: reward_model, params: {model: 'stage:reward_model'}}"
TWO_REWARDS = ("scoring.components=[{verifier: {name: length}, weight: 0.25}]", "scoring.truncated=null")
SERVED = "distill.teacher={path: null, url: 'http://x/v1', model: m}"
TERM = "rl.distill={coef: 0.5, teacher: {feedback: {}}}"
AHEAD = "rollout.max_staleness=1"
LAST = "name: last, kind: sft, with: {steps: 4}"
SERVERS, RANKS = "rollout.engine=vllm_server", "launch={kind: torchrun, gpus_per_node: 6}"
ON_GPUS = (SERVERS, "train.device=auto")
Row = tuple[str, str | tuple[str, ...], str]
"""Names of stages, or "" for SFT and RL; overrides; pieces of the message, with … between them."""
REFUSED = {
    "the recipe": [
        ("", "seed=-1", "recipe: seed: … , got -1"),
        ("", "seed=many", "recipe: seed: … , got 'many'"),
        ("", "name=''", "recipe: name: … , got ''"),
        ("", "name=../up", "recipe: name: … , got '../up'"),
        ("", "model.dtype=float16", "recipe: model.dtype: … , got 'float16'"),
        ("", "model.path=somewhere", "exactly one of model.path"),
        ("", "model.create=null", "exactly one of model.path"),
        ("", "evaluaton.k=4", "unknown key 'evaluaton'; did you mean evaluation"),
        ("", "checkpoint.zzz=1", "recipe: unknown key 'checkpoint.zzz'; known here: every_steps, keep"),
        ("", ("seed=-1", "rl.rounds=0", "evaluation.kk=3"), "seed … ; … rl.rounds … evaluation.kk"),
    ],
    "train": [
        ("", "train.device=mps", "train.device: 'mps' is no device that models run on here; give auto, cpu, cuda or"),
        ("", "train.device=cuda:x", "train.device: 'cuda:x' is no device"),
    ],
    "stages": [
        ("", "stages=[]", "stages: a run has at least one, e.g. [sft, rl], got []"),
        ("sft sft", (), "sft, sft"),
        ("sft dpi", (), "stages.1: a stage's kind is one of pretrain, sft, rl … , got 'dpi'"),
        ("", "stages=[pretrain, sft]", "stages name 'pretrain' but the recipe has no such section"),
        ("", "stages=[{name: rl, kind: sft}]", "stages.0: 'rl' means a kind of its own"),
        ("", "stages=[{name: update, kind: sft}]", "stages.0: 'update' means something else in a run's files"),
        ("", "stages=[{name: a b, kind: sft}]", "stages.0.name"),
        ("", "stages=[{name: a, kind: sft, wit: {}}]", "unknown key 'stages.0.wit'; did you mean with?"),
        ("", "stages=[{kind: sft}]", "'stages.0.name' is missing"),
        ("", "stages=[{name: a, kind: sft, with: {stepz: 1}}]", "key 'stages.0.with.stepz'; did you mean steps"),
        ("", "stages=[{name: a, kind: sft, with: {steps: 0}}]", "stages.0.with.steps: Input should be greater"),
        ("", "stages=[{name: a, kind: rl, with: {group_size: 1}}]", "stage 'a': group_size must be >= 2"),
        ("", "stages=[{name: a, kind: sft, with: {demonstrations: b}}]", "names 'b', which is no stage before it; put"),
        ("", "stages=[sft, {name: a, kind: sft, with: {demonstrations: sft}}]", "leaves no demonstrations.jsonl"),
        ("", f"stages=[sft, {{{LAST}, from: rl}}, rl]", "stages.1 (last) … from: rl … base, sft"),
        ("", f"stages=[sft, {{{LAST}, from: last}}]", "from: last"),
        ("", (f"stages=[sft, {{{LAST}, from: sft}}]", "train.lora={rank: 2}"), "train.lora"),
        ("", (f"stages=[sft, {{{LAST}, from: base}}]", ZERO), "train.backend='deepspeed'"),
    ],
    "data": [
        *(
            (kind, f"data.train={NOT_GRADED}", f"stage {kind!r} grades answers … shown.jsonl has graded: false")
            for kind in ("rl", "sample", "preference", "online_preference", "distill", "reward_model")
        ),
        ("rl", f"data.train={NOT_GRADED}", "data.demonstrations"),
        *((kind, "data.train=[]", f"data.train is empty … {kind!r}") for kind in ("sft", "rl", "preference")),
        ("", "data.train.0.verifier=exakt", "no verifier is called 'exakt'; did you mean exact"),
        ("", "data.train.0.verifier={name: exact, params: {nope: 1}}", "'nope'"),
        ("", "data.train.0.generator={name: arithmetik}", "no generator is called 'arithmetik'; did you mean arithm"),
        ("", "data.train.0.generator.parms={}", "key 'data.train.0.generator.parms'; did you mean params"),
    ],
    "optimisers and backends": [
        *(
            ("rl", f"rl.optimizer.learning_rate={value}", f"recipe: rl.optimizer.learning_rate: … , got {got}")
            for value, got in (("0", "0"), (".inf", "inf"), (".nan", "nan"))
        ),
        ("rl", ("rl.optimizer.kind=adamw_8bit", "train.backend=fsdp"), "=fsdp, whose ranks divide moments by rows"),
        ("", "train.zero=2", "train.zero=2 with train.backend=auto"),
        ("", "train={backend: fsdp, zero: 3}", "train.zero=3 with train.backend=fsdp; set train.backend: deepspeed"),
        ("", "train.offload=optimizer", "train.offload=optimizer with train.backend=auto"),
        ("", "train={backend: fsdp, offload: all}", "train.offload=all with train.backend=fsdp … : optimizer"),
        ("", "train={backend: deepspeed, zero: 2, offload: all}", "set train.zero: 3"),
        ("", "train.backend=deepspeed", "divides nothing; set train.zero: 1, 2 or 3"),
        ("", ("train.replicas=2", "train.backend=torch"), "train.replicas=2 … train.backend: fsdp"),
        ("rl", ("rl.optimizer.kind=adamw_8bit", ZERO), "=deepspeed, which has an AdamW of its own"),
        ("sft", "sft.optimizer.kind=paged_adamw_8bit", "sft.optimizer.kind=paged_adamw_8bit … kind: adamw_8bit"),
        ("", ("model.dtype=bfloat16", "rl.reference={schedule: ema, alpha: 0.05}"), "schedule=ema in stage 'rl'"),
        ("", ("model.dtype=bfloat16", "rl.reference={schedule: ema, alpha: 0.05}"), "alpha=0.05 … dtype: float32"),
        ("rl", "model.quantize=nf4", "model.quantize=nf4 … train.lora: {rank: 16}"),
        (
            "rl",
            ("model.quantize=nf4", "train={lora: {rank: 2}, backend: deepspeed, zero: 1}"),
            "=deepspeed, which divides",
        ),
        ("reward_model", (*BITS, "train.backend=fsdp"), "stage 'reward_model' … train.backend: torch"),
        ("rl", (*BITS, "rl.algorithm={name: ppo, num_minibatches: 1}"), "critic_shared: true"),
        ("sft distill", (*BITS, "distill.teacher={stage: sft}"), "stage 'distill' … the adapters alone are kept"),
    ],
    "rl": [
        ("rl", "rl=[1]", "recipe: rl: … , got [1]"),
        ("rl", "rl.rounds=0", "recipe: rl.rounds: … , got 0"),
        ("rl", "rl.group_size=1", "group_size must be >= 2 to form a baseline, got 1; set rl.group_size"),
        ("rl", ("rl.algorithm={name: reinforce}", "rl.group_size=1"), "a group of 1 is never informative"),
        ("rl", "rl.max_tokens=539", "rl.max_tokens=539 … 540"),
        ("rl", ("rl.algorithm={name: remax}", "rl.max_tokens=629"), "max_tokens=629 … 630"),
        *(
            ("rl", f"rl.reference={{schedule: {schedule}}}", f"reference.schedule={schedule} needs reference.{field}")
            for schedule, field in (("every_n_steps", "every"), ("ema", "alpha"))
        ),
        (
            "rl",
            "rl.reference={schedule: every_n_steps, every: 5, alpha: 1}",
            "every_n_steps has no use for reference.alpha",
        ),
        ("rl", "rl.reference={schedule: none}", "schedule … 'none' … 'grpo'"),
    ],
    "rl.algorithm": [
        ("rl", "rl.algorithm={name: grp}", "no algorithm is called 'grp'; did you mean grpo"),
        ("rl", "rl.algorithm={name: grpo, clip_hi: 1}", "no parameter 'clip_hi'; did you mean clip_high"),
        ("rl", "rl.algorithm={name: null}", "rl.algorithm needs a name"),
        (
            "rl",
            ("rl.algorithm={name: grpo_process}", *TWO_REWARDS),
            "components change the reward of the whole response",
        ),
        ("rl", "rl.algorithm={name: gdpo}", "takes several rewards one by one and the recipe has one"),
        ("rl", "rl.algorithm={name: grpo, num_minibatches: 4}", "=4 is more than rl.prompts_per_step=3"),
        ("rl", "rl.algorithm={name: grpo, allow: [cut_samplings]}", "'cut_samplings'"),
        ("rl", ("rl.algorithm={name: rloo, mismatch_stale: bypass}", AHEAD), "allow: [stale_without_ratio]"),
        ("rl", ("rl.algorithm={name: grpo}", AHEAD, "rollout.vllm.tensor_parallel=2"), "tensor_parallel"),
        ("rl", ("rl.algorithm={name: grpo}", AHEAD, "train.lora={}"), "max_staleness=1 … train.lora: null"),
        ("rl", "rollout.top_p=0.9", "top_p=0.9 … rollout.top_k=0 … allow: [cut_sampling]"),
        ("rl", ("rollout.top_k=5", "rl.algorithm={name: dapo}"), "keep_sampling: true … top_p: 1"),
        (
            "rl",
            ("rl.algorithm={name: deepseek_v32}", "rollout.top_k=50", "rollout.max_kept=20"),
            "top_k=50 … max_kept=20",
        ),
        ("rl", ("rl.algorithm={name: gdpo, weights: [1, 2, 3]}", *TWO_REWARDS), "weights … 3 numbers for 2 rewards"),
        ("rl", ("rl.algorithm={name: gdpo, overlong_buffer: 0.2}", *TWO_REWARDS), "shaping"),
        ("rl", (MAX_RL, "scoring.no_answer=-1"), "no_answer is -1 … 'max_rl' … dr_grpo"),
        ("rl", (MAX_RL, "scoring.components=[{verifier: length, weight: -0.5}]"), "components.0.weight is -0.5"),
    ],
    "scoring and the sandbox": [
        ("", "scoring.no_answer=-.inf", "recipe: scoring.no_answer: … , got -inf"),
        ("", "scoring.components=[{verifier: lenght}]", "'lenght' … did you mean length"),
        ("rl", "sandbox.url='localhost:80'", "sandbox.url"),
        ("rl", "sandbox.url=[]", "sandbox.url"),
        ("rl", "sandbox.min_level=4", "sandbox.min_level"),
        ("rl", "sandbox.cpu_s=0", "sandbox.cpu_s"),
        ("rl", "sandbox.cpus=1", "sandbox.cpus"),
        ("rl", "sandbox.memory_mib=1099511627776", "recipe: sandbox.memory_mib: … , got 1099511627776"),
    ],
    "guard": [
        ("rl", "guard.limits={max_kl: -1}", "guard.limits … max_kl"),
        ("rl", "guard.limits={max_lk: 1}", "max_kl"),
        ("rl", "guard.limits={max_truncated: 40}", "max_truncated must be above 0 and at most 1, got 40"),
        ("rl", "guard.limits={max_flat: 1}", "max_flat must be above 0 and below 1, got 1"),
        ("rl", "guard.limits={max_entropy: 0.5}", "max_entropy must be above 1, got 0.5"),
        ("rl", ("guard.action=roll_back", ZERO), "backend='deepspeed' … guard.action: stop"),
    ],
    "online_preference": [
        ("online_preference", "online_preference.loss.beta=0", "beta = 0"),
        ("online_preference", "online_preference.group_size=1", "group_size … >= 2"),
        (
            "online_preference",
            ("online_preference.loss={name: simpo}", "online_preference.reference={schedule: every_round}"),
            "'simpo' … reference",
        ),
        ("online_preference", "online_preference.reference={schedule: none}", "'dpo' … reference"),
        ("online_preference", "online_preference.judge=polcy", "polcy"),
        ("online_preference", "online_preference.algorithm={name: grpo}", "online_preference.algorithm"),
        ("sft online_preference", f"online_preference.judge={STAGE_MODEL}", "online_preference.judge"),
    ],
    "preference": [
        ("preference", "preference.loss={name: dop}", "did you mean dpo"),
        ("preference", "preference.loss={beta: 0.1}", "preference.loss"),
        ("preference", "preference.loss.beta=0", "beta = 0"),
        ("preference", ("preference.loss={name: simpo}", "preference.parts=2"), "preference.parts=2"),
        ("preference", "preference.on_wrong_chosen=drop", "pairs"),
        *(
            ("preference", ("preference.on_wrong_chosen=drop", f"preference.pairs=[{pairs}]"), "verifier … x.jsonl")
            for pairs in (
                "{file: x.jsonl, mapping: {verifier: null}}",
                "{file: x.jsonl, verifier: math, mapping: {answer: null}}",
            )
        ),
        ("preference", "preference.pairs=[{file: x.xlsx}]", "file … x.xlsx"),
        ("preference", "preference.pairs=[{}]", "file … hub"),
        ("preference", ("preference.pairs=[{file: x.jsonl}]", "preference.sampled={every_part: true}"), "sampled"),
        ("preference", "preference.sampled={samples: 1}", "sampled.samples"),
        ("preference", "preference.sampled={judge: jugde}", "jugde"),
        ("preference", "preference.sampled={judged: {rubric: 'good? {response}'}}", "{question}"),
        ("sft preference", f"preference.sampled={{judge: {STAGE_MODEL}}}", "preference.sampled.judge"),
    ],
    "reward_model": [
        ("rl reward_model", f"rl.reward={STAGE_MODEL}", "'reward_model'"),
        ("sft rl", f"rl.reward={STAGE_MODEL}", "'reward_model'"),
        ("reward_model", f"reward_model.sampled={{judge: {STAGE_MODEL}}}", "reward_model … stage"),
        ("reward_model", f"scoring.components=[{{verifier: {STAGE_MODEL}}}]", "'reward_model' … rl.reward"),
        ("reward_model", "reward_model.on_wrong_chosen=drop", "pairs"),
    ],
    "sample, sft and pretrain": [
        ("sample", "sample.hint='it is {answer}'", "sample.hint … {question}"),
        ("sample", "sample.endpoint={url: localhost, model: m}", "http"),
        ("sft", "sft.epochs=2", "sft.steps … sft.epochs"),
        ("sft", "sft.steps=null", "sft.steps … sft.epochs"),
        ("pretrain", "pretrain.text=[notes.pdf]", "'notes.pdf' … .txt"),
    ],
    "teachers": [
        ("distill", "distill.teacher=null", "distill.teacher … got none"),
        ("distill", "distill.teacher={path: x, url: 'http://x', model: m}", "exactly one … path and url"),
        ("distill", "distill.teacher={}", "exactly one … got none"),
        ("distill", "distill.teacher={path: x, model: m}", "without url … model='m'"),
        ("distill", "distill.teacher={url: 'http://x'}", "needs model"),
        ("distill", "distill.teacher={url: 'x:80', model: m}", "http:// … 'x:80'"),
        ("distill", "distill.teacher={hint: 'The answer is {answer}.'}", "hint must hold {question}"),
        ("distill", "distill.teacher={hint: '{question}', feedback: {}}", "a hint or feedback … got both"),
        ("distill", "distill.teacher={path: x, feedback: {}}", "exactly one … hint, feedback or system"),
        ("distill", "distill.teacher={feedback: {right: null, message: null}}", "right and message are both null"),
        ("distill", "distill.teacher={feedback: {right: null}}", "template holds {right} … None"),
        ("distill", "distill.teacher={feedback: {template: '{question}{right}'}}", "template lacks {message}"),
        ("distill", "distill.teacher={feedback: {message: wrong}}", "message must hold {message} … 'wrong'"),
        ("distill", "distill.teacher={feedback: {template: '{right}{message}'}}", "template must hold {question}"),
        ("distill", "distill.teacher={stage: rl}", "stages.0 (distill) … distill.teacher.stage names 'rl'"),
        ("sft distill", "distill.teacher={stage: sfd}", "distill.teacher.stage names 'sfd' … name sft"),
        ("distill", SERVED, "distill.teacher.url … over=vocabulary … top_k: 20"),
        ("distill", (SERVED, "distill.over=sampled", "rollout.temperature=0.7"), "rollout.temperature=0.7"),
    ],
    "distill": [
        ("rl", (TERM, "rl.distill.over=sampled", AHEAD), "rl.distill.over=sampled … max_staleness=1"),
        ("rl", (TERM, "rl.distill.coef=0"), "rl.distill.coef"),
        (
            "rl",
            (TERM, "rl.algorithm={name: dapo}", "rl.reference={schedule: none}"),
            "schedule is 'none' … rl.distill … ema",
        ),
        ("distill", "distill.over=top_k", "over=top_k needs distill.top_k"),
        ("distill", "distill.top_k=5", "over=vocabulary has no use for distill.top_k"),
        ("distill", ("distill.over=sampled", "distill.divergence=forward_kl"), "over=sampled … forward_kl"),
        ("distill", ("distill.over=sampled", AHEAD), "max_staleness=1"),
        ("distill", "distill.stale_weights=token", "stale_weights=token … over=vocabulary … over: sampled"),
        ("distill", ("distill.over=sampled", "distill.stale_weights=token", "rollout.top_p=0.5"), "rollout.top_p=0.5"),
        ("distill", ("rollout.max_staleness=2", "train.lora={}"), "max_staleness=2 … train.lora: null"),
        ("distill", "distill.reference={schedule: frozen}", "reference.schedule=frozen … feedback or system"),
        (
            "distill",
            ("distill.teacher={hint: '{question}'}", "distill.reference={schedule: none}"),
            "reference.schedule=none",
        ),
        ("distill", ("distill.select={keep: informative}", "distill.group_size=1"), "distill.group_size >= 2"),
        ("sft distill", "stages.1={name: last, kind: distill, with: {top_k: 5}}", "stages.1.with … distill.top_k"),
    ],
    "engines and ranks": [
        ("", "rollout.temperature=0", "recipe: rollout.temperature: … , got 0"),
        ("", "rollout.engine=vlm", "recipe: rollout.engine: … , got 'vlm'"),
        ("", "rollout.top_p=0", "top_p"),
        ("", "rollout.max_kept=0", "max_kept"),
        ("rl", (SERVERS, "rollout.vllm.request_timeout_s=1800", "launch.kind=torchrun"), "launch.phase_timeout_s=1800"),
        ("", "launch={kind: none, nodes: 2}", "torchrun or slurm"),
        ("", "launch={kind: torchrun, nodes: 2}", "launch.address"),
        ("", "launch={kind: local}", "launch.kind"),
        ("rl", (SERVERS, "launch={kind: slurm, nodes: 2, gpus_per_node: 1}"), "launch.nodes=2 … rollout.vllm.urls"),
        ("rl", ("launch={kind: slurm, nodes: {generate: 1}}",), "generate=1 and rollout.engine=auto, … vllm_server"),
        ("rl", (SERVERS, "launch={kind: slurm, nodes: {generate: 2}}", "rollout.vllm.servers=3"), "servers=3: … drop"),
        (
            "rl",
            ("rollout.engine=vllm", "rollout.vllm.tensor_parallel=2", "launch={kind: torchrun, gpus_per_node: 3}"),
            "tensor_parallel=2 … 3 ranks",
        ),
    ],
    "GPUs of servers": [
        ("", (*ON_GPUS, f"rollout.vllm={vllm}", launch), words)
        for vllm, launch, words in (
            ("{servers: 2, devices: [[5], [6]]}", RANKS, "gpus_per_node=6 both use GPU 5 … share_gpus: true"),
            ("{devices: [[0]]}", "launch={}", "both use GPU 0"),
            ("{servers: 3, devices: [[6], [7]]}", RANKS, "devices=[[6], [7]] is not one list for each of … servers=3"),
            ("{servers: 2, devices: [[6], [7]], tensor_parallel: 2}", RANKS, "tensor_parallel=2 GPUs each"),
            ("{servers: 2, devices: [[6], [6]]}", RANKS, "names a GPU twice"),
            ("{tensor_parallel: 2, devices: [[6, 6]], share_gpus: true}", RANKS, "names a GPU twice"),
            ("{devices: [[-1]]}", RANKS, "below 0"),
            ("{devices: [[6]], urls: ['http://a:1']}", RANKS, "has rollout.vllm.urls instead; drop devices"),
            ("{share_gpus: true}", "launch={}", "share_gpus=true without rollout.vllm.devices"),
            ("{devices: [[6]]}", "rollout.engine=torch", "rollout.engine=torch starts none"),
            (
                "{servers: 2, devices: [[6], [7]], transfer: nccl}",
                "train.device=cpu",
                "transfer=nccl moves weights between GPUs",
            ),
            (
                "{devices: [[0]], share_gpus: true, transfer: nccl}",
                "launch={}",
                "GPU 0 of rank 0, which sends … transfer: gloo",
            ),
        )
    ],
}


def recipe(stages, overrides):
    kinds = stages.split() or ["sft", "rl"]
    sections = {kind: SECTIONS[kind] for kind in kinds if kind in SECTIONS}
    return tiny({"stages": kinds, **sections}, (overrides,) if isinstance(overrides, str) else overrides)


@pytest.mark.parametrize(("stages", "overrides", "words"), [row for rows in REFUSED.values() for row in rows], ids=str)
def test_what_cannot_work_is_refused_by_field_or_value(stages, overrides, words):
    with pytest.raises(ConfigError) as refusal:
        recipe(stages, overrides)
    assert all(word in str(refusal.value) for word in words.split(" … ")), refusal.value


def test_a_section_that_is_not_there_is_named_and_a_huge_value_is_cut_short():
    for field in ("name", "model", "data", "rollout"):
        with pytest.raises(ConfigError, match=f"^mine.yaml: '{field}'"):
            parse({k: v for k, v in TREE.items() if k != field}, source="mine.yaml")
    with pytest.raises(ConfigError) as refusal:
        recipe("", f"seed={'x' * 100_000}")
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("stages", "overrides"),
    [
        ("", "rl.max_tokens=540"),
        ("", "rl.reference={schedule: ema, alpha: 0.05}"),
        ("", "rl.reference={schedule: every_n_steps, every: 5}"),
        ("", ("rl.algorithm={name: reinforce}", "rl.group_size=1", "rl.select.keep=all")),
        ("", ("rl.algorithm={name: rloo, mismatch_stale: bypass, allow: [stale_without_ratio]}", AHEAD)),
        ("", ("rl.algorithm={name: grpo_process, credit_outcome: 1}", *TWO_REWARDS)),
        ("", ("rollout.top_p=0.9", "rl.algorithm={name: dapo, allow: [cut_sampling]}")),
        ("", ("rollout.top_p=0.9", "rl.algorithm={name: dapo, keep_sampling: true}")),
        ("", (SERVERS, "rollout.vllm.request_timeout_s=1799", "launch.kind=torchrun")),
        ("", (SERVERS, "rollout.vllm.request_timeout_s=1800")),
        ("", ("rollout.engine=vllm", "rollout.vllm.request_timeout_s=1800", "launch.kind=torchrun")),
        ("", (SERVERS, "rollout.vllm.urls=['http://a:1']", "launch={kind: slurm, nodes: 2, gpus_per_node: 1}")),
        ("", ("rollout.engine=vllm", "rollout.vllm.tensor_parallel=3", "launch={kind: torchrun, gpus_per_node: 3}")),
        ("", (*ON_GPUS, "rollout.vllm={devices: [[0]], share_gpus: true}")),
        ("", (SERVERS, "rollout.vllm={devices: [[0]]}")),
        *(
            ("", (*ON_GPUS, f"rollout.vllm={{servers: 2, devices: [[6], [7]], transfer: {transfer}}}", RANKS))
            for transfer in ("auto", "gloo", "nccl")
        ),
        ("sft", "rl.algorithm={name: grp}"),
        ("sft", f"data.train={NOT_GRADED}"),
        ("sft rl", f"data.demonstrations={NOT_GRADED}"),
        ("preference", ("data.train=[]", "preference.pairs=[{file: pairs.jsonl}]")),
    ],
    ids=str,
)
def test_what_is_just_inside_a_limit_or_allowed_by_name_loads(stages, overrides):
    recipe(stages, overrides)
