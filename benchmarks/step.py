"""Measure how long a training step takes, and which phases take it.

    python benchmarks/step.py                         tokens/s and seconds a step of configs/demo.yaml
    python benchmarks/step.py --recipe my.yaml --prefect tasks
    python benchmarks/step.py --overlap --model runs/demo/model    with and without grading during generation
    python benchmarks/step.py --against trl           side by side with TRL on equal work, in one run
    python benchmarks/step.py --against trl --lengths natural

Steps are timed in one process on whatever the machine has; quote medians and ratios of one run, not single numbers.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Parse the command line and print one JSON object per measurement."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--recipe", type=Path, default=ROOT / "configs" / "demo.yaml")
    options.add_argument("--set", action="append", default=[], metavar="a.b=c")
    options.add_argument("--model", help="a Hugging Face folder to start from; default: the recipe's own, untrained")
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--prefect", default="none", choices=("none", "tasks"))
    options.add_argument("--overlap", action="store_true", help="scoring.overlap true and false, in turn")
    options.add_argument("--against", choices=("trl",))
    options.add_argument("--lengths", choices=("full", "natural"), default="full")
    options.add_argument("--rounds", type=int, default=3, help="turns of both sides, with --against")
    asked = options.parse_args()
    if asked.against:
        from benchmarks.yardstick import compare

        compare(asked.lengths, asked.steps, asked.rounds)
    elif asked.overlap:
        compare_overlap(asked)
    else:
        print(json.dumps(measure(asked, asked.prefect)))


def measure(asked: argparse.Namespace, mode: str) -> dict[str, Any]:
    """Return seconds of each phase and tokens/s over `steps` steps of the recipe, every group trained on."""
    from verizero.pipeline.config.load import load_recipe
    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.report.row_types import StepRow
    from verizero.pipeline.report.run_files import read_metrics
    from verizero.pipeline.report.summary import count_seconds

    quiet()
    overrides = ["rl.select.keep=all", "rl.rounds=1", f"rl.steps_per_round={asked.steps + 1}", "stages=[rl]"]
    overrides += ["evaluation.before_training=false", "data.evaluation=[]", "report.trackers=[]", "name=bench"]
    overrides += [f"model.path={asked.model}", "model.create=null"] if asked.model else []
    with tempfile.TemporaryDirectory() as folder:
        config = load_recipe(asked.recipe, [*asked.set, *overrides, f"output={folder}"])
        begin = time.perf_counter()
        run(config, asked.recipe.resolve().parent, mode)
        seconds = time.perf_counter() - begin
        rows = [row for row in read_metrics(Path(folder) / "bench") if isinstance(row, StepRow)]
    rows = rows[1:]  # the first step pays for what is made once
    names = sorted({p for r in rows for p in r.time})
    phases = {p: statistics.median(r.time.get(p, 0.0) for r in rows) for p in names}
    total, graders = phases.pop("total"), phases.pop("graders", 0.0)
    sampled = statistics.median(r.metrics["groups/sampled"] * r.metrics["length/mean"] for r in rows)
    sampled *= config.rl.group_size if config.rl else 1
    trained = statistics.median(r.metrics["tokens/trained"] for r in rows)
    inside, seen = sum(phases.values()), count_seconds(rows, [])
    return {
        "recipe": asked.recipe.name,
        "prefect": mode,
        "steps": len(rows),
        "seconds_per_step": round(total, 3),
        "phases": {k: round(v, 4) for k, v in phases.items()},
        "graders_at_work": round(graders, 4),
        "shares": {k: round(v / total, 3) for k, v in phases.items()},
        "share_outside_phases": round(1 - inside / total, 3),
        "prefect_share": round(seen.get("prefect", 0.0) / seen["rl"], 4),
        "generated_tokens_per_s": round(sampled / phases["generate"]),
        "trained_tokens_per_s": round(trained / phases["update"]),
        "whole_run_s": round(seconds, 1),
    }


def compare_overlap(asked: argparse.Namespace) -> None:
    """Print what generating and grading the responses of a step take with grading during generation, and after it.

    The same responses each time, the two ways in turn, in one process: medians over all steps.
    """
    from dataclasses import replace

    from verizero.pipeline.config.load import load_recipe
    from verizero.pipeline.config.recipes import run_folder
    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.report.progress import Progress
    from verizero.pipeline.run.opening import open_run
    from verizero.pipeline.stages.rl import rl_phases

    quiet()
    overrides = ["stages=[rl]", "data.evaluation=[]", "report.trackers=[]", "name=bench"]
    overrides += [f"model.path={asked.model}", "model.create=null"] if asked.model else []
    with tempfile.TemporaryDirectory() as folder:
        config = load_recipe(asked.recipe, [*asked.set, *overrides, f"output={folder}"])
        assert config.rl is not None
        ways = {on: config.model_copy(update={"scoring": config.scoring.model_copy(update={"overlap": on})})
                for on in (True, False)}  # fmt: skip
        times: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        with open_run(config, asked.recipe.resolve().parent, run_folder(config), "never", Progress()) as session:
            for step in range(asked.steps + 1):
                prompts = rl_phases(session).next_prompts(config.rl.prompts_per_step)
                rewards = []
                for on in (True, False) if step % 2 else (False, True):
                    session.setup = replace(session.setup, config=ways[on])
                    phases = rl_phases(session)  # of the setup with this way
                    groups, _ = phases.verify(prompts, phases.generate(prompts, step))
                    rewards.append([g.rewards for g in groups])
                    times[on].append(session.recorder.take_times())
                if rewards[0] != rewards[1]:
                    raise SystemExit("the two ways gave different rewards")
    for on, measured in times.items():
        rows = measured[1:]  # the first step pays for what is made once
        middle = {p: statistics.median(row[p] for row in rows) for p in ("generate", "verify", "graders")}
        result = {
            "overlap": on,
            "steps": len(rows),
            "generate_s": round(middle["generate"], 4),
            "trainer_waits_s": round(middle["verify"], 4),
            "graders_at_work_s": round(middle["graders"], 4),
            "share_waited": round(statistics.median(r["verify"] / (r["generate"] + r["verify"]) for r in rows), 3),
            "generate_and_wait_s": round(statistics.median(row["generate"] + row["verify"] for row in rows), 4),
        }
        print(json.dumps(result), flush=True)


def run(config: Any, base: Path, mode: str) -> None:
    """Execute the run, with or without Prefect."""
    from verizero.pipeline.config.recipes import run_folder
    from verizero.pipeline.report.progress import Progress
    from verizero.pipeline.whole_run import train

    orchestrator: Any = nullcontext()
    if mode != "none":
        from verizero.flows.local import prefect_server

        orchestrator = prefect_server(config, Progress())
    with orchestrator as shown:
        train(config, base, run_folder(config), "never", Progress(), shown)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
