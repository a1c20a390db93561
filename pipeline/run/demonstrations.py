"""The demonstrations that a stage trains on, in tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verizero.pipeline.config.data import Source
from verizero.pipeline.config.stages import DEMONSTRATIONS, SftConfig
from verizero.pipeline.data.conversations import episode_rows
from verizero.pipeline.data.policy_text import OPEN
from verizero.pipeline.data.prompts import read_demonstrations
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.rows_of_source import SourceCounts, row_of
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.errors import DataError
from verizero.pipeline.run.episodes import tools_of
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.saving import write_left_out
from verizero.pipeline.run.session import Run, StageSetup
from verizero.pipeline.train.texts import Row, row_after
from verizero.pipeline.types import Prompt

ToolsOf = Callable[[Prompt], Sequence[ToolSchema]]


def tools_of_row(prompt: Prompt) -> Sequence[ToolSchema]:
    """Return the tools that the prompt's own row shows."""
    return [ToolSchema(t["name"], t["description"], t["parameters"]) for t in prompt.tools or ()]


def demonstration_rows(
    run: Run, setup: StageSetup, recorder: Recorder, stage: str, context: int | None
) -> Sequence[Row]:
    """Return the demonstrations of the present stage in tokens; they are read at the first call.

    What is left out is counted, reported, and written to the stage's folder with the reason. `context` is the longest
    sequence of the model. Raise DataError if nothing is left.
    """
    if setup.demonstrations is None:
        prompts, left_out = _demonstrations(run, setup)
        # Only chat templates can show tools.
        is_chat = run.data.renderer.template.name == "chat"
        of_environments = tools_of(run.recipe, run.base_dir)

        def tools(prompt: Prompt) -> Sequence[ToolSchema]:
            return (tools_of_row(prompt) or of_environments(prompt)) if is_chat else ()

        setup.demonstrations, counts = rows_of(run.data.renderer, context, prompts, tools)
        if left_out or counts.left_out:
            write_left_out(run, stage, [*left_out, *counts.left_out])
        if counts.skipped:
            recorder.say(f"{stage}: {counts}")
        if not setup.demonstrations:
            raise DataError(
                f"stage {stage!r} has no demonstration that fits: {counts}; shorten them, or use a model with a longer "
                "context"
            )
    return setup.demonstrations


def _demonstrations(run: Run, setup: StageSetup) -> tuple[list[Prompt], Sequence[tuple[Any, str]]]:
    """Return the demonstrations of the data, or those that an earlier stage left; and the rows that were left out."""
    section = setup.section
    if not isinstance(section, SftConfig) or section.demonstrations is None:
        return run.data.demonstrations, run.data.left_out
    file = (run.stage_folder(section.demonstrations) / DEMONSTRATIONS).resolve()
    # SFT grades nothing, and the parameters of the rows' verifiers are not in the file.
    source = Source(file=str(file), graded=False)
    read = read_demonstrations((source,), (), run.seed)
    return read.prompts, read.left_out


def rows_of(
    renderer: Renderer, context: int | None, prompts: Sequence[Prompt], tools: ToolsOf = tools_of_row
) -> tuple[list[Row], SourceCounts]:
    """Return prompts with their demonstrations in tokens, and the counts of what did not fit.

    What the policy says is trained on: neither the prompt, nor what it observes in an episode. Demonstrations of which
    a row is longer than `context` tokens are left out. `tools` returns those that the prompt shows.
    """
    talk = turns_of(renderer) if any(isinstance(p.demonstration, tuple) for p in prompts) else None
    rows: list[Row] = []
    num_kept = 0
    counts = SourceCounts("demonstrations", len(prompts), what="of them kept")
    for p in prompts:
        if talk is not None and isinstance(p.demonstration, tuple):
            for turn, m in enumerate((m for m in p.demonstration if m.role == "assistant"), 1):
                text = OPEN + m.thinking if m.thinking else m.content
                renderer.require_follows(text, f"turn {turn} of the demonstration of prompt {p.id!r}")
            new_rows = [Row(ids, spans) for ids, spans in episode_rows(talk, p, tools(p))]
        else:
            prompt = renderer.prompt_ids(p)
            new_rows = [row_after((*prompt, *renderer.demonstration_ids(p)), len(prompt))]
        length = max(len(row.ids) for row in new_rows)
        if context is None or length <= context:
            rows += new_rows
            num_kept += 1
            continue
        example = f"{p.id}: {length} tokens, and the model's context is {context}"
        counts.leave_out("past the context", example, row_of(p), f"past the context: {length} tokens of {context}")
    counts.num_loaded = num_kept
    return rows, counts
