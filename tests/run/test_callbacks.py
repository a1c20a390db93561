"""Callbacks: what they are given, what they may return, and what is refused before and during a run."""

import pytest

from tests.loop.scripted import group_of
from verizero.pipeline.errors import ConfigError, RunError, Stopped
from verizero.pipeline.report.row_types import EvaluationRow, StepRow
from verizero.pipeline.run.callbacks import STOP, load_callbacks
from verizero.pipeline.train.ranks import ALONE

ROW = StepRow(stage="rl", stage_kind="rl", round=2, step=7, metrics={"loss": 0.5}, time={})


def called(*functions):
    return load_callbacks((), None, functions)


def test_an_event_has_the_row_and_its_groups_while_the_callback_runs():
    events = []
    read = []

    def watch(event):
        events.append(event)
        read.extend(event.groups)

    groups = [group_of(0, [1.0, 0.0])]
    callbacks = called(watch)
    callbacks.call(ALONE, ROW, groups)
    callbacks.call(
        ALONE, EvaluationRow(stage="base", round=0, step=0, label="before", k=1, domains={"d": {"n": 1}}, time={})
    )
    step, evaluation = events
    assert (step.kind, step.stage, step.round, step.step, step.metrics) == ("step", "rl", 2, 7, {"loss": 0.5})
    assert read == groups
    assert (evaluation.kind, evaluation.metrics, evaluation.row.domains) == ("evaluation", {}, {"d": {"n": 1}})
    with pytest.raises(ConfigError, match=r"keep list\(event.groups\)"):
        step.groups  # noqa: B018


def test_stop_is_remembered_and_the_other_callbacks_are_called_too():
    steps = []
    callbacks = called(lambda event: STOP, lambda event: steps.append(event.step))
    callbacks.raise_if_stopped()
    callbacks.call(ALONE, ROW)
    assert steps == [7]
    with pytest.raises(Stopped, match="<lambda> returned STOP; the same command continues"):
        callbacks.raise_if_stopped()


def test_what_raises_or_answers_wrongly_ends_the_run_with_its_line(tmp_path):
    file = tmp_path / "watch.py"
    file.write_text("def on_step(event):\n    x = 1\n    raise ValueError('too bad')\n")
    with pytest.raises(RunError) as failed:
        load_callbacks(["watch.py:on_step"], tmp_path).call(ALONE, ROW)
    assert str(failed.value) == f"callback watch.py:on_step failed: ValueError: too bad, at {file}:3"
    with pytest.raises(RunError, match=r"returned True; return None, or vz\.STOP to end the run"):
        called(lambda event: True).call(ALONE, ROW)


async def later(event):
    """Do nothing."""


@pytest.mark.parametrize(
    ("callback", "error"),
    [
        ("none.py:f", "callback path 'none.py:f': expected 'file.py:function', looked for"),
        ("there.py:g", "there.py has no 'g'"),
        ("there.py:number", "is int; give a function"),
        (lambda: None, "is called as f\\(event\\), and too many positional arguments"),
        (3, "is int; give a function"),
        (later, "is async, and nothing awaits it"),
    ],
)
def test_what_cannot_be_called_is_refused_before_training(callback, error, tmp_path):
    (tmp_path / "there.py").write_text("number = 3\n")
    paths, given = ([callback], []) if isinstance(callback, str) else ([], [callback])
    with pytest.raises(ConfigError, match=error):
        load_callbacks(paths, tmp_path, given)
