"""`verizero try`: what the model is sent and answers before any training, and how each answer is graded."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.commands.arguments import add_model, add_recipe, recipe_with_model
from pipeline.config.run import RunConfig
from pipeline.errors import ConfigError
from pipeline.report.progress import Lines, Progress
from pipeline.shown import show
from pipeline.types import Group, Prompt, ScoredRollout


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("try", help="some prompts as the model gets them, its answers, and their rewards")
    add_recipe(command)
    add_model(command)
    command.add_argument("-p", "--prompts", type=int, default=4, help="training prompts, spread over all; default: 4")
    command.add_argument("-n", "--samples", type=int, default=4, help="answers to each prompt; default: 4")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Try the prompts and print what happened."""
    from pipeline.models.load import quiet

    quiet()
    config, base_dir = recipe_with_model(arguments)
    for text in try_out(config, base_dir, arguments.prompts, arguments.samples, Lines()):
        show(text)


def try_out(config: RunConfig, base_dir: Path, num: int, samples: int, progress: Progress) -> Iterator[str]:
    """Yield a text for each prompt with its graded answers, and a summary. Nothing is trained, and no file stays.

    Prompts are answered one after another, so that the first is shown early. Raises: ConfigError.
    """
    from pipeline.loop.sampled_groups import sample_groups
    from pipeline.run.opening import opened

    for what, value in (("--prompts", num), ("--samples", samples)):
        if value < 1:
            raise ConfigError(f"{what} must be >= 1, got {value}; leave it out for 4")
    groups: list[Group] = []
    with tempfile.TemporaryDirectory() as folder:
        with opened(config, base_dir, Path(folder), "auto", progress) as session:
            run, workers, recorder = session.run, session.workers, session.recorder
            prompts = spread(run.data.train, num)
            workers.rollouts.publish(workers.backend, session.state.policy_version)
            for i, prompt in enumerate(prompts):
                recorder.where = f"try prompt {i + 1} of {len(prompts)}"
                progress.say(f"{counted(samples, 'answer')} to prompt {i + 1} of {len(prompts)}")
                (group,), _ = sample_groups(run, workers, session.setup, recorder, [prompt], samples, "try")
                groups.append(group)
                yield f"\n== prompt {i + 1} of {len(prompts)}: {prompt.id}\n" + group_text(group, run.tokenizer)
    yield "\n" + summary(groups, config.rollout.max_response_tokens)


def spread(prompts: Sequence[Prompt], num: int) -> list[Prompt]:
    """Return at most `num` of the prompts, at equal distances."""
    count = min(num, len(prompts))
    return [prompts[i * len(prompts) // count] for i in range(count)]


def group_text(group: Group, tokenizer: Any) -> str:
    """Return the prompt as the model gets it, special tokens included, and each answer with its verdict."""
    prompt = group.prompt
    sent = group.members[0].rollout.turns[0].observed
    lines = [
        f"   verifier {prompt.verifier}, reference {prompt.reference!r}",
        f"-- sent, {len(sent)} tokens",
        decoded(tokenizer, sent),
    ]
    for number, member in enumerate(group.members, 1):
        lines += [f"-- answer {number}: {graded_as(member)}", *answer_lines(member, tokenizer)]
    return "\n".join(lines)


def answer_lines(member: ScoredRollout, tokenizer: Any) -> Iterator[str]:
    """Yield what the model wrote, in each turn, and between the turns what its environment wrote."""
    for i, turn in enumerate(member.rollout.turns):
        if i:
            yield "-- the environment"
            yield decoded(tokenizer, turn.observed)
            yield "-- the model"
        yield decoded(tokenizer, turn.sampled)


def graded_as(member: ScoredRollout) -> str:
    """Return one line on the reward of an answer: what was extracted, and why it has that score."""
    rollout, verdict = member.rollout, member.verdict
    reward = "no reward" if member.reward is None else f"reward {member.reward:g}"
    reason = f": {verdict.reason}" if verdict.reason else ""
    read = "nothing extracted" if verdict.extracted is None else f"extracted {verdict.extracted!r}"
    end = "cut off" if rollout.was_cut else "ended"
    return f"{reward} ({verdict.status}{reason}); {read}; {end} after {rollout.num_sampled} tokens"


def summary(groups: Sequence[Group], limit: int) -> str:
    """Return counts of all answers, with what to look at where they show no signal to learn from."""
    members = [m for g in groups for m in g.members]
    graded = [m for m in members if not m.verdict.is_infrastructure]
    right = sum(m.verdict.is_correct for m in graded)
    unread = sum(m.verdict.status == "no_answer" for m in graded)
    cut = sum(m.rollout.was_cut for m in members)
    parts = [
        f"{right} right",
        f"{len(graded) - right - unread} not right",
        f"{unread} without an answer that the verifier reads",
        f"{len(members) - len(graded)} on which a grader failed",
    ]
    of = f"{counted(len(members), 'answer')} to {counted(len(groups), 'prompt')}"
    text = f"{of}: {', '.join(parts)}; {cut} cut off at {limit} tokens"
    if cut > len(members) // 2:
        text += (
            "\nmost were cut off: raise rollout.max_response_tokens, or see whether the prompt has an end that stops"
        )
    elif unread > len(members) // 2:
        text += "\nmost have no answer to read: say in data.template.system how to write it"
    return text


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of the tokens, special ones included, indented."""
    text = str(tokenizer.decode(list(ids), skip_special_tokens=False))
    return "\n".join(f"   | {line}" for line in text.split("\n"))


def counted(number: int, what: str) -> str:
    """Return e.g. "1 answer" or "2 answers"."""
    return f"{number} {what}{'' if number == 1 else 's'}"
