"""A fake engine that answers from a script: for tests of the loop."""

from collections.abc import Callable, Sequence

from verizero.pipeline.rollout.engine import Completion, Ended

Script = Callable[[tuple[int, ...], int], Sequence[int]]
"""(prompt_ids, seed) -> response token ids."""


class ScriptedEngine:
    """Answers each request with `script(prompt_ids, seed)`, cut at the length limit."""

    is_fast: bool | None = None
    fallback_reason: str | None = None
    answers_threads = False

    def __init__(self, script, eos_id, logprob=-0.5):
        self.script, self.eos_id, self.logprob = script, eos_id, logprob
        self.version = -1

    def publish(self, version):
        """Set the version."""
        self.version = version

    def generate(self, requests, sampling, reader=None):
        """Return the script's answers; finish_reason is "stop" exactly where one ends with the end token in time.

        The reader receives the responses of later requests first.
        """
        answers = [[self._answer(r.prompt_ids, seed, sampling) for seed in r.seeds] for r in requests]
        if reader is not None:
            for i in reversed(range(len(answers))):
                reader([Ended(i, j, c.token_ids, c.finish_reason) for j, c in enumerate(answers[i])])
        return answers

    def rest(self):
        """Do nothing: there is no memory to give back."""

    def counts(self):
        """Return no numbers."""
        return {}

    def close(self):
        """Do nothing: there is nothing to release."""

    def _answer(self, prompt_ids, seed, sampling):
        ids = tuple(self.script(prompt_ids, seed))[: sampling.max_tokens]
        return Completion(ids, (self.logprob,) * len(ids), "stop" if ids and ids[-1] == self.eos_id else "length")
