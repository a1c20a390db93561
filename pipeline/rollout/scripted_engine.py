"""A fake engine that answers from a script: for tests of the loop, and to replay recorded responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.rollout.engine import Completion, Ended, Listener, Request, Sampling

Script = Callable[[tuple[int, ...], int], Sequence[int]]
"""(prompt_ids, seed) -> response token ids."""


class ScriptedEngine:
    """Answers each request with `script(prompt_ids, seed)`, cut at the length limit; counts what it was asked."""

    def __init__(self, script: Script, eos_id: int, logprob: float = -0.5) -> None:
        self.script, self.eos_id, self.logprob = script, eos_id, logprob
        self._version = -1
        self.num_responses = 0

    @property
    def version(self) -> int:
        """The version last published."""
        return self._version

    def publish(self, version: int) -> None:
        """Note the version."""
        self._version = version

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """The script's answers; finish_reason is "stop" exactly where an answer ends with the end token in time."""
        return [[self._answer(r.prompt_ids, seed, sampling) for seed in r.seeds] for r in requests]

    def generate_streaming(
        self, requests: Sequence[Request], sampling: Sampling, listener: Listener
    ) -> list[list[Completion]]:
        """The script's answers; those of a later request end before those of an earlier one."""
        answers = self.generate(requests, sampling)
        for i in reversed(range(len(answers))):
            listener([Ended(i, j, c.token_ids, c.finish_reason) for j, c in enumerate(answers[i])])
        return answers

    def close(self) -> None:
        """Nothing to release."""

    def _answer(self, prompt_ids: tuple[int, ...], seed: int, sampling: Sampling) -> Completion:
        self.num_responses += 1
        ids = tuple(self.script(prompt_ids, seed))[: sampling.max_tokens]
        return Completion(ids, (self.logprob,) * len(ids), "stop" if ids and ids[-1] == self.eos_id else "length")
