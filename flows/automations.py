"""The automations of the deployments: mark silent runs as Crashed, and two that act on alarms and are off at first."""

from __future__ import annotations

from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CancelFlowRun, ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

HEARTBEAT = "prefect.flow-run.heartbeat"
SILENT_S = 90
"""Three heartbeats of 30 s."""
ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "AwaitingRetry", "Scheduled")
"""States after which no heartbeat is expected."""


def ready_automations() -> list[AutomationCore]:
    """Return the automations that belong to the deployments."""
    return [
        AutomationCore(
            name="verizero: silent runs have crashed",
            description=f"Marks a run as Crashed when its process sends no heartbeat for {SILENT_S} s. Retry it: it "
            "continues from its last checkpoint.",
            trigger=EventTrigger(
                # Proactive: fires when, after a heartbeat, none of these events follows in time.
                after={HEARTBEAT},
                expect={HEARTBEAT, *(f"prefect.flow-run.{end}" for end in ENDS)},
                match={"prefect.resource.id": ["prefect.flow-run.*"]},
                for_each={"prefect.resource.id"},
                posture=Posture.Proactive,
                threshold=1,
                within=timedelta(seconds=SILENT_S),
            ),
            actions=[
                ChangeFlowRunState(
                    state=StateType.CRASHED, message=f"No heartbeat for {SILENT_S} s: the process of the run is gone"
                )
            ],
        ),
        _on_event(
            "verizero.collapse.suspected",
            "cancel a run that collapses",
            "Off: the recipe's own guard already acts on a collapse.",
        ),
        _on_event(
            "verizero.verifier.alarm", "cancel a run whose graders fail", "Off: training leaves such responses out."
        ),
    ]


def register_automations() -> None:
    """Create the automations that the server does not have. Existing ones stay: people may have changed them."""
    with get_client(sync_client=True) as client:
        for automation in ready_automations():
            if not client.read_automations_by_name(automation.name):
                client.create_automation(automation)


def _on_event(event: str, name: str, why: str) -> AutomationCore:
    return AutomationCore(
        name=f"verizero: {name}",
        description=f"{why} Switch it on to cancel the run at the event `{event}`; a retry continues it.",
        enabled=False,
        trigger=EventTrigger(expect={event}, posture=Posture.Reactive, threshold=1, within=timedelta(0)),
        actions=[CancelFlowRun()],
    )
