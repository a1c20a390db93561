"""`verizero try`: what the model is sent and answers before any training, and how each answer is graded."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verizero.pipeline.commands.arguments import add_model, add_recipe, recipe_with_model
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.data.prompts import spread
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.report.progress import Lines, Progress
from verizero.pipeline.shown import one_line, show, visible
from verizero.pipeline.types import Group, Prompt, ScoredRollout

if TYPE_CHECKING:
    from verizero.pipeline.run.session import Session, StageSetup

MINUTE_S = 60.0
"""Seconds that all answers may take."""


def add(commands: Any) -> None:
    command = commands.add_parser("try", help="some prompts as the model gets them, its answers, and their rewards")
    add_recipe(command)
    add_model(command)
    command.add_argument("-p", "--prompts", type=int, default=4, help="training prompts, spread over all; default: 4")
    command.add_argument("-n", "--samples", type=int, default=4, help="answers to each prompt; default: 4")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Try the prompts and print what happened."""
    from verizero.pipeline.models.load import quiet

    quiet()
    config, base_dir = recipe_with_model(arguments)
    for text in try_out(config, base_dir, arguments.prompts, arguments.samples, Lines()):
        show(text)


def try_out(config: RunConfig, base_dir: Path, num: int, samples: int, progress: Progress) -> Iterator[str]:
    """Yield a text for each prompt with its graded answers, and a summary. Nothing is trained, and no file stays.

    Prompts are answered one after another, so that the first is shown early. Raises: ConfigError, DataError.
    """
    from verizero.pipeline.commands.rate import at_start
    from verizero.pipeline.loop.sampled_groups import sample_groups

    for what, value in (("--prompts", num), ("--samples", samples)):
        if value < 1:
            raise ConfigError(f"{what} must be >= 1, got {value}; leave it out for 4")
    groups: list[Group] = []
    with at_start(config, base_dir, progress) as session:
        prompts = spread([p for p in session.run.data.train if p.verifier], num)
        if not prompts:
            raise DataError(
                "the recipe has no training prompts that are graded; name rows with a verifier in data.train"
            )
        setup, notes = _within_a_minute(session, prompts, samples)
        if config.begins_with_texts:
            first = config.stage_names[0]
            notes.append(
                f"stage {first} trains this model before any stage samples from it; --model FOLDER tries another"
            )
        notes += _enter_rl(session)
        parts = (session.run, session.workers, setup, session.recorder)
        for i, prompt in enumerate(prompts):
            session.recorder.step_label = f"try prompt {i + 1} of {len(prompts)}"
            progress.say(f"{counted(samples, 'answer')} to prompt {i + 1} of {len(prompts)}")
            scorer = session.workers.graders.of_stage
            (group,), _ = sample_groups(*parts, [prompt], samples, "try", scorer=scorer)
            groups.append(group)
            title = f"\n== prompt {i + 1} of {len(prompts)}: {one_line(prompt.id)}\n"
            yield title + group_text(group, session.run.tokenizer)
    yield "\n" + "\n".join(
        [summary(groups, setup.config.rollout.max_response_tokens, setup is not session.setup), *notes]
    )


def _within_a_minute(session: Session, prompts: Sequence[Prompt], samples: int) -> tuple[StageSetup, list[str]]:
    """Return the stage's setup with answers that take a minute in all, and a note if they are shorter for it."""
    from verizero.pipeline.commands.rate import setup_within

    if any(p.environment is not None for p in prompts):  # nobody knows before how many turns an episode has
        return session.setup, []
    setup = setup_within(session, prompts[:1], samples, MINUTE_S / len(prompts))
    if setup is session.setup:
        return setup, []
    limit, whole = (s.config.rollout.max_response_tokens for s in (setup, session.setup))
    return setup, [
        f"cut off at {limit} of the {whole} tokens of the recipe, as longer answers take over a minute here; "
        "fewer prompts leave more time for each"
    ]


def _enter_rl(session: Session) -> list[str]:
    """Let the verifier of the first RL stage grade, if it has one; return a note where a stage has yet to make it."""
    from verizero.pipeline.run.graders import bind_grader

    run = session.run
    stage, section = next(iter(run.recipe.sections_of(RlConfig).items()), ("", None))
    if section is None or section.reward is None or session.state.stage.name == stage:
        return []
    if section.reward.stage is not None:
        return [f"rl.reward is a model that stage {section.reward.stage} makes: here the rows' own verifiers graded"]
    session.workers.graders.enter_stage(bind_grader(run.folder, run.base_dir, section.reward))
    return []


def group_text(group: Group, tokenizer: Any) -> str:
    """Return the prompt as the model gets it, special tokens included, and each answer with its verdict."""
    prompt = group.prompt
    # An episode has no turn where its environment did not start.
    sent = next((turn.observed for m in group.members for turn in m.rollout.turns[:1]), ())
    lines = [
        f"   verifier {one_line(prompt.verifier)}, reference {one_line(repr(prompt.reference))}",
        f"-- sent, {len(sent)} tokens",
        decoded(tokenizer, sent),
    ]
    for number, member in enumerate(group.members, 1):
        lines += [f"-- answer {number}: {one_line(graded_as(member))}", *answer_lines(member, tokenizer, sent)]
    return "\n".join(lines)


def answer_lines(member: ScoredRollout, tokenizer: Any, sent: Sequence[int] | None = None) -> Iterator[str]:
    """Yield what the model wrote, in each turn, and between the turns what its environment wrote.

    `sent`: the prompt that was shown; None: that of this answer. An environment may begin each episode with another.
    """
    for i, turn in enumerate(member.rollout.turns):
        if i or (sent is not None and tuple(turn.observed) != tuple(sent)):
            yield "-- the environment"
            yield decoded(tokenizer, turn.observed)
            yield "-- the model"
        yield decoded(tokenizer, turn.sampled)


def graded_as(member: ScoredRollout) -> str:
    """Return one line on the reward of an answer: what was extracted, and why it has that score."""
    rollout, verdict = member.rollout, member.verdict
    reward = "no reward" if member.reward is None else f"reward {member.reward:g}"
    if member.components:
        reward += f", the weighted sum of {', '.join(f'{c:g}' for c in member.components)}"
    score = f" {verdict.score:g}" if 0 < verdict.score < 1 else ""
    reason = f": {verdict.reason}" if verdict.reason else ""
    read = "nothing extracted" if verdict.extracted is None else f"extracted {verdict.extracted!r}"
    end = "cut off" if rollout.was_cut else "ended"
    return f"{reward} ({verdict.status}{score}{reason}); {read}; {end} after {rollout.num_sampled} tokens"


def summary(groups: Sequence[Group], limit: int, is_shortened: bool = False) -> str:
    """Return counts of all answers, with what to look at where they show no signal to learn from.

    is_shortened: the limit is not the recipe's, so that answers which are cut tell nothing of it.
    """
    members = [m for g in groups for m in g.members]
    graded = [m for m in members if not m.verdict.is_left_out]
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
    if cut > len(members) // 2 and not is_shortened:
        text += (
            "\nmost were cut off: raise rollout.max_response_tokens, or see whether the prompt has an end that stops"
        )
    elif unread > len(members) // 2:
        text += "\nmost have no answer to read: say in data.template.system how to write it"
    return text


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of the tokens, special ones included, indented, as a terminal can show it."""
    text = str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
    # Before each line, so that no line of a model looks like one of ours.
    return "\n".join(f"   | {line}" for line in visible(text).split("\n"))


def counted(number: int, what: str) -> str:
    """Return e.g. "1 answer" or "2 answers"."""
    return f"{number} {what}{'' if number == 1 else 's'}"
