"""`verizero replay`: play a recorded episode again, and name the first message that differs."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("replay", help="play an episode of a run's files again, without a model")
    command.add_argument("run_folder", type=Path, metavar="run", help="e.g. runs/guess")
    command.add_argument("prompt", help="the prompt's id, as rollouts.jsonl has it")
    command.add_argument("--step", type=int, help="the step; default: the last one that has the prompt")
    command.add_argument("--sample", type=int, default=0, help="the number of the sample; default: 0")
    command.add_argument(
        "--recipes", type=Path, help="folder of the recipe's own files; default: the one that it came from"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the conversation; return 1 if it differs from the record."""
    from verizero.pipeline.config.load import load_recipe
    from verizero.pipeline.data.prompts import read_prompts
    from verizero.pipeline.errors import DataError
    from verizero.pipeline.report.files import read_rollouts, require_run
    from verizero.pipeline.rollout.play import task_seed_of
    from verizero.pipeline.run.episodes import bind_environments
    from verizero.pipeline.run.origin import recipe_folder
    from verizero.pipeline.run.replay import message_of, replay
    from verizero.pipeline.scoring.sandbox_setup import use_sandbox

    row = None
    for candidate in read_rollouts(require_run(arguments.run_folder)):
        is_asked = candidate.prompt_id == arguments.prompt and candidate.sample == arguments.sample
        if is_asked and arguments.step in (None, candidate.step) and candidate.messages is not None:
            row = candidate
    if row is None or row.messages is None or row.seed is None:
        raise DataError(
            f"{arguments.run_folder}/rollouts.jsonl has no episode of prompt {arguments.prompt!r}, sample "
            f"{arguments.sample}" + ("" if arguments.step is None else f", step {arguments.step}")
        )
    config = load_recipe(arguments.run_folder / "recipe.yaml")
    base = arguments.recipes or recipe_folder(arguments.run_folder) or Path.cwd()
    use_sandbox(config.sandbox)
    prompts, _ = read_prompts([*config.data.train, *config.data.evaluation], config.seed, base)
    prompt = next((p for p in prompts if p.id == row.prompt_id and p.environment is not None), None)
    if prompt is None or prompt.environment is None:
        raise DataError(
            f"the recipe's data in {base} has no episode of prompt {row.prompt_id!r} any more; undo the change of its "
            "rows, or give the folder that has them with --recipes"
        )
    environment = bind_environments([prompt], config.data.environments, base)[prompt.environment]
    record = [message_of(m) for m in row.messages]
    with closing(environment):
        result = replay(environment, prompt, (task_seed_of(config.seed, prompt), row.seed), record)
    for i, message in enumerate(result.messages):
        calls = "".join(f" {c.name}{dict(c.arguments)}" for c in message.calls)
        # The lines of a message are set off, so that none of them looks like another message.
        show(
            f"{'!' if i == result.difference else ' '} {message.role}: {message.content}{calls}".replace("\n", "\n    ")
        )
    if result.difference is None:
        show(f"equal to the record: {len(record)} messages")
        return 0
    then = record[result.difference] if result.difference < len(record) else None
    show(f"message {result.difference} differs; the record has {'nothing' if then is None else repr(then.content)}")
    return 1
