"""Prefect imported once for many servers, runners and flow runs.

Our own flows are imported by each of them, as their forms list the recipes of its folder.
"""

import prefect.cli
import prefect.cli.worker
import prefect.engine
import prefect.runner
import prefect.server.api.server
import prefect.workers.process  # noqa: F401
import uvicorn  # noqa: F401
