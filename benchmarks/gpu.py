"""Proves and measures on a GPU what the tests can only show on a CPU; gpu_results.md has what each part shows.

    python3 benchmarks/gpu.py correctness --out DIR       the same tokens, log-probs and updates as on the CPU
    python3 benchmarks/gpu.py speed --out DIR             kernels and updates against what is possible, and TRL
    python3 benchmarks/gpu.py runs --out DIR              whole runs: with vLLM, the demo, the same bytes again
    python3 benchmarks/gpu.py memory --out DIR            memory against the plan, waits
    python3 benchmarks/gpu.py speed --dry --out DIR       all of it in small form on the CPU
    python3 benchmarks/gpu.py page --from DIR             write benchmarks/gpu_results.md

Each part runs in a process of its own with a time limit, and becomes one line of DIR/<command>.jsonl, whatever happened
to it. Nothing is downloaded: models have random weights. Needed are torch, transformers and pydantic; parts that need
TRL or DeepSpeed are skipped, and named, where those are not installed.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COMMANDS = ("correctness", "speed", "runs", "memory")
"""The most telling first. The limits of a command's parts add up to less than nine and a half minutes."""
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "gpu_results.md"
sys.path.insert(0, str(ROOT))
# A library that asks for a GPU while it is loaded must not start CUDA in this process, whose children are forked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> int:
    """Parse the command line, run the parts, and return 0 if none of them failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("command", choices=(*COMMANDS, "page"))
    options.add_argument("--out", type=Path, help="folder for results, logs and runs")
    options.add_argument("--from", type=Path, dest="source", help="page: folder with results")
    options.add_argument("--part", action="append", help="repeatable; default: all")
    options.add_argument("--dry", action="store_true", help="small forms of all parts, on the CPU")
    options.add_argument("--minutes", type=float, default=9.5, help="of the whole command; later parts are skipped")
    asked = options.parse_args()
    if asked.command == "page":
        return write_page(asked.source, options)
    if asked.out is None:
        options.error(f"{asked.command} needs --out, a folder for its results")
    return run_all(asked.command, asked.out.resolve(), asked.part, asked.dry, 60 * asked.minutes)


def run_all(command: str, out: Path, only: list[str] | None, dry: bool, limit_s: float) -> int:
    """Run the parts of a command in order, and write and print a line for each."""
    if dry:
        os.environ["TRITON_INTERPRET"] = "1"  # triton reads it where it is first imported, which a library may do
    import transformers
    import transformers.models.qwen2.modeling_qwen2
    import transformers.models.qwen3.modeling_qwen3  # once for all parts, as torch

    from benchmarks.gpu_parts.machine import Machine
    from benchmarks.gpu_parts.part import run

    begin = time.monotonic()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    parts, machine = parts_of(command), Machine(dry, out)
    unknown = set(only or ()) - {p.name for p in parts}
    if unknown:
        raise SystemExit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in parts)}")
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    with (out / f"{command}.jsonl").open("w") as file:
        for part in parts:
            if only and part.name not in only and part.name != "machine":
                continue
            line = run(part, machine, command, limit_s - (time.monotonic() - begin))
            file.write(json.dumps(line) + "\n")
            file.flush()
            failed += line["status"] not in ("done", "skipped")
            why = f": {line['why']}" if "why" in line else ""
            print(f"{part.name:20} {line['status']}{why} ({line.get('seconds', 0):.0f} s)", flush=True)
            if part.name == "machine" and line["status"] != "done":
                break
    return int(failed > 0)


def parts_of(command: str) -> list[Any]:
    """Return the parts of a command, the machine's description first."""
    from benchmarks.gpu_parts import correct, speed, traces, whole
    from benchmarks.gpu_parts.part import Part

    first = Part("machine", "The GPU and the versions that were used.", "", 30, describe)
    parts = {
        "correctness": correct.PARTS,
        "speed": speed.PARTS,
        "runs": whole.PARTS,
        "memory": traces.PARTS,
    }
    return [first, *parts[command]]


def describe(machine: Any) -> Iterator[dict[str, Any]]:
    """Name the GPU and the versions of what the parts use."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    row = {"GPU": "none, a dry run", "CUDA": None}
    if not machine.dry:
        if not torch.cuda.is_available():
            raise SystemExit("torch sees no GPU here; --dry runs small forms of all parts on the CPU")
        memory = torch.cuda.get_device_properties(0).total_memory / (1 << 30)
        row = {"GPU": torch.cuda.get_device_name(0), "GiB": memory, "CUDA": torch.version.cuda}
    for name in ("torch", "triton", "transformers", "deepspeed", "trl", "vllm"):
        try:
            row[name] = version(name)
        except PackageNotFoundError:
            row[name] = None
    yield row | {"python": platform.python_version()}


def write_page(source: Path | None, options: argparse.ArgumentParser) -> int:
    """Write the results of a folder into gpu_results.md, and the tables of the parts."""
    from benchmarks.gpu_parts.page import read, section

    if source is None:
        options.error("page needs --from, the folder with the results")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), section(read(source))), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


def page(text: str, results: str) -> str:
    """Return gpu_results.md with these results, and with the tables of the parts as they are."""
    from benchmarks.gpu_parts.page import parts_table, replace

    for command in COMMANDS:
        text = replace(text, command, parts_table(p for p in parts_of(command) if p.expected))
    return replace(text, "results", results)


if __name__ == "__main__":
    sys.exit(main())
