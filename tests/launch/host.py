"""What the runs of these tests are asked; and one of several hosts, which loads nothing that trains.

It starts its ranks, with a fuse (tests/launch/rank.py), and says how they ended:

python -m tests.launch.host RECIPE a.b=c …
"""

import sys
from pathlib import Path

from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.errors import RunError
from verizero.pipeline.launch import launch

CHANGES = (
    "stages=[rl]", "model.create=null", "rl.rounds=1", "rl.steps_per_round=5", "rl.prompts_per_step=5",
    "evaluation.before_training=false", "launch.gpus_per_node=2", "rl.optimizer.eps=1e-5",
)  # fmt: skip
"""With the default eps of 1e-8 a gradient near zero, which is rounding alone, would make a step of full size."""


def overrides(recipe, name, *more):
    return [*CHANGES, f"model.path={recipe.parent / 'start' / 'model'}", f"name={name}", *more]


def words_of(recipe, changes):
    """The command line of those changes."""
    return ["train", str(recipe), "--no-prefect", *(w for c in changes for w in ("--set", c))]


def folder_of(config):
    return Path(config.output) / config.name


def main(recipe, changes):
    config = load_recipe(recipe, changes)
    try:
        launch(config.launch, words_of(recipe, changes), folder_of(config), "tests.launch.rank")
    except RunError as exc:
        print(f"ended: {exc}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
