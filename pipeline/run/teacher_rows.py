"""The responses of a batch as rows of distillation, each with the prompt that its teacher reads.

Only a teacher reads these prompts: the policy sampled its responses, and is trained on them, after its own prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.teaching import DistillationConfig, FeedbackConfig, TeacherConfig
from verizero.pipeline.data.foreign_text import ForeignText
from verizero.pipeline.data.hints import answer_of, hinted_question, with_feedback
from verizero.pipeline.rows import require_single
from verizero.pipeline.run.sampling import temperature
from verizero.pipeline.run.session import Run, StageSetup, Workers
from verizero.pipeline.run.state import RunState
from verizero.pipeline.run.teachers import needs_answer, stage_teachers, teacher_of
from verizero.pipeline.train.distillation import Distillation, DistillRow, DistillSettings
from verizero.pipeline.types import Group, Prompt, Rollout, StepMetrics, Verdict

PromptOfMember = Callable[[int], Prompt | None]
"""Returns the prompt that the teacher reads for a member of a group; None: there is nothing to teach."""


def distillation_term(
    run: Run, workers: Workers, setup: StageSetup, state: RunState, groups: Sequence[Group]
) -> Distillation | None:
    """Return the term of distillation in an update of RL on these groups; None if the stage has none."""
    section = setup.section.distill
    if section is None:
        return None
    teachers = stage_teachers(run, workers, setup, state)
    rows, counts = distill_rows(run, section, groups, workers.context, state.policy_version)
    members = [m for group in groups for m in group.members]
    return Distillation(
        coef=section.coef,
        teachers=teachers,
        rows=[row for row, member in zip(rows, members, strict=True) if member.reward is not None],
        objective=section.objective(temperature(setup, state)),
        settings=distill_settings(run, setup.config),
        counts=counts,
    )


def distill_settings(run: Run, config: RunConfig) -> DistillSettings:
    """Return the numbers of an update by distillation."""
    at_once = config.train.logits_chunk_tokens
    return DistillSettings(run.pad_id, config.train.micro_batch_tokens, None if at_once == "auto" else at_once)


def distill_rows(
    run: Run, section: DistillationConfig, groups: Sequence[Group], context: int | None, policy_version: int
) -> tuple[list[DistillRow | None], StepMetrics]:
    """Return a row for each response, None for one that its teacher cannot read, and counts.

    `unhinted`: the prompt has no answer to hint at, or the group no other right response and the verdict no message;
    `too_long`: the teacher's prompt and the response do not fit into the policy's context. With feedback, `with_right`
    and `with_message`: what the teachers read; `changed`: messages that were cut, or lost characters without a token.

    Raises: DataError for an episode of several turns.
    """
    rows: list[DistillRow | None] = []
    counts = dict.fromkeys(["distill/unhinted", "distill/too_long"] if section.has_own_teacher else [], 0.0)
    if any(t.feedback is not None for t in section.all_teachers.values()):
        counts |= dict.fromkeys(("distill/with_right", "distill/with_message", "distill/changed"), 0.0)
    for group in groups:
        name = teacher_of(section, group.prompt.domain)
        require_single((m.rollout for m in group.members), "distillation")
        # The same for all members of a group, or another for each response, which never comes again.
        has_feedback = section.all_teachers[name].feedback is not None
        ids_of = run.data.renderer.new_prompt_ids if has_feedback else run.data.renderer.prompt_ids
        read = teachers_prompts(run, section.all_teachers[name], group, counts)
        for number, member in enumerate(group.members):
            prompt = read(number)
            if prompt is None:
                counts["distill/unhinted"] += 1
                rows.append(None)
                continue
            own = tuple(member.rollout.prompt_ids)
            theirs = own if prompt is group.prompt else ids_of(prompt)
            is_weighted = section.stale_weights is not None and member.rollout.oldest_version < policy_version
            row = _row(name, member.rollout, own, theirs, is_weighted)
            fits = prompt is group.prompt or context is None or row.longest <= context
            if not fits:
                counts["distill/too_long"] += 1
            rows.append(row if fits else None)
    return rows, counts


def _row(
    teacher: str, rollout: Rollout, prompt_ids: tuple[int, ...], teacher_ids: tuple[int, ...], is_weighted: bool
) -> DistillRow:
    logprobs = tuple(rollout.logprobs) if is_weighted else None
    return DistillRow(teacher, prompt_ids, teacher_ids, tuple(rollout.response_ids), logprobs)


def teachers_prompts(run: Run, teacher: TeacherConfig, group: Group, counts: StepMetrics) -> PromptOfMember:
    """Return the function that makes the teacher's prompts for the members of a group; it adds to `counts`."""
    feedback = teacher.feedback
    if feedback is None:
        prompt = teachers_prompt(group.prompt, teacher)
        return lambda _: prompt
    texts = ForeignText(run.tokenizer)
    rights = [m.rollout.text if m.verdict.is_correct else None for m in group.members]

    def prompt_of(number: int) -> Prompt | None:
        right = next((text for i, text in enumerate(rights) if i != number and text is not None), None)
        message = message_of(group.members[number].verdict)
        parts: dict[str, str] = {}
        if right and feedback.right is not None:
            parts["right"] = texts.known(right)
        if message and feedback.message is not None:
            parts["message"] = cut_message(message, feedback, texts, run.data.renderer.decode)
            counts["distill/changed"] += parts["message"] != message
        if not parts:
            return None
        for name in parts:
            counts[f"distill/with_{name}"] += 1
        # No text of others may spell a special token.
        question = feedback_question(group.prompt, feedback, {n: texts.cut(x, " ") for n, x in parts.items()})
        system = group.prompt.system if teacher.system is None else teacher.system
        return replace(group.prompt, question=question, message=None, system=system)

    return prompt_of


def feedback_question(prompt: Prompt, feedback: FeedbackConfig, parts: dict[str, str]) -> str:
    """Return the teacher's question: the template with the question and the parts that have a text."""
    right = (feedback.right or "").replace("{right}", parts["right"]) if "right" in parts else ""
    message = (feedback.message or "").replace("{message}", parts["message"]) if "message" in parts else ""
    return with_feedback(prompt, feedback.template, right, message)


def message_of(verdict: Verdict) -> str | None:
    """Return what the verifier says of a response; None if it is right, or if its grader failed or abstained."""
    if verdict.is_correct or verdict.is_left_out:
        return None
    if verdict.status == "graded" or verdict.reason.startswith(verdict.status):
        return verdict.reason or None
    return f"{verdict.status}: {verdict.reason}" if verdict.reason else verdict.status


def cut_message(
    message: str, feedback: FeedbackConfig, texts: ForeignText, decode: Callable[[Sequence[int]], str]
) -> str:
    """Return the first `max_message_tokens` tokens of a message, in characters that the tokenizer knows."""
    known = texts.known(message)
    ids = texts.ids(known)
    most = feedback.max_message_tokens
    return known if len(ids) <= most else decode(ids[:most])


def teachers_prompt(prompt: Prompt, teacher: TeacherConfig) -> Prompt | None:
    """Return the prompt as a teacher without feedback reads it; None if its hint needs an answer that is not there."""
    if not teacher.is_policy:
        return prompt
    question = prompt.asked
    if teacher.hint is not None:
        if needs_answer(teacher) and answer_of(prompt) is None:
            return None
        question = hinted_question(prompt, teacher.hint)
    system = prompt.system if teacher.system is None else teacher.system
    return replace(prompt, question=question, message=None, system=system)
