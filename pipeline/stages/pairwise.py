"""What stages on preferences share: their loss, their settings, and the update on pairs of freshly ranked groups."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.data.pairs import pairs_of
from pipeline.preferences.base import Loss, PreferenceParams, load_preference
from pipeline.run.session import Session
from pipeline.seeds import stream
from pipeline.train.preference import (
    PreferenceBatch,
    PreferenceRow,
    PreferenceSettings,
    mismatched,
    preference_update,
    side_logprobs,
)
from pipeline.types import Group, StepMetrics


def loss_of(session: Session) -> tuple[PreferenceParams, Loss]:
    """Parameters and function of the present stage's loss."""
    given = dict(getattr(session.config, session.config.stages[0].kind).loss)
    return load_preference(given.pop("name"), given)


def settings_of(session: Session) -> PreferenceSettings:
    """What updates need besides rows; log-probs are those of the distribution that is sampled."""
    config = session.config
    return PreferenceSettings(session.pad_id, config.rollout.temperature, config.train.micro_batch_tokens)


def from_pairs(session: Session, groups: Sequence[Group]) -> StepMetrics:
    """One optimiser step on the best against the worst of each group; none where no group has such a pair.

    Raises: NonFiniteError if it was refused.
    """
    section, state = session.config.online_preference, session.state
    assert section is not None
    (params, loss), settings, backend = loss_of(session), settings_of(session), session.backend
    pairs = [
        pair
        for number, group in enumerate(groups)
        for pair in pairs_of(group, section.pairing, stream(session.config.seed, "pairs", state.rl_step, number))
    ]
    rows = [PreferenceRow(w.rollout.prompt_ids, w.rollout.response_ids, r.rollout.response_ids) for w, r in pairs]
    if not rows:
        return {"pairs": 0.0}
    others = mismatched(rows) if params.needs_divergence else []
    batch = PreferenceBatch(
        rows,
        side_logprobs(backend, rows, "reference", settings) if params.needs_reference else None,
        others,
        side_logprobs(backend, others, "reference", settings) if others else None,
    )
    rewards = [m.reward for group in groups for m in group.members if m.reward is not None]
    seen = {"pairs": float(len(rows)), "reward/mean": sum(rewards) / len(rewards)}
    return {**seen, **preference_update(backend, params, loss, batch, settings)}
