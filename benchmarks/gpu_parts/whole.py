"""Parts that are whole runs: the same bytes twice, killed and resumed, and the demo in both number types."""

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts.machine import CHARACTERS, ROOT, Machine, check, settings_of
from benchmarks.gpu_parts.part import Part, Row, in_child

SUMS = "name: arithmetic, params: {digits: 1, num_train: 30, num_evaluation: 4, num_demonstrations: 30}"
DRY = (
    f"data.train=[{{generator: {{{SUMS}}}}}]",
    f"data.evaluation=[{{generator: {{{SUMS}, split: evaluation}}}}]",
    *("data.sampling.weights=null", "sft.steps=2", "sft.batch_size=4", "evaluation.limit=1", "evaluation.k=2"),
    *("rl.rounds=1", "rl.steps_per_round=2", "rl.prompts_per_step=2", "rl.group_size=2", "rl.select.keep=all"),
    *("evaluation.before_training=false", "rollout.max_response_tokens=8", "scoring.overlap=false"),
)
"""Overrides by which a dry run takes seconds: sums alone, so that no sandbox starts."""


def recipe(machine: Machine, name: str, run: str, *overrides: str) -> Any:
    """Return a shipped recipe for this machine, whose run lies in the folder `run` under the output's."""
    from verizero.pipeline.config.load import load_recipe

    here = (
        *(f"train.device={machine.device}", "sandbox.min_level=0", "report.trackers=[]"),
        *(f"output={machine.out / 'runs'}", f"name={run}", *machine.pick((), DRY)),
    )
    return load_recipe(ROOT / "configs" / f"{name}.yaml", [*here, *overrides])


def run(config: Any, kill_at: int | None = None) -> Iterator[Row]:
    """Do or resume a run in this process; `kill_at`: the update of RL before which the process is killed."""
    from verizero.pipeline.config.recipes import run_folder
    from verizero.pipeline.report.progress import Progress
    from verizero.pipeline.run.opening import open_run
    from verizero.pipeline.whole_run import finish, items_by_stage, run_items

    seen = 0

    def wrap(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal seen
            seen += phase == "update"
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return call

    with open_run(config, ROOT / "configs", run_folder(config), "auto", Progress()) as session:
        for _, items in items_by_stage(session.run, session.state):
            run_items(session, items, wrap)
        yield finish(session)


def outcome(folder: Path) -> tuple[str, list[Any]]:
    """Return a hash of the final weights, and the run's metrics without times."""
    from verizero.pipeline.report.row_types import VARYING

    weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return weights, [{k: v for k, v in line.items() if k not in VARYING} for line in lines]


def equal_steps(a: list[Any], b: list[Any]) -> int:
    """Return the number of lines before the first that differs."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def again(machine: Machine) -> Iterator[Row]:
    """Run demo_short twice, and once killed and resumed; with the switch for deterministic kernels and without."""
    import verizero.pipeline.whole_run  # noqa: F401  # once for the processes that are forked here

    for label in machine.pick(("on", "off"), ("on",)):
        folders = []
        runs = (("first", ()), ("second", ()), ("killed", (2,)))
        for name, kills in runs[:2] if label == "off" else runs:
            config = recipe(
                machine, "demo_short", f"again-{label}-{name}", f"train.deterministic={str(label == 'on').lower()}"
            )
            for kill in (*kills, None):
                log = machine.out / "logs" / f"{config.name}.log"
                _, end = in_child(partial(run, config, kill), 100, log)
                if end != (None if kill is None else f"its process ended with {-signal.SIGKILL}"):
                    raise RuntimeError(f"run {config.name} ended with: {end}; see {log}")
            folders.append(machine.out / "runs" / config.name)
        (weights, lines), *others = [outcome(folder) for folder in folders]
        for name, (other_weights, other_lines) in zip(("again", "killed and resumed"), others, strict=False):
            steps = equal_steps(lines, other_lines)
            yield {
                "switch": label,
                "run": name,
                "equal lines": steps,
                "of": len(lines),
                "same": weights == other_weights,
            }
            if label != "off":
                yield check(f"{name}, switch {label}: same bytes", float(weights == other_weights), at_least=1)


def demo(machine: Machine, dtype: str, arithmetic: float, induction: float) -> Iterator[Row]:
    """Train the demo whole, in that number type: pass@1 by domain, and the least that it is to be."""
    name = f"demo-{dtype}"
    (summary,) = list(run(recipe(machine, "demo", name, f"model.dtype={dtype}")))
    reached = {domain: values["pass@1"] for domain, values in summary["after"].items()}
    yield {"what": "pass@1", **reached}
    for domain, least in machine.pick({"arithmetic": arithmetic, "induction": induction}, {"arithmetic": 0.0}).items():
        yield check(f"{domain}: pass@1", reached[domain], at_least=least)


def with_vllm(machine: Machine) -> Iterator[Row]:
    """Train a made policy of 0.5B by FSDP by a recipe that names neither engine nor type."""
    import transformers

    from verizero.pipeline.data.tokenizer import character_tokenizer
    from verizero.pipeline.models.load import save_folder

    tokenizer = character_tokenizer(CHARACTERS)
    model_type, sizes = settings_of(machine.pick("Qwen/Qwen2.5-0.5B", "small"))
    settings: Any = transformers.AutoConfig.for_model(model_type, **sizes | {"vocab_size": len(tokenizer)})
    folder = machine.out / "policy"
    save_folder(transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16), tokenizer, folder)
    config = recipe(
        machine,
        "demo_short",
        "vllm",
        *("model.create=null", f"model.path={folder}", "stages=[rl]", "train.backend=fsdp", "rl.select.keep=all"),
        *("rl.rounds=1", "rl.steps_per_round=3", "rollout.max_response_tokens=64", "evaluation.limit=8"),
    )
    list(run(config))
    written = machine.out / "runs" / "vllm"
    parity = written / "parity.json"
    gap = json.loads(parity.read_text())["mean"] if parity.exists() else 0.0  # none in float32 by the embedded engine
    yield check("log-probs, engine against trainer: mean gap", gap, at_most=0.05)
    lines = [json.loads(line) for line in (written / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    yield check("steps", len(steps), at_least=3)
    yield check("models that are not compiled", steps[-1]["metrics"].get("compile/fallbacks", 0), at_most=0)
    yield {
        "what": "seconds of the last step",
        **{k: steps[-1]["time"].get(k) for k in ("generate", "update", "publish")},
    }


PARTS = (
    Part(
        "vLLM and FSDP",
        "A run that leaves engine and type to the machine trains: vLLM in the process of an FSDP rank, in bfloat16.",
        "log-probs of engine and trainer differ by 0.01 to 0.03 in the mean, as rounding does; no block falls back",
        100,
        with_vllm,
        ("vllm",),
    ),
    Part(
        "demo fp32",
        "`make demo` on the GPU learns what it learns on the CPU.",
        "pass@1 at least .85 (arithmetic) and .90 (induction), in 1 to 2.5 minutes",
        155,
        partial(demo, dtype="float32", arithmetic=0.85, induction=0.90),
    ),
    Part(
        "again",
        "The same recipe gives the same bytes twice, and after it was killed and resumed.",
        "equal bytes with deterministic kernels; without them, the lines of metrics.jsonl before the first difference",
        115,
        again,
    ),
    Part(
        "demo bf16",
        "The demo in bfloat16 with float32 masters learns as much.",
        "pass@1 within .03 of the demo in float32",
        165,
        partial(demo, dtype="bfloat16", arithmetic=0.82, induction=0.87),
    ),
)
