"""Write docs/losses.md: losses on the same batch by their papers, by this project and by TRL as installed.

`python docs/make_losses.py` (of `make docs`) does all; with another release of TRL it writes that release's page.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
if TYPE_CHECKING:
    from tests.losses.cases import Case
    from tests.losses.compare import Result

PAGE = Path(__file__).with_name("losses.md")
NEAR = 1e-5
"""TRL computes rewards and advantages in float32."""
OPENING = """# Losses, compared

The same batch through the paper's formula, through this project and through TRL {version} as installed, all in float64
(TRL keeps rewards in float32). `make docs` writes this page (`docs/make_losses.py`; the cases are in
`tests/losses/cases.py`): with another release of TRL, that release's. A test computes every row again.

- **paper**: the slow double of `tests/oracles`, from log-probs of tokens and rewards.
- **ours**: the loss by our name, with its own defaults; "equal" means as the paper, to 1e-5 of the value.
- **TRL by name**: what somebody gets who asks for the loss by its name.
- **TRL as the paper**: with the arguments nearest to the paper. "equal" means that the gradients of TRL and ours are
  equal to 1e-5; else it is their distance, as a share of ours.
"""
POLICY = """
## RL

Eight responses of 1 to 9 tokens to two prompts, sampled by a tiny policy that has moved since, so that ratios differ
from 1. The paper's numbers are those of our preset. TRL's trainer grades the responses, computes advantages and
log-probs, and the loss.
"""
PREFERENCES = """
## Preferences

Four pairs of responses of 1 to 7 tokens, given as log-probs of the policy and the reference; gradients are to the
log-probs.
"""


def page() -> str:
    """Return the whole page. Takes a minute."""
    from tests.losses.cases import PAIRS, RL

    with tempfile.TemporaryDirectory() as work:
        rows = {case.name: row(case, Path(work)) for case in (*RL, *PAIRS)}
    head = ("| loss | our name | paper | ours | TRL by name | TRL as the paper | what differs |", "|---" * 7 + "|")
    tables = ["\n".join([*head, *(rows[case.name] for case in cases)]) for cases in (RL, PAIRS)]
    parts = [OPENING.format(version=version("trl")), POLICY, tables[0], "\n", PREFERENCES, tables[1], "\n"]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part.strip("\n")).rstrip() + "\n"


def row(case: Case, work: Path) -> str:
    """Return the line of the table of one loss, computed in the folder `work`."""
    import torch
    import transformers

    from tests.losses.compare import compare
    from tests.losses.policy_rows import save_tiny

    folder = work / "model"
    if not folder.exists():
        save_tiny(folder)
    transformers.logging.set_verbosity_error()
    before = torch.get_default_dtype()
    try:
        if case.trainer.rpartition(".")[2] not in ("GRPO", "GMPO"):
            torch.set_default_dtype(torch.float64)  # TRL makes a tensor of label_smoothing in the default type
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return line(case, compare(case, str(folder), work / "out"))
    finally:
        torch.set_default_dtype(before)


def line(case: Case, result: Result) -> str:
    """Return the line of a result."""
    name, numbers = case.ours
    own = f"`{name}`" + (f" {arguments(numbers)}" if numbers and name != "custom" else "")
    same = result.ours if abs(result.ours - result.paper) > NEAR * max(1.0, abs(result.paper)) else None
    trl = "equal" if result.asked_apart < NEAR else f"gradient {result.asked_apart:.1g} apart"
    if result.asked_apart >= NEAR and case.same:
        ours_as_trl = "equal" if result.same_apart < NEAR else f"{result.same_apart:.1g} apart"
        trl += f"; {ours_as_trl} with our {arguments(case.same)}"
    unexplained = "" if case.why or (same is None and result.asked_apart < NEAR) else "**not explained**"
    cells = (
        f"{case.name} ({case.source})",
        own,
        f"{result.paper:.5g}",
        "equal" if same is None else f"{same:.5g}",
        f"{result.named:.5g}: {arguments(case.named)}",
        f"{result.asked:.5g}, {trl}: {arguments(case.asked)}",
        case.why or unexplained or "nothing",
    )
    return f"| {' | '.join(cells)} |"


def arguments(values: dict[str, Any]) -> str:
    """Return arguments as Python writes them."""
    return " ".join(f"`{key}={value!r}`" for key, value in values.items()) or "its defaults"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
