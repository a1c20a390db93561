"""The table of all presets: the pass@1 of each from the same start, with the same prompts and budget of tokens.

    python benchmarks/presets.py                                     every recipe of configs/algorithms; hours
    python benchmarks/presets.py grpo ppo --seeds 1 --tokens 20000   two of them, briefly
    python benchmarks/presets.py --set sft.steps=50 …                another start
    python benchmarks/presets.py --job configs/think.yaml …          another job

Writes FOLDER/presets.md next to the page of `verizero compare`. A finished run is not repeated, so the same command
resumes where it was stopped.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    """Parse the command line, compare, write the table."""
    from verizero.pipeline.commands.compare import compare
    from verizero.pipeline.report.compare_page import text_table

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help="recipes in configs/algorithms, or paths; default: all, grpo first")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--tokens", type=int, default=1_000_000, help="tokens that each run generates")
    options.add_argument("--set", action="append", default=[], metavar="a.b=c")
    options.add_argument("--job", type=Path, metavar="RECIPE", help="what all train on; default: configs/demo.yaml")
    options.add_argument("--folder", type=Path, default=ROOT / "runs" / "presets")
    asked = options.parse_args()
    folder = ROOT / "configs" / "algorithms"
    everything = sorted((p.stem for p in folder.glob("*.yaml")), key=lambda name: (name != "grpo", name))
    names = asked.names or everything
    recipes = [Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml" for name in names]
    if asked.job is not None:
        recipes = [on_job(recipe, asked.job, asked.folder / "recipes") for recipe in recipes]
    rows = compare(recipes, asked.folder, overrides=asked.set, seeds=asked.seeds, max_tokens=asked.tokens)
    table = text_table(rows)
    (asked.folder / "presets.md").write_text(table + "\n")
    print(table)


def on_job(recipe: Path, job: Path, folder: Path) -> Path:
    """Write what `recipe` changes of the demo into `folder`, as changes of the recipe `job`, and return the file."""
    import yaml

    tree = yaml.safe_load(recipe.read_text())
    # Learning rates were chosen for the demo, so the job keeps its own; a preset with a KL needs a reference.
    kept = {key: tree["rl"][key] for key in ("algorithm", "select") if key in tree["rl"]}
    changed = {
        "extends": str(job.resolve()),
        "name": recipe.stem,
        "rl": {**kept, "reference": {"schedule": "every_round"}},
        "scoring": tree.get("scoring", {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / recipe.name).write_text(yaml.safe_dump(changed, sort_keys=False))
    return folder / recipe.name


if __name__ == "__main__":
    main()
