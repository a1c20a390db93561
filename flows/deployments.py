"""The deployments: one for each form, the same ones for a runner on this machine and for a work pool elsewhere."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.types.entrypoint import EntrypointType

from flows import campaigns, forms
from flows.automations import register_automations
from pipeline.errors import ConfigError

SRUN = "srun --ntasks=1 --kill-on-bad-exit=1 --unbuffered --export=ALL"
"""How a flow gets its node on a cluster; what is asked for besides (GPUs, time) is added to it."""
NAME = "verizero"
FORMS: tuple[Flow[..., Any], ...] = (
    forms.train,
    forms.sft,
    campaigns.rl_rounds,
    forms.evaluate,
    forms.compare,
    forms.verify_dataset,
    forms.audit_verifier,
    campaigns.promote,
)
ALONE = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
"""One firing at a time; one that finds another at work is cancelled, and is not made up for later."""


def all_deployments(pool: str | None = None, job_variables: Mapping[str, Any] | None = None) -> list[RunnerDeployment]:
    """A deployment of each flow. Without a pool they are for a runner that serves them."""
    made = []
    for one in FORMS:
        made.append(
            RunnerDeployment.from_flow(
                one,
                name=NAME,
                tags=[NAME],
                concurrency_limit=ALONE if one is campaigns.rl_rounds else None,
                entrypoint_type=EntrypointType.MODULE_PATH,
                work_pool_name=pool,
                job_variables=dict(job_variables) if job_variables else None,
            )
        )
    return made


def deploy(pool: str, recipes: Path, image: str | None = None, srun: str | None = None) -> list[str]:
    """Register every deployment and automation for the work pool on the server that PREFECT_API_URL names; the names.

    Raises: ConfigError for a pool that is not there, or one whose type does not fit what is asked.
    """
    kind = pool_type(pool)
    variables = variables_for(kind, recipes, image, srun)
    for deployment in (made := all_deployments(pool, variables)):
        deployment.apply()
    register_automations()
    return [d.full_name for d in made]


def pool_type(pool: str) -> str:
    """The type of the work pool. Raises: ConfigError naming the server and how a pool is made."""
    with get_client(sync_client=True) as client:
        try:
            return str(client.read_work_pool(pool).type)
        except ObjectNotFound as exc:
            raise ConfigError(
                f"--pool {pool}: no such work pool on {client.api_url}; make it with "
                f"`prefect work-pool create {pool} --type process` (or kubernetes)"
            ) from exc


def variables_for(kind: str, recipes: Path, image: str | None, srun: str | None) -> dict[str, Any]:
    """The job variables of a pool of that type. Raises: ConfigError for a type or an option that does not fit it."""
    environment = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "DO_NOT_TRACK": "1"}
    if kind == "kubernetes":
        if image is None:
            raise ConfigError("a kubernetes pool needs --image, one in which this project is installed")
        if srun is not None:
            raise ConfigError("--srun is for a process pool on a Slurm login node, not for a kubernetes pool")
        return {"image": image, "env": environment, "finished_job_ttl": 3600}
    if kind != "process":
        raise ConfigError(f"work pools of type {kind!r} are not known here; use process or kubernetes")
    if image is not None:
        raise ConfigError("--image is for a kubernetes pool; a process pool runs what is installed where its worker is")
    environment |= {forms.OWN_RECIPES: str(recipes.resolve()), "PYTHONPATH": os.pathsep.join(p for p in _paths() if p)}
    own: dict[str, Any] = {"env": environment, "working_dir": str(Path.cwd())}
    if srun is not None:
        own["command"] = f"{SRUN} {srun}".strip() + f" {shlex.quote(sys.executable)} -m prefect.engine"
    return own


def _paths() -> list[str]:
    return [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
