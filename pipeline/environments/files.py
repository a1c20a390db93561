"""An answer to look for in files: calls of list, read and search are answered, then the first message is the answer.

The row's answer is {"files": {name: text}, "answer": text}; with a folder or files in the parameters, it may be the
text alone. The answer is right if it equals that text, letter by letter.
"""

from __future__ import annotations

from collections.abc import Mapping

from verizero.pipeline.environments._answers import exact
from verizero.pipeline.environments.base import EnvironmentParams
from verizero.pipeline.environments.tool_use import ToolEpisode
from verizero.pipeline.environments.tools import files
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt

EXAMPLE = Prompt("files/1", "read a", "environment", {"files": {"a": "see b", "b": "see c", "c": "42"}, "answer": "42"})


class Params(EnvironmentParams, files.Params):
    """The files, and the most that is shown of them."""


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> ToolEpisode:
    """Return an episode over the files. Raises: DataError if the row has no answer or no files."""
    reference = prompt.reference
    answer = reference.get("answer") if isinstance(reference, Mapping) else reference
    if not isinstance(answer, str | int | float):
        raise DataError(f"answer.answer: expected a text or number, got {answer!r:.80}")
    return ToolEpisode(files.tools(params, prompt), lambda message: exact(message, answer))
