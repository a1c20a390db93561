"""The section of a page with a run's alarms: suspected collapses, and graders that failed."""

from __future__ import annotations

from verizero.pipeline.report.files import RunFiles
from verizero.pipeline.report.row_types import Alarm, VerifierAlarm
from verizero.pipeline.shown import in_html

MAX_ALARMS = 50
"""Maximum of listed alarms: graders that fail for days raise the same alarm a thousand times."""


def alarms_section(run: RunFiles) -> str:
    """Return the section of the page, empty for a run without alarms."""
    if not run.alarms:
        return ""
    alarms = run.alarms[-MAX_ALARMS:]
    num_left = len(run.alarms) - len(alarms)
    note = f'<p class="note">The last {len(alarms)} of {len(run.alarms):,}.</p>' if num_left else ""
    items = "".join(f"<li>{in_html(alarm_line(row))}</li>" for row in alarms)
    return f'<section id="alarms"><h2>Alarms</h2>{note}<ul class="alarms card">{items}</ul></section>\n'


def alarm_line(row: Alarm) -> str:
    """Return the alarm in one sentence."""
    if isinstance(row, VerifierAlarm):
        share = f"{row.failure_rate:.0%} of {row.responses:,} responses"
        return f"{row.where or row.stage}: graders failed on {share}. {row.first}".strip()
    signs = ", ".join(sign.text for sign in row.signs)
    suspicion = f"{row.stage} step {row.step}: RL may be collapsing: {signs}"
    if row.to_step is None:
        return suspicion + (". The run went on" if row.action == "warn" else ". The run was stopped")
    knob = ", ".join(f"{name} = {value:g}" for name, value in (row.knob or {}).items())
    return f"{suspicion}. Rolled back to step {row.to_step}, with {knob} from there on"
