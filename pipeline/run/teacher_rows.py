"""The responses of a batch as rows of distillation, each with the prompt that its teacher reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verizero.pipeline.config.teaching import DistillationConfig, TeacherConfig
from verizero.pipeline.data.hints import answer_of, hinted_question
from verizero.pipeline.rows import require_single
from verizero.pipeline.run.session import Run
from verizero.pipeline.run.teachers import needs_answer, teacher_of
from verizero.pipeline.train.distillation import DistillRow
from verizero.pipeline.types import Group, Prompt, StepMetrics


def distill_rows(
    run: Run, section: DistillationConfig, groups: Sequence[Group], context: int | None, policy_version: int
) -> tuple[list[DistillRow | None], StepMetrics]:
    """Return a row for each response, None for one that its teacher cannot read, and counts of these.

    `unhinted`: the prompt has no answer to hint at; `too_long`: hint and response do not fit into the policy's context.

    Raises: DataError for an episode of several turns.
    """
    rows: list[DistillRow | None] = []
    left_out = {"distill/unhinted": 0.0, "distill/too_long": 0.0}
    for group in groups:
        name = teacher_of(section, group.prompt.domain)
        read = teachers_prompt(group.prompt, section.all_teachers[name])
        if read is None:
            left_out["distill/unhinted"] += len(group.members)
            rows += [None] * len(group.members)
            continue
        is_same = read is group.prompt
        hinted_ids = None if is_same else run.data.renderer.prompt_ids(read)
        require_single((m.rollout for m in group.members), "distillation")
        for rollout in (m.rollout for m in group.members):
            prompt_ids = tuple(rollout.prompt_ids)
            is_weighted = section.stale_weights is not None and rollout.oldest_version < policy_version
            row = DistillRow(
                name,
                prompt_ids,
                hinted_ids or prompt_ids,
                tuple(rollout.response_ids),
                tuple(rollout.logprobs) if is_weighted else None,
            )
            if not is_same and context is not None and row.longest > context:
                left_out["distill/too_long"] += 1
                rows.append(None)
            else:
                rows.append(row)
    return rows, left_out


def teachers_prompt(prompt: Prompt, teacher: TeacherConfig) -> Prompt | None:
    """Return the prompt as the teacher reads it; None if its hint needs an answer that the prompt does not have."""
    if not teacher.is_policy:
        return prompt
    question = prompt.question
    if teacher.hint is not None:
        if needs_answer(teacher) and answer_of(prompt) is None:
            return None
        question = hinted_question(prompt, teacher.hint)
    return replace(prompt, question=question, system=prompt.system if teacher.system is None else teacher.system)
