"""One of several hosts: starts its ranks, with a fuse (tests/launch/rank.py), and says how they ended.

python -m tests.launch.host RECIPE a.b=c …
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.launch.words import folder_of, words_of
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.errors import RunError
from verizero.pipeline.launch import launch


def main(recipe: Path, changes: list[str]) -> int:
    config = load_recipe(recipe, changes)
    try:
        launch(config.launch, words_of(recipe, changes), folder_of(config), "tests.launch.rank")
    except RunError as exc:
        print(f"ended: {exc}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
