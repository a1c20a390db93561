"""The section of a page with responses on which a second verifier disagreed."""

from __future__ import annotations

from collections import deque

from verizero.pipeline.report.files import RunFiles, read_rollouts
from verizero.pipeline.report.row_types import OpinionRow, RolloutRow
from verizero.pipeline.report.samples import shorten
from verizero.pipeline.shown import in_html

MAX_LISTED = 50
MAX_TEXT = 400
"""Characters of a prompt, a response or a reason in the list."""


def opinions_section(run: RunFiles) -> str:
    """Markup: how many verdicts had a second opinion, and the newest disagreements; empty where none was asked for."""
    metrics = [row.metrics for row in run.rl_steps]
    if not any("verdict/second_opinions" in m for m in metrics):
        return ""
    num_graded_twice, num_different = (
        int(sum(m.get(f"verdict/{name}", 0) for m in metrics)) for name in ("second_opinions", "disagreements")
    )
    rows = list(_newest(run))
    share = f" ({num_different / num_graded_twice:.1%})" if num_graded_twice else ""
    note = f"{num_different:,} of {num_graded_twice:,} verdicts{share} that a second verifier gave again differ. "
    if num_different:
        shown = (
            "All are listed." if len(rows) == num_different else f"The {len(rows):,} newest that were kept are listed."
        )
        note += f"{shown} Each is an error of one of the two: the first gave the reward."
    return (
        f'<section id="second"><h2>Second opinions</h2>\n<p class="note">{in_html(note)}</p>{_table(rows)}</section>\n'
    )


def _newest(run: RunFiles) -> deque[RolloutRow]:
    rows = (row for row in read_rollouts(run.folder) if row.second is not None and row.second.disagrees)
    return deque(rows, maxlen=MAX_LISTED)


def _table(rows: list[RolloutRow]) -> str:
    if not rows:
        return ""
    names = ("Step", "Domain", "Prompt", "Answer", "First", "Second")
    head = "".join(f"<th scope='col'>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(row))}</tr>" for row in reversed(rows))
    return f'<div class="card"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: RolloutRow) -> list[str]:
    verdicts = ["" if verdict is None else _in_words(verdict) for verdict in (row, row.second)]
    texts = [str(row.step), row.domain, row.prompt, row.response, *verdicts]
    return [in_html(shorten(text, MAX_TEXT)) for text in texts]


def _in_words(verdict: RolloutRow | OpinionRow) -> str:
    number = f" {verdict.score:g}" if verdict.status == "graded" else ""
    return f"{verdict.status}{number}: {verdict.reason}"
