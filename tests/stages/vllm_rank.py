"""One rank of a run with vLLM in its process, held against the trainer's weights after each publish.

Run as `python -m tests.stages.vllm_rank FOLDER CHANGES`, CHANGES of the recipe of sevens as JSON. Each rank writes what
it found to FOLDER/found<rank>.json: the version published, and whether the engine's greedy responses to all training
prompts are those of the trainer's weights.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from pipeline.launch import as_rank
from pipeline.models.load import eos_ids
from pipeline.rollout.engine import Request, Sampling
from pipeline.stages.progress import for_terminal
from pipeline.stages.steps import Steps, publish
from pipeline.stages.train import finish, opened, remaining, run_items
from tests.models.families import next_logits
from tests.stages.sevens import STEPS, recipe


def greedy(model: Any, prompt: tuple[int, ...], ends: set[int], most: int) -> tuple[int, ...]:
    """The likeliest response, by forwards over the whole row."""
    ids = list(prompt)
    while len(ids) < len(prompt) + most and (len(ids) == len(prompt) or ids[-1] not in ends):
        ids.append(int(next_logits(model, ids).argmax()))
    return tuple(ids[len(prompt) :])


@torch.no_grad()
def held_against_trainer(session: Any) -> dict[str, Any]:
    """Whether the engine is the trainer, by greedy responses; and how many of them there are."""
    model, most = session.backend.whole_model(), session.config.rollout.max_response_tokens
    prompts = [session.data.renderer.prompt_ids(p) for p in session.data.train[:6]]
    ends = set(eos_ids(model, session.tokenizer))
    answers = session.engine.generate([Request(p, (0,)) for p in prompts], Sampling(most, temperature=0))
    said = [answer.token_ids for (answer,) in answers]
    return {"version": session.engine.version, "equal": said == [greedy(model, p, ends, most) for p in prompts]}


def main(folder: Path, changes: dict[str, Any]) -> None:
    """The run, and what was found."""
    config = recipe("vllm", changes.pop("steps", STEPS), **changes)
    rank, found = as_rank(config.launch, folder), []

    def publish_and_hold(session: Any) -> None:
        publish(session)
        found.append(held_against_trainer(session))

    with opened(config, folder.parent, folder, "auto", for_terminal()) as session:
        assert session.ranks.size == int(os.environ["WORLD_SIZE"])
        for _, items in remaining(session):
            run_items(session, items, Steps(publish=publish_and_hold))
        finish(session)
    (folder / f"found{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
