"""The program of a separate process: it scores answers with the reasoning-gym package, whose
scorers evaluate answers as code.

One request per line of standard input, one reply per line of standard output, all JSON.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from typing import Any

EVALUATES = re.compile(r"\b(eval|exec|parse_expr|sympify|literal_eval)\(")
NAMES = {"sin", "cos", "tan", "exp", "log", "sqrt", "Abs", "pi", "E", "C", "asin", "acos", "atan"}
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
PLAIN = re.compile(r"[\w\s+\-*/().,\[\]'\"^=|]*", re.ASCII)


@lru_cache(maxsize=64)
def dataset_of(name: str, config: str) -> Any:
    """Return the data set of that name and configuration (JSON)."""
    gc.disable()  # what modules make stays: to look through it is a part of an import's time
    import reasoning_gym

    gc.enable()
    return reasoning_gym.create_dataset(name, **json.loads(config))


def is_plain(answer: str) -> bool:
    """True if evaluating the answer can only do arithmetic or make a list: no attributes, unknown calls, towers.

    Quoted text may hold letters only, so that nothing in it can be a program.
    """
    if not PLAIN.fullmatch(answer) or "__" in answer or re.search(r"[A-Za-z_)\]'\"]\s*\.|\.\s*[A-Za-z_]", answer):
        return False
    if answer.count("**") + answer.count("^") > 12 or re.search(r"(?:\*\*|\^)[^+\-,)]*(?:\*\*|\^)", answer):
        return False
    if any(int(n) > 64 for n in re.findall(r"(?:\*\*|\^)\s*\(?\s*(\d{1,9})", answer)) or re.search(r"\d{40}", answer):
        return False
    if re.search(r"[\['\"]", answer) and re.search(r"[*^/+]", answer):
        return False
    unquoted = re.sub(r"(['\"])[A-Za-z0-9 ]*\1", "", answer)
    if "'" in unquoted or '"' in unquoted or "=" in unquoted:
        return False
    called = re.findall(r"([A-Za-z_]\w*)\s*\(", unquoted)
    words = re.findall(r"[A-Za-z_]\w*", unquoted)
    return all(c in NAMES for c in called) and all(w in NAMES or len(w) == 1 for w in words)


def evaluates(source: str) -> bool:
    """True if a module calls a function that evaluates texts as code. One of that name may be its own: a parser."""
    return any(not re.search(rf"^def {name}\(", source, re.MULTILINE) for name in EVALUATES.findall(source))


def score(dataset: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one request: {"score"}, {"unsafe"} or {"error"}."""
    entry = request["entry"]
    kind = type(dataset)
    scorer = kind.score_answer
    own = scorer.__qualname__.split(".")[0] != "ProceduralDataset"
    text = request["answer"]
    gold = entry.get("answer")
    as_code = own and evaluates(inspect.getsource(sys.modules[kind.__module__]))
    if as_code and text != str(gold) and not is_plain(text):
        return {"unsafe": True}
    if not own:
        return {"score": float(text == gold)}
    return {"score": float(dataset.score_answer(answer=text, entry=entry))}


def in_a_copy(act: Callable[[], dict[str, Any]], seconds: float, memory_mib: int) -> dict[str, Any]:
    """Return what `act` returns, in a copy of this process; {"over"} where it takes more CPU seconds.

    So an answer costs the next one nothing, whatever its scorer keeps. The kernel ends the copy with this process.
    """
    ours, theirs = os.pipe()
    parent, copy = os.getpid(), os.fork()
    if copy == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)
        limit = memory_mib << 20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reply = act()
        except Exception as exc:
            reply = {"error": f"{type(exc).__name__}: {exc}"[:300]}
        os.write(theirs, json.dumps(reply).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        data = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    if code == 0:
        return json.loads(data)  # type: ignore[no-any-return]
    return {"over": True} if code == -signal.SIGPROF else {"error": f"the scorer was ended by {code}"}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one request. The data set is made here, and stays: it is no answer's work."""
    try:
        dataset = dataset_of(request["dataset"], json.dumps(request["config"], sort_keys=True))
    except ImportError as exc:
        return {"missing": str(exc)}
    except Exception as exc:
        return {"error": f"{type(exc).__name__}: {exc}"[:300]}
    return in_a_copy(lambda: score(dataset, request), request["seconds"], request["memory_mib"])


def main() -> None:
    """Answer requests until standard input ends."""
    replies = sys.stdout
    sys.stdout = sys.stderr
    # matplotlib, which the package imports, asks for a folder of its own and writes nothing that is needed
    folder = os.environ["MPLCONFIGDIR"] = tempfile.mkdtemp()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    replies.write('{"ready": true}\n')
    replies.flush()
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
        replies.flush()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
