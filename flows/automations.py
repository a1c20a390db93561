"""The automation of the deployments: mark silent runs as Crashed."""

from __future__ import annotations

from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from verizero.flows.process_lifetime import SUSPENDED

HEARTBEAT = "prefect.flow-run.heartbeat"
SILENT_S = 90
"""Three heartbeats of 30 s."""
ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Suspended", "AwaitingRetry", "Scheduled")
"""States after which no heartbeat is expected."""
SILENT = AutomationCore(
    name="verizero: silent runs have crashed",
    description=f"Marks a run as Crashed when its process sends no heartbeat for {SILENT_S} s. Retry it: it continues "
    "from its last checkpoint.",
    trigger=EventTrigger(
        # Proactive: fires when, after a heartbeat, none of these events follows in time.
        after={HEARTBEAT},
        # A suspended run sends heartbeats until its phase ends, and then SUSPENDED.
        expect={HEARTBEAT, SUSPENDED, *(f"prefect.flow-run.{end}" for end in ENDS)},
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
)


def register_automation() -> None:
    """Create the automation unless the server has it: people may have changed it."""
    with get_client(sync_client=True) as client:
        if not client.read_automations_by_name(SILENT.name):
            client.create_automation(SILENT)
