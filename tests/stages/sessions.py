"""Sessions of the tiny recipe for tests: with scripted answers, round by round, or as whole runs."""

import json
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count

from tests.scripted_engine import ScriptedEngine
from tests.stages.tiny import tiny
from verizero.pipeline.loop.phases import unwrapped
from verizero.pipeline.loop.rounds import run_round
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.saving import save_final
from verizero.pipeline.run.state import schedule
from verizero.pipeline.stages.rl import rl_phases
from verizero.pipeline.whole_run import items_by_stage, run_items, train

RIGHT_SHARE = 3
"""Scripted answers are right for seeds divisible by this."""


class Heard(Progress):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@contextmanager
def session_of(folder, right="some", **changes):
    """A session of the tiny recipe without SFT whose engine answers from a script."""
    config = tiny({"stages": ["rl"], "sft": None, **changes})
    with open_run(config, folder, folder / "run", "auto", Heard()) as session:
        data = session.run.data
        by_prompt = {data.renderer.prompt_ids(p): p for p in (*data.train, *data.evaluation)}

        def answer(prompt_ids, seed):
            good = right == "all" or (right == "some" and seed % RIGHT_SHARE == 0)
            text = by_prompt[prompt_ids].reference if good else "7777"
            return data.renderer.text_ids(f"\\boxed{{{text}}}")

        session.workers.rollouts.generation.engine = ScriptedEngine(answer, session.run.tokenizer.eos_token_id)
        yield session


def lines(session):
    return display(session).lines


def display(session):
    """What the session shows on, under its log."""
    log = session.recorder.progress
    return log.shown


class Losing:
    """A grader that fails on every `every`-th response."""

    def __init__(self, inner, every, failure):
        self.inner, self.failure, self.numbers, self.every = inner, failure, count(1), every

    def score(self, attempts):
        verdicts = self.inner.score(attempts)
        return [v if next(self.numbers) % self.every else self.failure for v in verdicts]


def lose(session, every, failure):
    scorer = session.workers.graders.scorer
    scorer.graders = {k: Losing(v, every, failure) for k, v in scorer.graders.items()}


def round_of(session, number=1):
    return next(i for i in schedule(session.setup.config) if i.kind == "rl" and i.round == number)


def train_round(session, item=None, **phases):
    """Do a round of RL (None: the first) with some phases replaced."""
    run_round(session, item or round_of(session), replace(rl_phases(session), **phases))


def rows(session):
    return [json.loads(line) for line in (session.run.folder / "metrics.jsonl").read_text().splitlines()]


def weights(session):
    return [p.detach().clone() for p in session.workers.backend.model.parameters()]


def run_all(session, wrap=unwrapped):
    for _, items in items_by_stage(session.run, session.state):
        run_items(session, items, wrap)


def train_model(config, base, folder, resume="auto"):
    """Do a whole run up to its final model; return its folder. Its page, drawn from files in a second, is left out."""
    with open_run(config, base, folder, resume, Progress()) as session:
        run_all(session)
        save_final(session.run, session.workers.backend)
    return folder


def go(
    config,
    base,
    resume="auto",
    callbacks=(),
):
    """Do a run in `base`/run, with the files of `base`; return the lines that it showed."""
    heard = Heard()
    train(config, base, base / "run", resume, heard, callbacks=callbacks)
    return heard.lines


def replacing(**functions):
    """A wrap that calls `functions[phase](plain function, *arguments)` in place of the phase's function."""

    def wrap(phase, function):
        return partial(functions[phase], function) if phase in functions else function

    return wrap
