"""Runs that are broken off or killed at a chosen moment and resumed."""

import json
import signal
import subprocess
import sys

from tests.source import ROOT
from tests.stages.kill_driver import KILLS, fingerprint
from tests.stages.sessions import run_all
from tests.warm import warm
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.saving import save_final


class Broken(BaseException):
    """Nothing in the run catches it, as nothing catches a kill."""


def run(config, folder, breaks=None):
    """The run from where it is, broken off after the n-th time of a phase where `breaks` says so."""
    left = 0 if breaks is None else breaks[1]

    def wrap(phase, function):
        def call(*arguments):
            nonlocal left
            result = function(*arguments)
            if breaks is not None and phase == breaks[0]:
                left -= 1
                if left == 0:
                    raise Broken
            return result

        return call

    with open_run(config, folder.parent, folder, "auto", Progress()) as session:
        run_all(session, wrap)
        save_final(session.run, session.workers.backend)


def killed(folder, kills, *overrides):
    """Assert that runs of the tiny recipe, or a named one, die at these kills and end as the run never killed."""
    command = [sys.executable, "-m", "tests.stages.kill_driver", str(folder), kills, *overrides]
    done = warm().call(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ends = json.loads(done.stdout.splitlines()[-1])
    assert ends["whole"][0] == 0, done.stderr[-9000:]
    assert list(ends["killed"]) == KILLS[kills]
    for text, scenario in ends["killed"].items():
        missed = {kill: death for kill, death in scenario["deaths"] if death != -signal.SIGKILL}
        assert not missed, f"the run did not die at these kills but ended with {missed}:\n{done.stderr[-9000:]}"
        assert scenario["end"] == ends["whole"], text


def goes_on_as_if_never_broken(config, folder, breaks):
    """Assert that a run broken off at these moments, one after the other, leaves the bytes of one that went through.

    The runs are `whole` and `broken`. The numbers of each moment count from where the run was resumed.
    """
    run(config, folder / "whole")
    for moment in breaks:
        try:
            run(config, folder / "broken", moment)
        except Broken:
            continue
        raise AssertionError(f"{moment} never came")
    run(config, folder / "broken")
    assert fingerprint(folder / "broken") == fingerprint(folder / "whole")
