"""Every recipe in a tiny form on the make-believe accelerator, and the waits of a micro-batch.

Run by `test_fake_device.py` as `python -m tests.fake_device_runs`: one process for all recipes, because the device is
installed for the life of a process. Prints one JSON object.
"""

import json
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests import fake_device

if __name__ == "__main__":  # before the project is imported: its decorators take what torch has then
    fake_device.install()

import torch

import verizero.pipeline.config.sections
import verizero.pipeline.train.collate
import verizero.pipeline.train.step
from tests.source import ROOT
from tests.stages.parity import VERIFIER
from tests.train.batches import groups_of, longer, settings_of
from verizero.pipeline.config.load import parse, read_tree
from verizero.pipeline.config.recipes import OTHER_FOLDERS
from verizero.pipeline.models.load import quiet
from verizero.pipeline.models.runs import padded_width
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.algorithm import resolve_parts
from verizero.pipeline.run.build import build_backend, build_tokenizer
from verizero.pipeline.run.opening import load_policy, open_run
from verizero.pipeline.run.saving import save_final
from verizero.pipeline.train.step import update
from verizero.pipeline.train.texts import row_after, text_gradient
from verizero.pipeline.whole_run import items_by_stage, run_items

CONFIGS = ROOT / "configs"
LEFT_OUT = ("demo_vllm", "process_model")
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}
AT_MOST = {
    "steps": 1,
    "epochs": 1,
    "batch_size": 4,
    "num_lines": 20,
    "parts": 2,
    "rounds": 1,
    "steps_per_round": 1,
    "prompts_per_step": 4,
    "group_size": 4,
    "prompts": 4,
    "samples": 4,
    "ptx_batch_size": 2,
    "logits_chunk_tokens": 8,
    "rank": 2,
    "critic_warmup_steps": 1,
}
"""Field -> the most that it is in a tiny run, in whatever section."""
MOST_TOKENS = 1024
"""So many that an update is a single micro-batch."""
LAYERS_OF_WAITS = 2
"""Waits are counted where a layer follows another; what a layer mixes, it mixes alone too."""
MICRO_BATCH_TOKENS = 320
"""Two micro-batches of an update without minibatches: enough to see what happens between two."""


def names():
    """Every recipe by its path below configs/, without those that name another engine in this process.

    And without one whose reward model finds no step to learn from in a few responses.
    """
    paths = [p for p in CONFIGS.rglob("*.yaml") if p.parent.name not in OTHER_FOLDERS]
    return sorted(p.relative_to(CONFIGS).with_suffix("").as_posix() for p in paths if p.stem not in LEFT_OUT)


def shrunk(value):
    """The tree with each field of AT_MOST at most that."""
    if isinstance(value, list):
        return [shrunk(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        k: min(v, AT_MOST[k]) if k in AT_MOST and isinstance(v, (int, float)) else shrunk(v) for k, v in value.items()
    }


def tiny(name, folder, layers=1):
    """The recipe for a made model of some thousand weights, sums of one digit, this process and the fake device."""
    tree = shrunk(read_tree(CONFIGS / f"{name}.yaml"))
    model, experts = tree["model"], "moe" in str(tree["model"]) or "A3B" in str(tree["model"])
    made = {"model_type": "qwen3_moe" if experts else "qwen3" if "Qwen3" in str(model) else "qwen2"}
    made |= {"config": SIZES | {"num_hidden_layers": layers} | (EXPERTS if experts else {}), "characters": "0123456789+-*=()<>/, .\nabcdefghijklmnopqrstuvwxyz\\{}:?"}  # fmt: skip  # noqa: E501
    sums = {"digits": 1, "num_train": 30, "num_evaluation": 2, "num_demonstrations": 20, "num_text": 20}
    source = {"generator": {"name": "arithmetic", "params": sums}, "verifier": {"path": "parity.py:parity"}}
    held_out = {**source, "generator": {**source["generator"], "split": "evaluation"}}
    kept = {k: v for k, v in tree.get("rollout", {}).items() if k in ("top_p", "max_staleness")}
    how = ("gradient_checkpointing", "logits_chunk_tokens", "lora")
    changes = {
        "name": name.replace("/", "-"),
        "model": {"create": made, "dtype": "float32" if model.get("dtype", "auto") == "auto" else model["dtype"]},
        "data": {"train": [source], "evaluation": [held_out]},
        "rollout": {**kept, "max_response_tokens": 4},
        "train": {k: v for k, v in tree.get("train", {}).items() if k in how}
        | {"device": fake_device.NAME, "threads": 1, "micro_batch_tokens": MICRO_BATCH_TOKENS},
        "scoring": {**tree.get("scoring", {}), "truncated": None, "overlap": False, "workers": 1},
        "evaluation": {"k": 2, "limit": 1, "before_training": False},
        "report": {"trackers": []},
        "output": str(folder),
    }
    tree.pop("launch", None)
    if kept.get("max_staleness"):
        tree["rl"]["steps_per_round"] = 3  # so that some are generated ahead
    if "sample" in tree:
        tree["sample"]["keep"] = {**tree["sample"].get("keep", {}), "truncated": True}
    elif any(isinstance(s, dict) and s.get("kind") == "sample" for s in tree["stages"]):
        tree["sample"] = {"keep": {"truncated": True}}
    return parse({**tree, **changes}, base=folder)


def run_whole(name, folder):
    """Do a whole run: every stage, each evaluation and checkpoint. Its page is drawn from files, so is left out."""
    config = tiny(name, folder)
    with open_run(config, folder, folder / config.name, "never", Progress()) as session:
        for _, items in items_by_stage(session.run, session.state):
            run_items(session, items)
        save_final(session.run, session.workers.backend)


def learner(config):
    """A backend on the device with all that the recipe's algorithm needs, and the algorithm's parts."""
    policy = load_policy(config, build_tokenizer(config), None)
    backend = build_backend(config, policy)
    parts, rl = resolve_parts(config.of_stage("rl"), policy), config.rl
    assert parts is not None
    assert rl is not None
    parts = parts.with_params(keep_sampling=False, keep_routing=False)  # nothing was recorded
    backend.start(rl.optimizer, 10)
    backend.refresh_reference()
    if parts.critic is not None:
        backend.start_critic(parts.critic.shared, rl.optimizer, 10)
    return backend, parts


def groups_with_prompts(lost):
    """Two groups whose prompts are long enough that rows share them."""
    return longer(groups_of(num=2, lost=lost), 4)


def attempt(work):
    """The error of `work`, if there was one, and its CPU seconds."""
    begin, error = time.process_time(), None
    try:
        work()
    except Exception as exc:
        error = f"{type(exc).__name__}: {exc}"
        traceback.print_exc()
    return {"error": error, "cpu_s": round(time.process_time() - begin, 2)}


def by_file(waits, times):
    """Waits of one of `times` turns, by file and cause; lines move too often to be compared."""
    out = Counter()
    for (where, cause), count in waits.items():
        out[f"{where.split(':')[0]}: {cause}"] += count
    return {name: count / times for name, count in sorted(out.items()) if count}


def micro_batch_waits(name, folder, **how):
    """The waits of one micro-batch more in an update of the same rows. `how`: fields of `train`."""
    config = tiny(name, folder, LAYERS_OF_WAITS)
    train = config.train.model_copy(update=how)
    backend, parts = learner(config.model_copy(update={"train": train}))
    parts = parts.with_params(num_epochs=1, num_minibatches=1)
    groups = groups_with_prompts(lost=False)

    def waits(tokens):
        micros = []
        plain = verizero.pipeline.train.collate.rank_micro_batches

        def counted(*arguments, **named):
            own = plain(*arguments, **named)
            micros.append(len(own[0]))
            return own

        verizero.pipeline.train.collate.rank_micro_batches = counted
        try:
            settings = settings_of(parts, tokens)
            seen = fake_device.waits_of(lambda: [update(backend, parts, groups, settings)])
        finally:
            verizero.pipeline.train.collate.rank_micro_batches = plain
        return seen, max(micros)

    waits(MOST_TOKENS)
    # A packed row takes what several padded ones take.
    many, few = waits(30 if how.get("packing") == "on" else 128), waits(MOST_TOKENS)
    return by_file(many[0] - few[0], many[1] - few[1])


def text_waits(folder):
    """The waits of one micro-batch more in an optimiser step on the same texts."""
    config = tiny("demo", folder, LAYERS_OF_WAITS)
    backend = build_backend(config, load_policy(config, build_tokenizer(config), None))
    rows = [row_after(tuple(range(n, n + 10)), 4) for n in range(3, 11)]  # which share nothing

    def waits(tokens):
        return fake_device.waits_of(lambda: [text_gradient(backend, rows, 1.0, 0, tokens)])

    width = padded_width(10, backend.model.device)
    waits(8 * width)
    return by_file(waits(width) - waits(8 * width), 7)


def planted(folder):
    """Train on a batch that was collated on the CPU."""
    plain = verizero.pipeline.train.step.collate
    verizero.pipeline.train.step.collate = lambda groups, pad_id, device, *rest: plain(groups, pad_id, "cpu", *rest)
    try:
        backend, parts = learner(tiny("demo", folder))
        update(backend, parts, groups_with_prompts(lost=True), settings_of(parts, MICRO_BATCH_TOKENS))
    finally:
        verizero.pipeline.train.step.collate = plain


def main():
    """Print the outcome of every recipe, the waits, and the error of the planted mixture."""
    quiet()
    torch.set_num_threads(1)
    verizero.pipeline.config.sections.DEVICES = re.compile(fake_device.NAME)  # so that recipes may name it
    asked = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name, fake_device.Mode():
        folder = Path(name)
        (folder / "parity.py").write_text(VERIFIER)
        cases = {}
        for recipe in [n for n in names() if not asked or n in asked]:
            cases[recipe] = attempt(lambda recipe=recipe: run_whole(recipe, folder))
        result = {"recipes": cases, "planted": attempt(lambda: planted(folder))["error"]}
        if not asked or "waits" in asked:
            result["waits"] = {
                "micro-batch, GRPO": micro_batch_waits("demo", folder),
                "micro-batch, GRPO, padded": micro_batch_waits("demo", folder, packing="off"),
                "micro-batch, GRPO, packed": micro_batch_waits("demo", folder, packing="on"),
                "micro-batch, PPO": micro_batch_waits("algorithms/ppo", folder),
                "micro-batch, PPO, padded": micro_batch_waits("algorithms/ppo", folder, packing="off"),
                "micro-batch, texts": text_waits(folder),
                "micro-batch, PPO, packed": micro_batch_waits("algorithms/ppo", folder, packing="on"),
            }
    print("result", json.dumps(result))


if __name__ == "__main__":
    main()
