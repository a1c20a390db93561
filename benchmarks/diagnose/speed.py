"""Seconds in which the diagnosis reads 100 MB of logs of each kind, by fresh processes.

    python -m benchmarks.diagnose.speed --megabytes 100

Numbers and responses are those of a recorded run of TRL and of tests/diagnosis/formats.tar.xz, repeated.
"""

from __future__ import annotations

import argparse
import json
import lzma
import resource
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from itertools import count, cycle
from pathlib import Path
from typing import Any

from benchmarks.diagnose.in_trl.score import RECORDED
from benchmarks.diagnose.recorded import unpack
from verizero.pipeline.diagnosis.logs import wandb_files

FORMATS = RECORDED.parent / "formats.tar.xz"
PROGRAM = "import sys; from verizero.pipeline.cli import main; main(['diagnose', *sys.argv[1:]])"


def main() -> None:
    """Write each kind, and print the seconds that a diagnosis of it takes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--megabytes", type=float, default=100.0)
    size = int(options.parse_args().megabytes * 1e6)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "formats"
        with lzma.open(FORMATS) as file, tarfile.open(fileobj=BytesIO(file.read())) as tar:
            tar.extractall(source, filter="data")
        unpack(RECORDED / "healthy-0.tar.xz", source / "trl")
        print("logs                            MB  seconds  CPU seconds")
        for number, (name, write) in enumerate(KINDS.items()):
            into = Path(folder) / str(number)
            into.mkdir()
            write(source, into, size)
            megabytes = sum(f.stat().st_size for f in into.rglob("*") if f.is_file()) / 1e6
            wall, cpu = seconds_of([str(path) for path in sorted(into.iterdir())])
            print(f"{name:28}{megabytes:6.0f}  {wall:7.1f}  {cpu:11.1f}", flush=True)


def seconds_of(paths: list[str]) -> tuple[float, float]:
    """Return the seconds of a diagnosis of the paths, by the clock and of the processor."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([sys.executable, "-c", PROGRAM, *paths], capture_output=True, text=True)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "causes were looked for" in done.stdout, done.stderr
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def repeated(rows: list[Any], line: Callable[[Any, int], str], size: int) -> str:
    """Return lines of the rows again and again, `size` bytes of them; a line is told the number of its step."""
    lines, length = list[str](), 0
    for step in count(1):
        lines.append(line(rows[step % len(rows)], step))
        length += len(lines[-1])
        if length > size:
            return "".join(lines)
    raise AssertionError


def verl_numbers(source: Path, into: Path, size: int) -> None:
    """The file logger's JSONL."""
    rows = [json.loads(line) for line in (source / "verl/healthy/metrics.jsonl").read_text().splitlines()][1:]
    text = repeated(rows, lambda row, step: json.dumps({**row, "step": step}) + "\n", size)
    (into / "metrics.jsonl").write_text(text)


def verl_responses(source: Path, into: Path, size: int) -> None:
    """Dumps of 256 long responses a step, and the numbers of their steps."""
    rows = [json.loads(line) for line in (source / "verl/dumped/rollouts/1.jsonl").read_text().splitlines()]
    (into / "rollouts").mkdir()
    num_steps = max(1, size // 1_000_000)
    for step in range(1, num_steps + 1):
        long = [json.dumps({**r, "output": "We go on. " * 380 + r["output"], "step": step}) for r in (rows * 8)[:256]]
        (into / "rollouts" / f"{step}.jsonl").write_text("\n".join(long) + "\n")
    verl_numbers(source, into, 1000 * num_steps)


def verl_console(source: Path, into: Path, size: int) -> None:
    """Lines of its console."""
    rows = (source / "verl/console/train.log").read_text().splitlines()
    (into / "train.log").write_text(
        repeated(rows, lambda row, step: row.replace(row.split("step:")[1].split(" ")[0], str(step), 1) + "\n", size)
    )


def trl_numbers(source: Path, into: Path, size: int) -> None:
    """trainer_state.json of a run with many steps."""
    state = next((source / "trl").glob("checkpoint-*/trainer_state.json"))
    tree = json.loads(state.read_text())
    rows = repeated(tree["log_history"], lambda row, step: json.dumps({**row, "step": step}) + ",\n", size)
    tree["log_history"] = json.loads(f"[{rows.rstrip()[:-1]}]")
    (into / "trl" / "checkpoint-1").mkdir(parents=True)
    (into / "trl" / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(tree, indent=2))


def longer(number: int, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return a completion that says much before it answers."""
    return [{**message, "content": f"{number:x} " * 900 + message["content"]} for message in messages]


def trl_responses(source: Path, into: Path, size: int) -> None:
    """Completions tables of 64 long completions a step."""
    import pyarrow
    import pyarrow.parquet

    trl_numbers(source, into, 200_000)
    (into / "trl" / "completions").mkdir()
    table = pyarrow.parquet.read_table(next((source / "trl").glob("completions/*.parquet")))
    own = [longer(n, completion) for n, completion in enumerate(table.column("completion").to_pylist())]
    place = table.schema.get_field_index("completion")
    table = table.set_column(place, "completion", pyarrow.array(own))
    written = 0
    for step in count(1):
        file = into / "trl" / "completions" / f"completions_{step:05d}.parquet"
        place = table.schema.get_field_index("step")
        table = table.set_column(place, "step", pyarrow.array([step] * table.num_rows))
        pyarrow.parquet.write_table(table, file, compression="none", use_dictionary=False)
        written += file.stat().st_size
        if written > size:
            return


def wandb_history(source: Path, into: Path, size: int) -> None:
    """A history as JSON lines."""
    rows = [json.loads(line) for line in (source / "wandb_exports/lines.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if v is not None} for row in rows if row.get("train/reward") is not None]
    text = repeated(rows, lambda r, step: json.dumps({**r, "_step": step, "train/global_step": step}) + "\n", size)
    (into / "history.jsonl").write_text(text)


def wandb_run(source: Path, into: Path, size: int) -> None:
    """An offline run: the records of a real one again and again, in its blocks of 32 KiB."""
    file = next((source / "wandb").rglob("*.wandb"))
    records = [record for _, record in wandb_files._records(file)]
    out, length = [file.read_bytes()[: wandb_files.FILE_HEAD]], wandb_files.FILE_HEAD
    for record in cycle(records):
        if length > size:
            break
        left, is_first = record, True
        while left:
            room = wandb_files.BLOCK - length % wandb_files.BLOCK
            if room < wandb_files.HEAD:
                out.append(bytes(room))
                length += room
                continue
            part, left = left[: room - wandb_files.HEAD], left[room - wandb_files.HEAD :]
            kind = (2 if left else 1) if is_first else (3 if left else 4)
            out.append(struct.pack("<IHB", 0, len(part), kind) + part)
            length += wandb_files.HEAD + len(part)
            is_first = False
    (into / "run-1.wandb").write_bytes(b"".join(out))


KINDS = {
    "verl: numbers": verl_numbers,
    "verl: responses": verl_responses,
    "verl: console": verl_console,
    "TRL: numbers": trl_numbers,
    "TRL: completions": trl_responses,
    "W&B: history": wandb_history,
    "W&B: offline run": wandb_run,
}

if __name__ == "__main__":
    main()
