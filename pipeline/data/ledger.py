"""Keep the pass rates of prompts so far, to skip those that are too easy or too hard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verizero.pipeline.config.data import PassRateConfig
from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.types import Group


class PassRateLedger:
    """Attempts and right answers by prompt id."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Return the number of distinct prompts that were attempted."""
        return len(self._counts)

    def record(self, prompt_id: str, attempts: int, correct: int) -> None:
        """Add graded attempts. Failures of graders are no attempts.

        Raises: ValueError unless 0 <= correct <= attempts.
        """
        if not 0 <= correct <= attempts:
            raise ValueError(f"correct must be in 0 .. attempts for {prompt_id!r}, got {correct} of {attempts}")
        if attempts:
            before = self._counts.get(prompt_id, (0, 0))
            self._counts[prompt_id] = (before[0] + attempts, before[1] + correct)

    def record_group(self, group: Group) -> None:
        """Add the group's graded responses."""
        graded = [m.verdict.is_correct for m in group.members if not m.verdict.is_left_out]
        self.record(group.prompt.id, len(graded), sum(graded))

    def counts(self, prompt_id: str) -> tuple[int, int]:
        """Return (attempts, right answers) of a prompt."""
        return self._counts.get(prompt_id, (0, 0))

    def rate(self, prompt_id: str) -> float | None:
        """Return right answers / attempts; None without attempts."""
        attempts, correct = self.counts(prompt_id)
        return correct / attempts if attempts else None

    def is_skipped(self, prompt_id: str, config: PassRateConfig, epoch: int) -> bool:
        """True if the epoch skips the prompt: it has enough attempts, and its rate is outside the bounds."""
        attempts, correct = self.counts(prompt_id)
        if attempts < config.min_attempts:
            return False
        # Some epochs ask all prompts again, as the policy has changed since their rates were measured.
        if config.revisit_epochs is not None and epoch > 0 and epoch % config.revisit_epochs == 0:
            return False
        low, high = config.bounds(epoch)
        return not low <= correct / attempts <= high

    def state_dict(self) -> dict[str, Any]:
        """Return the counts for JSON, sorted by id, so that equal ledgers have equal bytes."""
        return {"counts": {i: list(self._counts[i]) for i in sorted(self._counts)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts of `state_dict`. Raises: CheckpointError if they are malformed."""
        try:
            self._counts = {str(i): (int(n), int(k)) for i, (n, k) in state["counts"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise CheckpointError(f"not a pass-rate ledger's state: {type(exc).__name__}: {exc}") from exc
