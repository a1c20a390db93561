"""Gives forms wrong values: `python -m tests.flows.forms_driver FILE`, a JSON list of [flow, parameters].

Prints what each raised, its text, and whether torch was loaded by then.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from prefect.logging import disable_run_logger

from verizero.flows.deployments import FORMS


def main(cases: Path) -> None:
    """One line of JSON for each case."""
    flows = {flow.name: flow for flow in FORMS}
    for name, parameters in json.loads(cases.read_text()):
        try:
            with disable_run_logger():
                flows[name].fn(**parameters)
        except Exception as exc:
            print(json.dumps([type(exc).__name__, str(exc), "torch" in sys.modules]))
        else:
            print(json.dumps(["nothing", "", "torch" in sys.modules]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
