"""Results of each way of learning after SFT, from the same SFT model: preferences, rejection sampling, rewards.

    python benchmarks/stages.py                                  every recipe of FOLDERS and ALONE; hours
    python benchmarks/stages.py dpo kto --set evaluation.limit=40
    python benchmarks/stages.py --start runs/mine/model          from another model

Each recipe goes its own way at its own budget, from the end of its stages before the first that is not `pretrain` or
`sft`; what it sampled is in the table. Each runs once, so intervals speak of prompts alone. Writes FOLDER/stages.md. A
run that is done is not run again, and one that was stopped resumes from its checkpoint with the same command.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
FOLDERS = ("preferences", "stages")
"""Folders of configs/ whose recipes are compared."""
ALONE = ("r1", "instruct")
"""Recipes of configs/ itself that are, where they are there."""
HEAD = ("recipe", "stages", "pass@1 before", "after", "gain [95 %]", "responses", "steps", "seconds")


def main() -> None:
    """Parse the command line, run what is not done yet, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help="of recipes; default: all")
    options.add_argument("--start", type=Path, help="a model folder; default: SFT of configs/demo.yaml makes one")
    options.add_argument("--set", action="append", default=[], metavar="a.b=c")
    options.add_argument("--folder", type=Path, default=ROOT / "runs" / "stages")
    asked = options.parse_args()
    recipes = [p for p in all_recipes() if not asked.names or p.stem in asked.names]
    unknown = set(asked.names) - {p.stem for p in recipes}
    if unknown:
        options.error(
            f"no recipe is called {sorted(unknown)[0]!r}; there are {', '.join(p.stem for p in all_recipes())}"
        )
    folder = asked.folder.resolve()
    start = asked.start.resolve() if asked.start else made_start(folder)
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    for path in recipes:
        print(path.stem, flush=True)
        lines.append(f"| {' | '.join(reached(path, folder, start, asked.set))} |")
        (folder / "stages.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def all_recipes() -> list[Path]:
    """The recipes that are compared, in order."""
    configs = ROOT / "configs"
    paths = [p for name in FOLDERS for p in sorted((configs / name).glob("*.yaml"))]
    return [*paths, *(configs / f"{name}.yaml" for name in ALONE if (configs / f"{name}.yaml").is_file())]


def made_start(folder: Path) -> Path:
    """The model that SFT of the demo makes; made once."""
    model = folder / "start" / "model"
    if not model.is_dir():
        train(ROOT / "configs" / "demo.yaml", ["sft"], [f"output={folder}", "name=start"])
    return model


def reached(path: Path, folder: Path, start: Path, overrides: Sequence[str]) -> list[str]:
    """The recipe's cells of the table, after its run."""
    from verizero.pipeline.config.load import load_recipe
    from verizero.pipeline.report.intervals import paired_difference
    from verizero.pipeline.report.row_types import EvaluationRow, SampleRow, StepRow
    from verizero.pipeline.report.run_files import read_metrics

    config = load_recipe(path)
    stages = list(config.stages)
    while stages and stages[0].kind in ("pretrain", "sft"):
        stages.pop(0)
    gone = {s.name for s in config.stages} - {s.name for s in stages}
    own = [f"output={folder}", f"name={path.stem}", f"model.path={start}", "model.create=null"]
    own.append(f"stages={json.dumps([begun_here(s, gone).model_dump() for s in stages])}")
    run = folder / path.stem
    if not (run / "summary.json").is_file():
        train(path, [], [*overrides, *own, "evaluation.before_training=true"])
    rows = read_metrics(run)
    before, *_, after = (pass_1_by_prompt(row.domains) for row in rows if isinstance(row, EvaluationRow))
    gain = paired_difference(before, after)
    steps = [row for row in rows if isinstance(row, StepRow)]
    seconds = sum(seconds_of(row.time) for row in rows if not isinstance(row, EvaluationRow))
    sampled = sum(row.metrics["responses"] for row in rows if isinstance(row, SampleRow))
    return [
        path.stem,
        ", ".join(s.name for s in stages),
        f"{sum(before.values()) / len(before):.3f}",
        f"{sum(after.values()) / len(after):.3f}",
        f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]",
        f"{num_responses(run) + sampled:.0f}",
        f"{len(steps)}",
        f"{seconds:.0f}",
    ]


def begun_here(stage: Any, gone: Set[str]) -> Any:
    """The stage; one that begins with the policy of a stage that is left out begins with the common start."""
    return stage.model_copy(update={"start": "base"}) if stage.start in gone else stage


def seconds_of(times: Mapping[str, float]) -> float:
    """Seconds of a step or a phase; graders work during the others."""
    return times.get("total", sum(v for name, v in times.items() if not name.endswith("graders")))


def pass_1_by_prompt(domains: Mapping[str, Any]) -> dict[str, float]:
    """pass@1 of each held-out prompt at an evaluation."""
    return {f"{name}/{p}": v for name, domain in domains.items() for p, v in domain["by_prompt"]}


def num_responses(run: Path) -> int:
    """Responses that rounds and pairs were made of, as the run's newest checkpoint has it."""
    newest = max((p for p in (run / "checkpoints").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    return int(json.loads((newest / "state.json").read_text())["num_responses"])


def train(path: Path, stages: Sequence[str], overrides: Sequence[str]) -> None:
    """Run those stages of the recipe (none named: all) in a process of its own; one started before is resumed."""
    command = [sys.executable, "-m", "verizero.pipeline.cli", "train", str(path), "--no-prefect"]
    command += ["--stages", ",".join(stages)] if stages else []
    for override in overrides:
        command += ["--set", override]
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
