"""Ready automations: a silent run is marked Crashed; and, switched off until somebody wants them, acts on alarms."""

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
"""After these nobody expects a heartbeat."""


def ready_automations() -> list[AutomationCore]:
    """Those that belong to the deployments, by name."""
    return [
        AutomationCore(
            name="verizero: silent runs have crashed",
            description=f"A run whose process sends no heartbeat for {SILENT_S} s is gone. Retry it: it goes on from "
            "its last checkpoint.",
            trigger=EventTrigger(
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
                    state=StateType.CRASHED, message=f"No heartbeat for {SILENT_S} s: its process is gone"
                )
            ],
        ),
        _on_event(
            "verizero.collapse.suspected", "cancel a run that collapses", "Off: the recipe's own guard acts already."
        ),
        _on_event(
            "verizero.verifier.alarm", "cancel a run whose graders fail", "Off: such responses leave their groups."
        ),
    ]


def register_automations() -> None:
    """Create those that the server lacks; those that it has stay as somebody may have changed them."""
    with get_client(sync_client=True) as client:
        for automation in ready_automations():
            if not client.read_automations_by_name(automation.name):
                client.create_automation(automation)


def _on_event(event: str, name: str, why: str) -> AutomationCore:
    return AutomationCore(
        name=f"verizero: {name}",
        description=f"{why} Switch it on to have the run cancelled at `{event}`; it goes on when it is retried.",
        enabled=False,
        trigger=EventTrigger(expect={event}, posture=Posture.Reactive, threshold=1, within=timedelta(0)),
        actions=[CancelFlowRun()],
    )
