"""The deployments, one a form: for a runner here, or a pool of another server. Their automation finds crashed runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.types.entrypoint import EntrypointType

from verizero.flows import campaigns, forms
from verizero.flows.process_lifetime import SUSPENDED
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.host.child import SAFE_PATH, import_path

SRUN = "srun --ntasks=1 --kill-on-bad-exit=1 --unbuffered --export=ALL"
"""Starts a flow on a node of a Slurm cluster; the user's options (GPUs, time) are added."""
TAG = "verizero"
FORMS: tuple[Flow[..., Any], ...] = (forms.train, campaigns.rl_rounds, forms.evaluate, campaigns.promote)
ALONE = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
"""One run at a time; a run that is due while another runs is cancelled, not queued."""
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


def all_deployments(pool: str | None = None, job_variables: Mapping[str, Any] | None = None) -> list[RunnerDeployment]:
    """Return a deployment of each flow, for the pool, or for a runner that serves them."""
    return [
        RunnerDeployment.from_flow(
            flow,
            name=flow.name,  # what it does: the UI lists deployments by their own name
            tags=[TAG],
            concurrency_limit=ALONE if flow is campaigns.rl_rounds else None,
            # By module, as the package is installed where it runs; a path would bind it to this checkout.
            entrypoint_type=EntrypointType.MODULE_PATH,
            work_pool_name=pool,
            job_variables=dict(job_variables) if job_variables else None,
        )
        for flow in FORMS
    ]


def deploy(pool: str, recipes: Path, image: str | None = None, srun: str | None = None) -> list[str]:
    """Register every deployment and the automation on the server of PREFECT_API_URL; return the deployments' names.

    Raises: ConfigError for a pool that does not exist, or whose type does not fit the options.
    """
    with get_client(sync_client=True) as client:
        try:
            kind = str(client.read_work_pool(pool).type)
        except ObjectNotFound as exc:
            raise ConfigError(
                f"--pool {pool}: no such work pool on {client.api_url}; create it with "
                f"`prefect work-pool create {pool} --type process` (or kubernetes)"
            ) from exc
    variables = variables_for(kind, recipes, image, srun)
    deployments = all_deployments(pool, variables)
    for deployment in deployments:
        deployment.apply()
    register_automation()
    return [d.full_name for d in deployments]


def variables_for(kind: str, recipes: Path, image: str | None, srun: str | None) -> dict[str, Any]:
    """Return the job variables of a pool of that type. Raises: ConfigError for a type or option that does not fit."""
    environment = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "DO_NOT_TRACK": "1"}
    if kind == "kubernetes":
        if image is None:
            raise ConfigError("a kubernetes pool needs --image: name an image in which this project is installed")
        if srun is not None:
            raise ConfigError("--srun is for a process pool on a Slurm login node, not for a kubernetes pool")
        return {"image": image, "env": environment, "finished_job_ttl": 3600}
    if kind != "process":
        raise ConfigError(f"work pools of type {kind!r} are not supported; use process or kubernetes")
    if image is not None:
        raise ConfigError(
            "--image is for a kubernetes pool; a process pool runs what is installed on its worker's machine"
        )
    # Workers start flows in a process of their own, which needs the same recipes and code as this one.
    environment |= {forms.OWN_RECIPES: str(recipes.resolve()), **import_path()}
    environment[SAFE_PATH] = "1"
    job_variables: dict[str, Any] = {"env": environment, "working_dir": str(Path.cwd())}
    if srun is not None:
        job_variables["command"] = f"{SRUN} {srun}".strip() + f" {shlex.quote(sys.executable)} -m prefect.engine"
    return job_variables


def register_automation() -> None:
    """Create the automation unless the server has it: people may have changed it."""
    with get_client(sync_client=True) as client:
        if not client.read_automations_by_name(SILENT.name):
            client.create_automation(SILENT)
