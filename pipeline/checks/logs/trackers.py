"""Numbers that any trainer prints or sends to a tracker: consoles, event files of TensorBoard, exports of W&B.

Each reader returns None if a path has nothing of its kind.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.checks.logs.logged import Logged, first_row, flat, numbers
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import parse_json

# No pattern may try a line's characters more than a few times each: a policy can print any line.
OF_DICTIONARY = re.compile(r"['\"](?:loss|reward)['\"]:")
OF_ARRAYS = re.compile(r"(?:np\.\w+|tensor)\(([^(),]*)(?:,[^()]*)?\)")
"""A number as numpy or torch writes it."""
NO_NUMBER = re.compile(r"(?<=: )-?(?:nan|inf)\b")
STEP_BEFORE = re.compile(r"[Ss]tep[ :=]+(\d{1,12})\b")
VERL = re.compile(r"step:(\d{1,12}) - (.+)")
SUFFIXES = (".log", ".txt", ".out")
MAX_LINE = 100_000
EVENTS = "tfevents"
"""A part of the names of event files."""
OWN_STEPS = ("train/global_step", "training/global_step", "trainer/global_step")
"""The trainer's own step, which is better than W&B's: that counts calls of `log`."""
STEPS = ("_step", "step", "Step", "global_step")
OF_PANEL = re.compile(r"^(.+) - (.+)$")
"""A column of a chart's export: the run's name, then the number's."""
BOUNDS = ("__MIN", "__MAX")


def console(path: Path) -> Logged | None:
    """Return the numbers of each line of a text, as TRL and verl print them; a line without a step is counted.

    Of a folder, those of the text that was written last.
    """
    if path.is_file():
        return _of_console(path) if path.suffix in SUFFIXES else None
    logged = Logged()
    files = [f for depth in ("*", "*/*", "*/*/*") for f in sorted(path.glob(depth)) if f.suffix in SUFFIXES]
    texts = {file: own for file in files if file.is_file() and (own := _of_console(file)) is not None}
    if texts:
        logged.add(texts[logged.newest({file: [file] for file in texts})])
    return logged if texts else None


def _of_console(path: Path) -> Logged | None:
    logged, epochs, skipped = Logged(files=[str(path)]), list[float](), 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            text = line[:MAX_LINE].decode(errors="replace")
            if (row := _of_line(text)) is None:
                skipped += OF_DICTIONARY.search(text) is not None and "train_runtime" not in text
                continue
            step, values = row
            epoch = values.get("epoch", epochs[-1] if epochs else 0.0)
            if epochs and epoch < epochs[-1]:  # a run that was resumed, or begun again
                while epochs and epochs[-1] >= epoch:
                    epochs.pop()
            epochs.append(epoch)
            logged.add_row(path, number, len(epochs) if step is None else step, values)
    logged.count_lines(skipped, path)
    return logged if logged.rows else None


def _of_line(line: str) -> tuple[int | None, dict[str, float]] | None:
    if "np." in line or "tensor(" in line:
        line = OF_ARRAYS.sub(r"\1", line)
    if (match := VERL.search(line)) is not None:
        pairs = (part.partition(":") for part in match[2].split(" - "))
        values = numbers({name.strip(): value for name, _, value in pairs})
        return (int(match[1]), values) if values else None
    if (match := OF_DICTIONARY.search(line)) is None:
        return None
    begin, end = line.rfind("{", 0, match.start()), line.find("}", match.end())
    try:
        tree = ast.literal_eval(NO_NUMBER.sub("1e999", line[begin : end + 1]))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(tree, dict) or "train_runtime" in tree:
        return None
    step = STEP_BEFORE.search(line[:begin])
    return (int(step[1]) if step else None), numbers({str(k): v for k, v in tree.items()})


def tensorboard(path: Path) -> Logged | None:
    """Return the scalars of the event files at a path, and the arguments of a run that transformers wrote as text.

    Files are looked for at most three folders down. The package `tensorboard` reads them. Source of the texts:
    transformers, integrations (`TensorBoardCallback`). Raises: RunError if the package is not installed.
    """
    if path.is_file():
        files = [path] if EVENTS in path.name else []
    else:
        depths = ("*", "*/*", "*/*/*", "*/*/*/*")
        files = sorted(f for depth in depths for f in path.glob(f"{depth}{EVENTS}*") if f.is_file())
    runs: dict[Path, list[Path]] = {}
    for file in sorted(files, key=lambda f: (len(f.parts), f.stat().st_mtime)):
        # A folder within that of a run is a part of it.
        runs.setdefault(next((p for p in file.parents if p in runs), file.parent), []).append(file)
    logged = Logged()
    for file in runs[logged.newest(runs)] if runs else ():
        logged.files.append(str(file))
        for number, (step, values) in enumerate(_events(file), 1):
            logged.add_row(file, number, step, {name: v for name, v in values.items() if isinstance(v, float)})
            for name, text in values.items():
                if isinstance(text, bytes) and name.startswith("args/"):
                    logged.settings |= _arguments(text)
    return logged if files else None


def _events(file: Path) -> Iterator[tuple[int, dict[str, float | bytes]]]:
    """Yield step, and numbers and texts, of each event; a last one that is not whole is left out."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as exc:
        raise RunError(f"{file} is read by a package that is not installed ({exc}); `pip install tensorboard`") from exc
    for event in RawEventFileLoader(str(file)).Load():
        parsed, values = Event.FromString(event), dict[str, float | bytes]()
        for value in parsed.summary.value:
            if value.HasField("simple_value"):
                values[value.tag] = value.simple_value
            elif value.HasField("tensor") and (tensor := make_ndarray(value.tensor)).size == 1:
                values[value.tag] = tensor.item()
        yield parsed.step, values


def _arguments(text: bytes) -> dict[str, Any]:
    try:
        tree = parse_json(text.decode().strip().removeprefix("```json").removesuffix("```"))
    except (ValueError, RecursionError):
        return {}
    return flat(tree) if isinstance(tree, dict) else {}


def wandb_export(path: Path) -> Logged | None:
    """Return a history that was exported as CSV, or as JSON: one object a line, a list, or columns as of pandas."""
    rows: Any = []
    logged = Logged(files=[str(path)])
    if path.suffix == ".csv":
        csv.field_size_limit(2**31 - 1)
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            read = csv.DictReader(text.replace("\0", "") for text in lines)
            _require_one_run(path, read.fieldnames or ())
            try:
                rows = [(number, _of_csv(row)) for number, row in enumerate(read, 2)]
            except csv.Error as exc:
                raise RunError(f"{path} is no table ({exc}); export it again") from exc
    elif path.suffix == ".jsonl":
        if not any(first_row(path, name) for name in (*OWN_STEPS, *STEPS)):
            return None
        rows = logged.objects(path)
    elif path.suffix == ".json":
        try:
            tree: Any = parse_json(path.read_bytes())
        except (ValueError, RecursionError) as exc:
            raise RunError(f"{path} is no history in JSON ({exc}); export it again") from exc
        if isinstance(tree, Mapping):
            tree = tree.get("history") or tree.get("data") or _from_columns(tree)
        rows = enumerate(tree if isinstance(tree, list) else [], 1)
    else:
        return None
    for number, values in rows:
        row = numbers(flat(values)) if isinstance(values, Mapping) else {}
        logged.add_row(path, number, next((row[name] for name in (*OWN_STEPS, *STEPS) if name in row), number), row)
    return logged


def _require_one_run(path: Path, columns: Sequence[str]) -> None:
    """Raise RunError where a chart has a number of several runs."""
    runs: dict[str, list[str]] = {}
    for match in filter(None, map(OF_PANEL.match, columns)):
        if not match[0].endswith(BOUNDS):
            runs.setdefault(match[2], []).append(match[1])
    if several := [(name, own) for name, own in runs.items() if len(own) > 1]:
        name, own = several[0]
        raise RunError(
            f"{path} has {name} of {len(own)} runs ({', '.join(own)}); export the chart of one, or keep its columns"
        )


def _of_csv(row: Mapping[str, str]) -> dict[str, str]:
    names = {name: OF_PANEL.match(name) for name in row if name and not name.endswith(BOUNDS)}
    return {match[2] if match else name: row[name] for name, match in names.items() if row[name]}


def _from_columns(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = {name: column for name, column in tree.items() if isinstance(column, Mapping)}
    places = sorted({p for column in columns.values() for p in column}, key=lambda p: (len(p), p))
    return [{name: column.get(p) for name, column in columns.items()} for p in places]
