"""One rank of a run with vLLM, compared to the trainer's weights after some publishes.

Run as `python -m tests.stages.vllm_rank FOLDER CHANGES`, CHANGES of the recipe of sevens as JSON; among them are the
versions after which it is `held` against the trainer, and there may be a `strike` of rank 1: at which `step` the server
is killed that is `at` a url, with its group of processes; or that of which `node`, and two steps later it is back.
Outside a group this starts the group, as `verizero train` does. Each rank writes FOLDER/found<rank>.json: the version
published, and whether the greedy responses of the engine, of each of its servers where there are some, are those of the
trainer's weights.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from tests.models.families import logits_after
from tests.processes import others, until
from tests.stages.servers import strike
from tests.stages.sessions import replacing, run_all
from tests.stages.sevens import STEPS, recipe
from verizero.pipeline.host.network import answers
from verizero.pipeline.launch import is_rank, join_as_rank, launch
from verizero.pipeline.models.load import eos_ids
from verizero.pipeline.report.progress import for_terminal
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.saving import save_final


def greedy(model: Any, prompts: list[tuple[int, ...]], ends: set[int], most: int) -> list[tuple[int, ...]]:
    """The likeliest responses, by forwards over whole rows, without a cache."""
    rows = [list(prompt) for prompt in prompts]
    for _ in range(most):
        for row, logits in zip(rows, logits_after(model, rows), strict=True):
            row.append(int(logits.argmax()))
    answers = [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]
    stops = [next((i + 1 for i, token in enumerate(answer) if token in ends), most) for answer in answers]
    return [tuple(answer[:stop]) for answer, stop in zip(answers, stops, strict=True)]


@torch.no_grad()
def held_against_trainer(session: Any) -> dict[str, Any]:
    """Whether the engine is the trainer, by greedy responses; of servers, whether each of them is."""
    model, most = session.workers.backend.whole_model(), session.setup.config.rollout.max_response_tokens
    prompts = [session.run.data.renderer.prompt_ids(p) for p in session.run.data.train[:6]]
    ends = set(eos_ids(model, session.run.tokenizer))
    likeliest = greedy(model, prompts, ends, most)
    equal, engine = [], session.workers.rollouts.engine
    for _ in getattr(engine, "servers", [engine]):
        if hasattr(engine, "servers"):  # ask the first alone, and each is the first once
            first, *others = engine.servers
            engine.servers = [first]
        answers = engine.generate([Request(p, (0,)) for p in prompts], Sampling(most, temperature=0))
        equal.append([answer.token_ids for (answer,) in answers] == likeliest)
        if hasattr(engine, "servers"):
            engine.servers = [*others, first]
    return {"version": engine.version, "equal": all(equal)}


def server_of(folder: Path, node: int) -> dict[str, Any]:
    """The address of a node's only server, and the group of its processes."""
    (url,) = json.loads((folder / "servers" / f"node{node}.json").read_text())["urls"]
    words = f"--port {url.rpartition(':')[2]}"
    return {"url": url, "group": next(os.getpgid(pid) for pid, command, _ in others() if words in command)}


def main(folder: Path, changes: dict[str, Any]) -> None:
    struck, held = changes.pop("strike", None), changes.pop("held")
    config = recipe("vllm", changes.pop("steps", STEPS), **changes)
    if not is_rank():
        launch(config.launch, sys.argv[1:], folder, "tests.stages.vllm_rank")
        return
    rank, found = join_as_rank(config.launch, folder), []
    of_node: dict[str, Any] = {}

    def generate(plain: Any, *arguments: Any) -> Any:
        if struck is not None and rank == 1 and session.state.rl_step == struck["step"]:
            if "node" in struck:
                of_node.update(server_of(folder, struck["node"]))
            strike(session.workers.rollouts.engine, **(of_node or struck["at"]), number=signal.SIGKILL)
        return plain(*arguments)

    def publish_and_hold(plain: Any) -> None:
        if of_node and session.state.rl_step == struck["step"] + 2:
            until(lambda: answers(f"{of_node['url']}/health"), "the server that was killed", 400)
        plain()
        if session.state.policy_version in held:
            found.append(held_against_trainer(session))

    with open_run(config, folder.parent, folder, "auto", for_terminal()) as session:
        assert session.run.ranks.size == int(os.environ["WORLD_SIZE"])
        run_all(session, replacing(generate=generate, publish=publish_and_hold))
        save_final(session.run, session.workers.backend)
    (folder / f"found{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
