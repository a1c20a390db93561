"""Reinforcement learning with verifiable rewards: rounds of generate, verify, select, update, publish."""

from __future__ import annotations

from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.loop.phases import PhaseWrapper, rl_phases
from verizero.pipeline.loop.rounds import run_round
from verizero.pipeline.run.schedule import Item
from verizero.pipeline.run.session import Session
from verizero.pipeline.stages.base import StageKind


def run(session: Session, item: Item, wrap: PhaseWrapper) -> None:
    """Do the steps of one round, from the step that the state names."""
    run_round(session, item, rl_phases(session).wrapped(wrap), wrap)


KIND = StageKind(RlConfig, run)
