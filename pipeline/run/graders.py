"""The graders of a run: verifiers of the rows, and of the present stage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.config.stages import MODEL
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.data import RunData
from verizero.pipeline.run.episodes import languages_of
from verizero.pipeline.scoring.sandbox_setup import close_sandbox, open_sandbox
from verizero.pipeline.scoring.score import Grader, Scorer, bind_components, bind_verifiers
from verizero.verifiers import _verifier_process


class Graders:
    """The scorer of the rows' own verifiers, and the one of the present stage."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        """Grades evaluations, and every stage that names no verifier of its own."""
        self._of_stage: Scorer | None = None

    @property
    def of_stage(self) -> Scorer:
        """The scorer of what the present stage samples to learn from."""
        return self.scorer if self._of_stage is None else self._of_stage

    def enter_stage(self, verifier: Grader | None) -> None:
        """Grade the present stage with `verifier` in place of the rows' own; None: with those."""
        if self._of_stage is not None:
            # A scorer of a stage has threads of its own.
            self._of_stage.close()
        self._of_stage = None if verifier is None else self.scorer.with_grader(verifier)

    def close(self) -> None:
        """End the threads, processes and sandbox workers of all graders."""
        _verifier_process.close()  # before the threads, which may wait for it
        for grader in (self.scorer, self._of_stage):
            if grader is not None:
                grader.close()
        close_sandbox()


def build_graders(
    config: RunConfig, data: RunData, base_dir: Path, progress: Progress
) -> tuple[Graders, dict[str, Any] | None]:
    """Return the run's graders, and the walls around the programs that they run (None if they run none).

    Raises: DataError, ConfigError, IsolationError.
    """
    bound = bind_verifiers(data.all_prompts, config.verifiers, base_dir)
    components = bind_components(config.scoring, base_dir)
    rewards = [section.reward for section in config.sections_of(RlConfig).values()]
    of_stages = [reward.bind(base_dir) for reward in rewards if reward is not None]
    graders = [*bound.values(), *components, *of_stages]
    played = languages_of([*data.train, *data.evaluation], config.data.environments, base_dir)
    isolation = open_sandbox(config.sandbox, graders, progress.say, played)
    return Graders(Scorer(config.scoring, bound, components, data.renderer.decode)), isolation


def bind_grader(shared: Path, base_dir: Path, choice: VerifierChoice) -> Grader:
    """Return a verifier that a stage names; `stage:NAME` is a model of that stage in `shared`. Raises: ConfigError."""
    params = dict(choice.params)
    if choice.stage is not None:
        params["model"] = str((shared / "stages" / choice.stage / MODEL).resolve())
    return choice.bind(base_dir, params)


def overlaps_grading(config: ScoringConfig, device: torch.device) -> bool:
    """True if responses are graded while others are still being sampled.

    The recipe decides; without its word, they are if that takes no core from decoding.
    """
    if config.overlap is not None:
        return config.overlap
    return device.type != "cpu" or usable_cores() > torch.get_num_threads()


def usable_cores() -> int:
    """Return the number of cores that this process may use, or of all cores where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
