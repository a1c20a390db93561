"""`verizero audit`: errors of verifiers on labelled rows, and of a reward function on any rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    command = commands.add_parser(
        "audit", help="false positives and negatives of verifiers on labelled rows, and probes"
    )
    command.add_argument("rows", type=Path, help="a JSONL file of labelled rows")
    command.add_argument(
        "--reward",
        metavar="FILE.py:FUNCTION",
        help="try a reward function in any trainer's form on rows with questions and answers, which need no labels",
    )
    command.add_argument("--verifier", help="for rows that name none; a name or file.py:function")
    command.add_argument("--second", help="a second verifier for a second opinion (name or file.py:function)")
    command.add_argument("--save", type=Path, help="write disagreements and wrong verdicts here as JSONL")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the audit; return 1 if it found errors."""
    if arguments.reward is not None:
        from verizero.pipeline.commands.verifiers.reward_audit import audit_reward

        of_reward = audit_reward(arguments.reward, arguments.rows)
        show(of_reward)
        return 0 if of_reward.passed else 1
    from verizero.pipeline.commands.verifiers.proof import audit

    report = audit(arguments.rows, verifier=arguments.verifier, second=arguments.second, save=arguments.save)
    show(report)
    return 0 if report.passed else 1
