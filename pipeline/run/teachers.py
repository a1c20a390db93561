"""The teachers of a stage, made where its first step needs them, and the rows that they read.

A batch's responses become rows of distillation, each with the prompt that its teacher reads. Only a teacher reads these
prompts: the policy sampled its responses, and is trained on them, after its own prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import RoundsConfig, StageSection
from verizero.pipeline.config.teaching import DistillationConfig, DistillConfig, FeedbackConfig, TeacherConfig
from verizero.pipeline.data.foreign_text import ForeignText
from verizero.pipeline.data.prompts import answer_of, hinted_question, with_feedback
from verizero.pipeline.data.tokenizer import unknown_characters
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.load import load_model
from verizero.pipeline.rows import require_single
from verizero.pipeline.run.session import Run, StageSetup, Workers
from verizero.pipeline.run.state import RunState
from verizero.pipeline.train import checkpoint
from verizero.pipeline.train.distillation import (
    Distillation,
    DistillRow,
    DistillSettings,
    ModelTeacher,
    ReferenceTeacher,
    ServedTeacher,
    Teacher,
)
from verizero.pipeline.types import Group, Prompt, StepMetrics, Verdict


def teacher_of(section: DistillationConfig, domain: str) -> str:
    """Return the name of the field that has the domain's teacher."""
    return f"teachers.{domain}" if domain in section.teachers else "teacher"


def needs_answer(teacher: TeacherConfig) -> bool:
    """True if the teacher reads a prompt's answer."""
    return teacher.hint is not None and "{answer}" in teacher.hint


def teaching_of(section: StageSection) -> DistillationConfig | None:
    """Return the section of a stage's teachers: itself, or its term of distillation; None if it has none."""
    if isinstance(section, RlConfig):
        return section.distill
    return section if isinstance(section, DistillConfig) else None


def check_domains(config: RunConfig, prompts: Sequence[Prompt], tokenizer: Any) -> None:
    """Raise ConfigError if a domain of the training prompts has no teacher, or none that can read any of its prompts.

    Raise it too for a teacher of a domain that no prompt has, or whose own words the tokenizer lacks.
    """
    domains = sorted({p.domain for p in prompts})
    for stage, whole in config.sections_of(RoundsConfig).items():
        section = teaching_of(whole)
        if section is None:
            continue
        where = section.where if stage == section.where.partition(".")[0] else f"stage {stage!r}: {section.where}"
        if (more := [d for d in section.teachers if d not in domains]) and domains:
            raise ConfigError(
                f"{where}.teachers names the domain {more[0]!r}, and the training prompts are of {', '.join(domains)}; "
                "correct the name or drop it"
            )
        if section.teacher is None and (without := [d for d in domains if d not in section.teachers]):
            raise ConfigError(
                f"{where}.teachers has no teacher for the domain {without[0]!r}; add one, or set {where}.teacher for "
                "all others"
            )
        for name, teacher in section.all_teachers.items():
            if unknown := unknown_characters(tokenizer, "".join(teacher.texts)):
                raise ConfigError(
                    f"{where}.{name} has characters that the tokenizer does not know: {', '.join(map(repr, unknown))}; "
                    "write its texts without them, or add them to model.create.characters"
                )
        for domain in domains:
            name = teacher_of(section, domain)
            if needs_answer(section.all_teachers[name]) and not any(
                answer_of(p) is not None for p in prompts if p.domain == domain
            ):
                raise ConfigError(
                    f"{where}.{name}.hint has {{answer}}, and no prompt of the domain {domain!r} has a text or number "
                    "as its answer; leave {answer} out, or give the domain another teacher"
                )


def stage_teachers(run: Run, workers: Workers, setup: StageSetup, state: RunState) -> Mapping[str, Teacher]:
    """Return the teachers of the present stage by the name of their field; models are loaded once a stage.

    Raise ConfigError for a model that does not load; CheckpointError if that of a stage is damaged.
    """
    if setup.teachers is None:
        section = teaching_of(setup.section)
        assert section is not None, f"a stage of kind {setup.kind} has no teachers"
        made: dict[TeacherConfig, Teacher] = {}
        for teacher in section.all_teachers.values():
            if teacher not in made:  # one that teaches several domains is held once
                made[teacher] = _made(run, workers, setup, state, teacher, section.top_k or 0)
        setup.teachers = {name: made[teacher] for name, teacher in section.all_teachers.items()}
    return setup.teachers


def _made(
    run: Run, workers: Workers, setup: StageSetup, state: RunState, teacher: TeacherConfig, top_k: int
) -> Teacher:
    backend, config = workers.backend, setup.config
    if teacher.is_policy:
        train = config.train
        whole = train.lora is not None or train.offload != "none" or train.backend == "fsdp"
        return ReferenceTeacher(backend, whole)
    if teacher.url is not None:
        return ServedTeacher(teacher, top_k, backend.model.config.vocab_size)
    path = teacher.path
    if path is None:  # the policy that a stage left
        end = checkpoint.path_of(run.folder / "checkpoints", state.stage_ends[teacher.stage or ""])
        checkpoint.require(end, run.ranks)
        path = str(end / "model")
    return ModelTeacher(load_model(path, config.model.dtype, str(backend.model.device)))


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
        objective=section.objective(setup.config.rollout.temperature),
        settings=distill_settings(run, setup.config),
        counts=counts,
    )


def distill_settings(run: Run, config: RunConfig) -> DistillSettings:
    """Return the numbers of an update by distillation."""
    at_once = config.train.logits_chunk_tokens
    return DistillSettings(run.pad_id, config.train.most_tokens, None if at_once == "auto" else at_once)


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
            logprobs = tuple(member.rollout.logprobs) if is_weighted else None
            row = DistillRow(name, own, theirs, tuple(member.rollout.response_ids), logprobs)
            fits = prompt is group.prompt or context is None or row.longest <= context
            if not fits:
                counts["distill/too_long"] += 1
            rows.append(row if fits else None)
    return rows, counts


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
            known = texts.known(message)
            ids = texts.ids(known)
            most = feedback.max_message_tokens
            parts["message"] = known if len(ids) <= most else run.data.renderer.decode(ids[:most])
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
