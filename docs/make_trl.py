"""Write docs/trl.md: its head stays, and its tables are made from pipeline/library/trl/arguments.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verizero.pipeline.library.trl.arguments import ARGUMENTS, AS_THEY_ARE, MEANINGLESS, REFUSED, TRANSLATED
from verizero.pipeline.library.trl.trainer import REMEDIES

PAGE = Path(__file__).with_name("trl.md")
MARK = "## Every argument of GRPOConfig\n"


def page(before: str) -> str:
    """Return the page with new tables."""
    head = before.partition(MARK)[0]
    translated = [name for name in ARGUMENTS if name in TRANSLATED or name in AS_THEY_ARE]
    parts = [
        head + MARK,
        f"All {len(ARGUMENTS)} of them, made by `make docs` from `pipeline/library/trl/arguments.py`.\n",
        "### Translated\n",
        _table("becomes", [(f"`{n}`", shown(ARGUMENTS[n].default), ARGUMENTS[n].text) for n in translated]),
        "### Refused\n",
        "A value other than the default is refused with this reason.\n",
        _table("reason and remedy", [(f"`{n}`", shown(default), text) for n, (default, text) in REFUSED.items()]),
        "### Without a meaning here\n",
        "A value other than TRL's default is refused with this reason. Leave these out.\n",
        *(f"- {why}: {', '.join(f'`{n}`' for n in names)}" for why, names in MEANINGLESS.items()),
        "\n### Arguments of GRPOTrainer that are refused\n",
        *(f"- `{name}`: {remedy}" for name, remedy in REMEDIES.items()),
    ]
    return "\n".join(parts) + "\n"


def shown(default: Any) -> str:
    """Return a default as Python writes it."""
    return f"`{default!r}`"


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| argument | TRL's default | {title} |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
