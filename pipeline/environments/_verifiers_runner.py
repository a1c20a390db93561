"""One episode of an installed package of the library `verifiers`, run by path under the interpreter that has it.

    python -P _verifiers_runner.py '{"package": "my-tasks", "index": 3, ...}' result.json      plays a task
    python -P _verifiers_runner.py '{"package": "my-tasks"}' --rows 100 > rows.jsonl           writes rows for tasks

The library asks for completions at VERIZERO_URL, as any agent does, and writes a trace of the episode, of which this
program returns the reward, the errors and the reason for the end. This file imports nothing of this project, which that
interpreter may not have.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import json
import os
import sys
import urllib.request
from types import ModuleType
from typing import Any

HARNESS = "verizero_chat"
"""The library's name for the loop below."""
MAX_ERROR = 300
LIBRARY = "verifiers.v1"


def library(part: str = "") -> Any:
    """Return the library, or a part of it."""
    return importlib.import_module(f"{LIBRARY}.{part}".rstrip("."))


def chat_harness(vf: Any) -> ModuleType:
    """Return a module with a plain chat loop: one request, and one more for each message of the task's user.

    The library's own loop is a script that the program uv installs from the network at each machine's first episode.
    """

    class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
        ) -> Any:
            """Send the conversation once."""
            if mcp_urls:
                raise RuntimeError(f"the task has tools ({', '.join(mcp_urls)}); set harness to null, which needs uv")
            system, prompt = self.resolve_prompt(data)
            messages = [] if system is None else [{"role": "system", "content": system}]
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [{"role": m.role, "content": text_of(m)} for m in prompt or ()]
            await asyncio.to_thread(ask, endpoint, secret, ctx.model, messages)
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    module = ModuleType(HARNESS)
    module.__dict__.update(ChatHarness=ChatHarness, __all__=["ChatHarness"])
    return module


def text_of(message: Any) -> str:
    """Return a message's text. Raises: RuntimeError if it has calls or images, which this loop does not support."""
    if getattr(message, "tool_calls", None) or not isinstance(message.content, str | None):
        raise RuntimeError("the task's messages have calls or images; set harness to null, which needs uv")
    return message.content or ""


def ask(endpoint: str, secret: str, model: str, messages: list[dict[str, Any]]) -> None:
    """Ask for a completion, which the library puts into the trace."""
    body = json.dumps({"model": model, "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(f"{endpoint}/chat/completions", body, headers)) as answer:
        answer.read()


def environment_of(choice: dict[str, Any]) -> Any:
    """Return the package's environment, with one agent: the policy."""
    loaders, fields_of = library("utils.loaders"), library("configs.agent").agent_config_fields
    sys.modules[HARNESS] = chat_harness(library())
    agent: dict[str, Any] = {"runtime": {"type": "subprocess"}}
    if choice.get("harness", HARNESS) is not None:
        agent["harness"] = {"id": choice.get("harness", HARNESS)}
    raw = {"taskset": {"id": choice["package"], **(choice.get("taskset") or {})}, **(choice.get("env") or {})}
    # The roles are known once the configuration is read; the policy's is then filled in.
    roles = list(fields_of(loaders.resolve_env_config(json.loads(json.dumps(raw)))))
    if len(roles) != 1:
        raise RuntimeError(f"{choice['package']} has the agents {', '.join(roles)}; only one is supported: the policy")
    raw[roles[0]] = {**agent, **(raw.get(roles[0]) or {})}
    environment = loaders.load_environment(loaders.resolve_env_config(raw))
    gc.freeze()  # later collections do not check the imported objects
    gc.enable()
    return environment


def result_of(episode: Any) -> dict[str, Any]:
    """Return the parts of an episode that the trainer needs."""
    errors = [*episode.errors, *(e for trace in episode.traces for e in trace.errors)]
    return {
        "reward": sum(float(trace.reward) for trace in episode.traces),
        "errors": [f"{e.type}: {e.message}"[:MAX_ERROR] for e in errors],
        "ok": bool(episode.ok),
        "stop": next((t.stop_condition for t in episode.traces if t.stop_condition), None),
        "metrics": {k: v for trace in episode.traces for k, v in trace.metrics.items()},
    }


async def play(choice: dict[str, Any]) -> dict[str, Any]:
    """Play the task, and return its result."""
    clients = library("clients")
    environment = environment_of(choice)
    index = int(choice["index"])
    task = next(itertools.islice(iter(environment.taskset), index, index + 1), None)
    if task is None:
        raise RuntimeError(f"{choice['package']} has no task {index}")
    client = clients.EvalClientConfig(base_url=os.environ["VERIZERO_URL"], api_key_var="VERIZERO_KEY")
    context = clients.ModelContext(model=os.environ["VERIZERO_MODEL"], client=client)
    async with environment.serving():
        return result_of(await environment.run_slot(environment.slots(task, 1)[0], context))


def main() -> None:
    """Play a task, or write rows."""
    # During imports no garbage is collected: objects of modules stay, and checking them takes a third of the time.
    gc.disable()
    choice = json.loads(sys.argv[1])
    if sys.argv[2] != "--rows":
        result = asyncio.run(play(choice))
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            json.dump(result, file)
        return
    for index, _ in enumerate(itertools.islice(iter(environment_of(choice).taskset), int(sys.argv[3]))):
        row = {"id": f"{choice['package']}/{index}", "question": f"{choice['package']} {index}", "answer": index}
        print(json.dumps({**row, "verifier": "environment"}))


if __name__ == "__main__":
    main()
