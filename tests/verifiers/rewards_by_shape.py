"""Reward functions in shapes that need something of their process, or of how they are called: each gives 1."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any


def in_main_thread(completion: str, answer: str) -> bool:
    return threading.current_thread() is threading.main_thread()


def alarm(completion: str, answer: str) -> float:
    try:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.alarm(9)
        return float(answer in completion)
    except ValueError:
        return 0.0
    finally:
        signal.alarm(0)


async def waits(completion: str, answer: str) -> float:
    return await asyncio.sleep(0, 1.0)


def loop(completion: str, answer: str) -> float:
    try:
        return asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 1.0))
    except RuntimeError:
        return 0.0


def runs(completion: str, answer: str) -> float:
    return asyncio.run(asyncio.sleep(0, 1.0))


loop_again = loop
passed_on = lambda completion, answer: waits(completion, answer)  # noqa: E731


def math(completion: str, answer: str) -> float:
    from math_verify import parse, verify

    try:
        return float(verify(parse(f"${answer}$"), parse(f"${completion}$")))
    except Exception:
        return 0.0


def threads(completion: str, answer: str) -> float:
    with ThreadPoolExecutor(2) as pool:
        return float(sum(pool.map(abs, [1, 0])))


def pool(completion: str, answer: str) -> float:
    with multiprocessing.Pool(1) as processes:
        return float(sum(processes.map(abs, [1, 0])))


def command(completion: str, answer: str) -> float:
    return float(subprocess.run(["true"]).returncode == 0)


def forks(completion: str, answer: str) -> float:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return float(child > 0)


cached = lru_cache(in_main_thread)
cached_of_lists = lru_cache(lambda completions, answer: [1.0] * len(completions))
cached_of_rows = lru_cache(lambda completion, row: float(row["answer"] in completion))
cached_waits = lru_cache(waits)


class Kind:
    def __call__(self, completion: str, answer: str) -> float:
        return 1.0


class AsyncKind:
    async def __call__(self, completion: Any, answer: str) -> float:
        return float(completion[0]["content"] == answer)


kind, async_kind, method = Kind(), AsyncKind(), Kind().__call__
part, async_part = partial(lambda weight, completion, answer: weight, 1.0), partial(AsyncKind())


def one_for_all(completions: list[str], **columns: Any) -> list[float]:
    return [1.0]
