"""The speed of a step: tokens a second by phase, and the MFU of the update."""

from __future__ import annotations

from collections.abc import Mapping


class Work:
    """The tokens that each phase processed over all ranks, and the operations of the update's model."""

    def __init__(self, peak_flops: float | None = None) -> None:
        """`peak_flops`: operations a second of all ranks' GPUs together; None where unknown, and on the CPU."""
        self._peak_flops = peak_flops
        self._tokens: dict[str, int] = {}
        self._flops = 0.0

    def add(self, phase: str, tokens: int, flops: float = 0.0) -> None:
        """Count tokens of a phase, and operations of the update."""
        self._tokens[phase] = self._tokens.get(phase, 0) + tokens
        self._flops += flops

    def take(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return the rates of everything since the last call, which took so many seconds by phase."""
        tokens, flops, self._tokens, self._flops = self._tokens, self._flops, {}, 0.0
        timed = {phase: n for phase, n in tokens.items() if seconds.get(phase, 0.0) > 0}
        rates = {f"{phase}/tokens_per_s": round(n / seconds[phase], 1) for phase, n in timed.items()}
        if self._peak_flops is not None and flops > 0 and seconds.get("update", 0.0) > 0:
            rates["update/mfu"] = round(flops / (seconds["update"] * self._peak_flops), 4)
        return rates
