"""The graders of a run: verifiers of the rows, of the present stage, and for second opinions."""

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
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.data import RunData
from verizero.pipeline.run.episodes import languages_of
from verizero.pipeline.scoring.grader_process import GraderProcess
from verizero.pipeline.scoring.purity import is_pure
from verizero.pipeline.scoring.sandbox_setup import close_sandbox, open_sandbox
from verizero.pipeline.scoring.score import COMPONENT, Grader, Scorer, bind_components, bind_verifiers
from verizero.pipeline.scoring.second_opinion import SecondOpinions
from verizero.verifiers import _wall


class Graders:
    """The scorer of the rows' own verifiers, the one of the present stage, and the giver of second opinions."""

    def __init__(self, scorer: Scorer, second: SecondOpinions | None = None) -> None:
        self.scorer = scorer
        """Grades evaluations, and every stage that names no verifier of its own."""
        self.second = second
        """None if the recipe asks for no second opinions."""
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
        _wall.close()  # before the threads, which may wait for it
        for grader in (self.scorer, self._of_stage, self.second):
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
    second = _second_opinions(config, data, base_dir)
    others: list[Grader] = [] if second is None else [second.grader]
    rewards = [section.reward for section in config.sections_of(RlConfig).values()]
    others += [reward.bind(base_dir) for reward in rewards if reward is not None]
    played = languages_of([*data.train, *data.evaluation], config.data.environments, base_dir)
    isolation = open_sandbox(config.sandbox, [*bound.values(), *components, *others], progress.say, played)
    choices = {key: config.data.verifiers.get(key) or VerifierChoice.of_key(key, base_dir) for key in bound}
    choices |= {f"{COMPONENT}{i}": c.verifier for i, c in enumerate(config.scoring.components)}
    graders = bound | {f"{COMPONENT}{i}": b for i, b in enumerate(components)}
    # Verifiers that hold a model stay in this process; those from outside have a process of their own.
    moving = {key: c for key, c in choices.items() if c.path is None and is_pure(graders[key])}
    process = (
        GraderProcess(config.sandbox, base_dir, moving) if moving and config.scoring.overlap is not False else None
    )
    return Graders(Scorer(config.scoring, bound, components, process, data.renderer.decode), second), isolation


def _second_opinions(config: RunConfig, data: RunData, base_dir: Path) -> SecondOpinions | None:
    opinion_config = config.scoring.second_opinion
    if opinion_config is None:
        return None
    known = sorted({p.domain for p in data.train})
    unknown = sorted(set(opinion_config.domains or ()) - set(known))
    if unknown:
        raise ConfigError(
            f"scoring.second_opinion.domains names {unknown[0]!r}, which no training row has; there are "
            f"{', '.join(known)}"
        )
    return SecondOpinions(opinion_config, opinion_config.verifier.bind(base_dir), config.seed)


def bind_grader(shared: Path, base_dir: Path, choice: VerifierChoice) -> Grader:
    """Return a verifier that a stage names; `stage:NAME` is the model that the earlier stage NAME left in `shared`.

    Raises: ConfigError.
    """
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
