"""Programs written without this project, played by URL: equal rows, failures, and nothing left."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import alive, others, until
from tests.scripted_engine import ScriptedEngine
from tests.source import ROOT
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.base import load
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.episode import EpisodeLimits
from verizero.pipeline.rollout.play import EpisodeSetup, play
from verizero.pipeline.rows import rows
from verizero.pipeline.types import Prompt, Rollout
from verizero.sandbox import work_folders

pytestmark = pytest.mark.run
AGENTS = ROOT / "configs" / "episodes" / "agents"
TOKENIZER = character_tokenizer()
RENDERER = Renderer(TOKENIZER, Template())
PROGRAMS = {
    "chat package": [sys.executable, "with_chat_package.py"],
    "curl": ["sh", "with_curl.sh"],
}


def engine_of(*answers: str) -> ScriptedEngine:
    """Return an engine that says these answers, one a turn."""

    def script(prompt_ids, seed):
        turn = TOKENIZER.decode(prompt_ids).count("<eos>")
        return (*TOKENIZER(answers[turn], add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id)

    engine = ScriptedEngine(script, TOKENIZER.eos_token_id)
    engine.publish(1)
    return engine


def played(threads: Any, engine: Any, samples: int = 1, max_turns: int = 6, task: str = "2863", **params: Any) -> Any:
    prompt = Prompt("p/1", task, "exact", task, environment="agent")
    bound = load("agent").bind({"answer": "stdout"} | params, AGENTS)
    limits = EpisodeLimits(max_turns=max_turns, retries=0)
    episodes = EpisodeSetup({"agent": bound}, turns_of(RENDERER), limits, threads)
    return play(engine, episodes, [prompt], samples, Sampling(24), 0, "rl", 0)


def texts_of(rollout: Rollout) -> list[str]:
    ids = ([i for t in row for i in (*t.observed, *t.sampled)] for row in rows(rollout))
    return [str(TOKENIZER.decode(own, skip_special_tokens=True)) for own in ids]


def leftovers() -> list[str]:
    """Return the command lines of agents that still run."""
    return [words for _, words, _ in others() if str(AGENTS) in words]


def test_two_programs_are_played_by_their_url_alone_and_give_equal_rows(threads):
    of_wires = []
    for name, command in PROGRAMS.items():
        samples = 2 if name == "curl" else 1  # the packages take seconds to be imported
        rollouts = played(threads, engine_of("16", "x", "23"), samples, task="23", command=command)
        assert len(rollouts) == samples
        for rollout in rollouts:
            assert (rollout.episode.ending, rollout.answer) == ("done", "23"), rollout.episode.outcome
            assert texts_of(rollout) == ["1 to 32?16\nhigher\nx\na number from 1 to 32\n23"]
            assert [t.number for t in rollout.turns] == [0, 1, 2]
            assert len(rollout.episode.rows) == 1, f"{name}: its copies of the history extend the row"
        of_wires.append(rows(rollouts[0]))
        assert leftovers() == []
    assert of_wires[0] == of_wires[1]


WITH_TOOLS = """
import json, operator, os
from openai import OpenAI

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": NUMBERS}} for name in ("add", "mul")]
messages = [{"role": "user", "content": os.environ["VERIZERO_TASK"]}]
while True:
    answer = OpenAI().chat.completions.create(model="policy", messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    if not message.tool_calls:
        break
    messages.append(message)
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        result = getattr(operator, call.function.name)(numbers["a"], numbers["b"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
print(message.content)
"""


def test_a_program_lends_the_policy_its_own_tools(threads):
    engine = engine_of("<mul 47 60>", "so <add 2820 43>", "2863")
    (rollout,) = played(threads, engine, task="47*60+43=", command=[sys.executable, "-c", WITH_TOOLS])
    assert (rollout.episode.ending, rollout.answer) == ("done", "2863"), rollout.episode.outcome
    assert texts_of(rollout) == ["47*60+43=<mul 47 60>\n2820\nso <add 2820 43>\n2863\n2863"]
    assert len(rollout.episode.rows) == 1, "its copies of the history extend the row"


LATER = """
import os, sys, urllib.request, json
sizes = []
def ask(messages):
    data = json.dumps({"model": "m", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["VERIZERO_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["VERIZERO_URL"] + "/chat/completions", data, headers)
    with urllib.request.urlopen(request) as answer:
        answer = json.load(answer)
        sizes.append(answer["usage"]["prompt_tokens"])
        return answer["choices"][0]["message"]["content"]
"""
"""A client of forty lines less."""
ASKS = LATER + "ask([{'role': 'user', 'content': 'hi '}])\n"
HANGS = "import time\ntime.sleep(600)"


@pytest.mark.parametrize(
    ("code", "params", "status", "reason"),
    [
        ("raise SystemExit('no key')", {}, "environment_error", "status 1 before its first request: no key"),
        (ASKS + "sys.exit('lost my way')", {}, "no_answer", "agent_failed: status 1: lost my way"),
        (ASKS + "while True: pass", {"cpu_s": 1}, "no_answer", "agent_failed: "),
        (ASKS + "x = bytearray(2 << 30)", {"memory_mib": 512}, "no_answer", "MemoryError"),
        (ASKS + HANGS, {"step_s": 1.5}, "environment_error", "neither asked nor ended for 1.5 s"),
        (ASKS + f"os.kill(os.getpid(), 9)\n{HANGS}", {}, "environment_error", "was ended from outside"),
        (ASKS + f"os.kill(os.getppid(), 9)\n{HANGS}", {}, "environment_error", "was ended from outside"),
    ],
    ids=["at once", "later", "time", "memory", "hangs", "killed", "its watcher is killed"],
)
def test_a_program_that_fails_has_no_answer_or_is_broken_and_leaves_nothing(
    threads, tmp_path, code, params, status, reason
):
    """Killed by the kernel's want of memory, say; or the process that watches over it, which then ends nothing."""
    note = tmp_path / "pid"
    code = f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\n" + code
    (rollout,) = played(threads, engine_of("16"), command=[sys.executable, "-c", code], **params)
    assert rollout.episode.outcome.status == status
    assert reason in rollout.episode.outcome.reason
    assert rollout.num_sampled == 3 or status == "environment_error"
    until(lambda: not alive([int(note.read_text())]), "the program's end")


def test_a_limit_ends_the_program_and_all_that_it_started(threads, tmp_path):
    note = tmp_path / "pid"
    code = LATER + (
        f"import subprocess\nopen({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "messages = [{'role': 'user', 'content': 'hi '}]\n"
        "while True:\n"
        "    try: said = ask(messages)\n"
        "    except urllib.error.HTTPError as error: said = error.read().decode()\n"
        "    messages += [{'role': 'assistant', 'content': said}, {'role': 'user', 'content': 'more'}]\n"
    )
    (rollout,) = played(threads, engine_of("1", "2", "3"), max_turns=2, command=[sys.executable, "-c", code])
    assert (rollout.episode.ending, len(rollout.turns)) == ("turns", 2)
    assert not alive([int(note.read_text())]), "a process of the program outlived it"
    assert leftovers() == []


def test_a_program_is_told_the_size_of_each_turn(threads):
    """Also where it goes back, and begins another conversation."""
    code = LATER + (
        "def user(text): return {'role': 'user', 'content': text}\n"
        "first = [user('plan ')]\n"
        "first.append({'role': 'assistant', 'content': ask(first)})\n"
        "for more in ([*first, user('more')], [*first, user('elsewhere')], [user('aside ')]): ask(more)\n"
        "print(*sizes)\n"
    )
    (rollout,) = played(threads, engine_of("go", "<mul 1", "no"), command=[sys.executable, "-c", code])
    assert len(set(rollout.answer.split())) == 4
    assert [len(row) for row in rows(rollout)] == [2, 2, 1]


def test_a_nested_conversation_is_a_branch_and_the_first_one_continues(threads):
    code = LATER + (
        "main = [{'role': 'user', 'content': 'plan '}]\n"
        "main.append({'role': 'assistant', 'content': ask(main)})\n"
        "side = ask([{'role': 'user', 'content': 'side '}])\n"
        "main.append({'role': 'user', 'content': side})\n"
        "main.append({'role': 'assistant', 'content': ask(main)})\n"
        "again = main[:2] + [{'role': 'user', 'content': 'other'}]\n"
        "print(ask(again))\n"
    )
    (rollout,) = played(threads, engine_of("go", "ok", "no"), command=[sys.executable, "-c", code])
    assert rollout.episode.ending == "done", rollout.episode.outcome
    assert texts_of(rollout) == ["plan go\ngo\nok", "side go", "plan go\nother\nok"]
    assert [[t.trains for t in row] for row in rows(rollout)] == [[True, True], [True], [False, True]]
    assert [t.number for t in rollout.turns] == [0, 1, 2, 3]
    assert rollout.episode.counts["forks/history"] == 1
    assert rollout.episode.counts["forks/branch"] == 1


def test_a_program_sees_only_what_it_is_given(threads, monkeypatch):
    monkeypatch.setenv("A_SECRET", "x")
    code = LATER + (
        "import fcntl\nask([{'role': 'user', 'content': 'hi '}])\n"
        "seen = [*sorted(os.environ), *os.listdir('.'), os.path.dirname(os.getcwd())]\n"
        "try: fcntl.flock(open(seen[-1] + '/canary'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: seen.append('locked')\n"
        "open('seen.txt', 'w').write(' '.join(seen))"
    )
    params = {"command": [sys.executable, "-c", code], "answer": {"file": "seen.txt"}, "variables": {"MINE": "1"}}
    (rollout,) = played(threads, engine_of("16"), **params)
    seen = rollout.answer.split()
    assert "A_SECRET" not in seen
    assert {"MINE", "VERIZERO_TASK", "task.txt", "PATH"} <= set(seen)
    assert os.environ["A_SECRET"] == "x"
    assert seen[-1] == "locked", "the folder is none of those that are removed when their process is dead"
    assert Path(seen[-2]).name.startswith(work_folders._PREFIX)
    assert not Path(seen[-2]).exists()


def test_a_call_that_cannot_be_read_reaches_the_program_as_text(threads):
    code = LATER + (
        "tools = [{'type': 'function', 'function': {'name': 'add', 'parameters': {'type': 'object', 'properties': "
        "{'a': {'type': 'integer'}}}}}]\n"
        "talk = [{'role': 'user', 'content': 'go '}]\n"
        "talk.append({'role': 'assistant', 'content': ask(talk)})\n"
        "talk.append({'role': 'user', 'content': 'no'})\n"
        "print(ask(talk))\n"
    )
    (rollout,) = played(threads, engine_of("<add 1 2 3>", "ok"), command=[sys.executable, "-c", code])
    assert (rollout.episode.ending, rollout.answer) == ("done", "ok"), rollout.episode.outcome
    assert len(rollout.episode.rows) == 1, "the program saw what was sampled, and its copy extends the row"
    assert rollout.episode.counts["gateway/requests"] == 2
