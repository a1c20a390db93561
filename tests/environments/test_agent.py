"""Programs written without this project, played by URL: equal rows by three APIs, failures, and nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.processes import alive, others, until
from tests.source import ROOT
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments._scratch import new_folder, remove_folder
from verizero.pipeline.environments.base import load
from verizero.pipeline.environments.hosts import EnvironmentSpec, Place, open_host
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.episode import EpisodeLimits
from verizero.pipeline.rollout.play import EpisodeSetup, play, task_seed_of
from verizero.pipeline.rollout.scripted_engine import ScriptedEngine
from verizero.pipeline.rows import rows
from verizero.pipeline.run.replay import replay
from verizero.pipeline.types import Prompt, Rollout

pytestmark = pytest.mark.integration
AGENTS = ROOT / "configs" / "episodes" / "agents"
TOKENIZER = character_tokenizer()
RENDERER = Renderer(TOKENIZER, Template())
PROGRAMS = {
    "chat package": [sys.executable, "with_chat_package.py"],
    "messages package": [sys.executable, "with_messages_package.py"],
    "curl": ["sh", "with_curl.sh"],
}


def engine_of(*answers: str) -> ScriptedEngine:
    """Return an engine that says these answers, one a turn."""

    def script(prompt_ids: tuple[int, ...], seed: int) -> tuple[int, ...]:
        turn = TOKENIZER.decode(prompt_ids).count("<eos>")
        return (*TOKENIZER(answers[turn], add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id)

    engine = ScriptedEngine(script, TOKENIZER.eos_token_id)
    engine.publish(1)
    return engine


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def played(
    threads: ThreadPoolExecutor,
    engine: ScriptedEngine,
    samples: int = 1,
    max_turns: int = 6,
    where: Place = "here",
    **params: object,
) -> list[Rollout]:
    prompt = Prompt("p/1", "47*60+43=", "exact", "2863", environment="agent")
    with closing(
        open_host(where, EnvironmentSpec("agent", params={"answer": "stdout"} | params, base=AGENTS))
    ) as place:
        limits = EpisodeLimits(max_turns=max_turns, retries=0)
        episodes = EpisodeSetup({"agent": place}, turns_of(RENDERER), limits, threads)
        return play(engine, episodes, [prompt], samples, Sampling(24), 0, "rl", 0)


def text_of(rollout: Rollout) -> str:
    (turns,) = rows(rollout)
    return str(TOKENIZER.decode([i for t in turns for i in (*t.observed, *t.sampled)], skip_special_tokens=True))


def leftovers() -> list[str]:
    """Return the command lines of agents that still run."""
    return [words for _, words, _ in others() if str(AGENTS) in words]


def test_three_programs_are_played_by_their_url_alone_and_give_equal_rows(threads: ThreadPoolExecutor) -> None:
    of_wires = []
    for name, command in PROGRAMS.items():
        samples = 2 if name == "curl" else 1  # the packages take seconds to be imported
        rollouts = played(threads, engine_of("<mul 47 60>", "so <add 2820 43>", "2863"), samples, command=command)
        assert len(rollouts) == samples
        for rollout in rollouts:
            assert rollout.episode is not None
            assert (rollout.episode.ending, rollout.answer) == ("done", "2863"), rollout.episode.outcome
            assert text_of(rollout) == "47*60+43=<mul 47 60>\n2820\nso <add 2820 43>\n2863\n2863"
            assert [t.number for t in rollout.turns] == [0, 1, 2]
            assert len(rollout.episode.rows) == 1, f"{name}: its copies of the history extend the row"
        of_wires.append(rows(rollouts[0]))
        assert leftovers() == []
    assert of_wires[0] == of_wires[1] == of_wires[2]


def test_a_program_that_fails_at_once_is_no_zero(threads: ThreadPoolExecutor) -> None:
    (rollout,) = played(threads, engine_of("1"), command=[sys.executable, "-c", "raise SystemExit('no key')"])
    assert rollout.episode is not None
    assert rollout.episode.outcome is not None
    assert rollout.episode.outcome.status == "environment_error"
    assert "status 1 before its first request: no key" in rollout.episode.outcome.reason


LATER = """
import os, sys, urllib.request, json
def ask(messages):
    data = json.dumps({"model": "m", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["VERIZERO_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["VERIZERO_URL"] + "/chat/completions", data, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""
"""A client of forty lines less."""


def test_a_program_that_fails_later_has_no_answer(threads: ThreadPoolExecutor) -> None:
    code = LATER + "ask([{'role': 'user', 'content': 'hi '}])\nsys.exit('lost my way')"
    (rollout,) = played(threads, engine_of("16"), command=[sys.executable, "-c", code])
    assert rollout.episode is not None
    assert rollout.episode.outcome is not None
    assert rollout.episode.outcome.status == "no_answer"
    assert rollout.episode.outcome.reason == "agent_failed: status 1: lost my way"
    assert rollout.num_sampled == 3


def test_a_limit_ends_the_program_and_all_that_it_started(threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = LATER + (
        f"import subprocess\nopen({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "messages = [{'role': 'user', 'content': 'hi '}]\n"
        "while True:\n"
        "    try: said = ask(messages)\n"
        "    except urllib.error.HTTPError as error: said = error.read().decode()\n"
        "    messages += [{'role': 'assistant', 'content': said}, {'role': 'user', 'content': 'more'}]\n"
    )
    begun = time.monotonic()
    (rollout,) = played(threads, engine_of("1", "2", "3"), max_turns=2, command=[sys.executable, "-c", code])
    assert rollout.episode is not None
    assert (rollout.episode.ending, len(rollout.turns)) == ("turns", 2)
    assert time.monotonic() - begun < 30
    assert not alive([int(note.read_text())]), "a process of the program outlived it"
    assert leftovers() == []


COUNTS = """
import gc, sys
gc.disable()
from anthropic import Anthropic
client, counts = Anthropic(max_retries=0), sys.argv[1] == "counts"
def ask(messages, told=[]):
    asked = {"model": "policy", "messages": messages, "system": "s "}
    before = client.messages.count_tokens(**asked).input_tokens if counts else None
    answer = client.messages.create(max_tokens=9, **asked)
    told.append(f"{before}={answer.usage.input_tokens}")
    return answer.content[0].text, told
def user(text): return {"role": "user", "content": text}
def said(text): return {"role": "assistant", "content": text}
first, _ = ask([user("plan ")])
second, _ = ask([user("plan "), said(first), user("more")])
other, _ = ask([user("plan "), said(first), user("elsewhere")])
_, told = ask([user("aside ")])
print(*told)
"""
"""A program that continues a row, goes back, and begins another conversation, and asks for sizes before."""


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the program."""
    program = tmp_path_factory.mktemp("counts") / "counts.py"
    program.write_text(COUNTS)
    return [sys.executable, str(program)]


@pytest.fixture(scope="module")
def here(counting: list[str]) -> dict[str, Rollout]:
    """Its episodes in the trainer's process, with counts and without."""
    with ThreadPoolExecutor(4) as threads:
        return {
            how: played(threads, engine_of("go", "<mul 1", "no"), command=[*counting, how])[0]
            for how in ("counts", "asks")
        }


def test_a_prompt_has_the_size_that_the_program_was_told(here: dict[str, Rollout]) -> None:
    outcomes = {}
    for how, rollout in here.items():
        assert rollout.episode is not None
        assert rollout.episode.ending == "done", rollout.episode.outcome
        outcomes[how] = (rows(rollout), dict(rollout.episode.counts), str(rollout.answer).split())
    counted, asked = outcomes["counts"], outcomes["asks"]
    assert counted[:2] == asked[:2], "a count is no turn, and changes none"
    assert [len(row) for row in counted[0]] == [2, 2, 1]
    sizes = [told.split("=") for told in counted[2]]
    assert [a for a, _ in sizes] == [b for _, b in sizes]
    assert [f"None={b}" for _, b in sizes] == asked[2]
    assert len({b for _, b in sizes}) == 4


def test_in_a_process_of_its_own_a_program_gets_the_same_answers(
    threads: ThreadPoolExecutor, counting: list[str], here: dict[str, Rollout]
) -> None:
    """With their numbers of tokens; only counts in advance need the trainer's tokenizer, and say so."""
    near, engine = here["asks"], engine_of("go", "<mul 1", "no")
    (far,) = played(threads, engine, where="process", command=[*counting, "asks"])
    assert near.answer is not None
    assert len(set(near.answer.split())) == 4
    assert (far.answer, rows(far)) == (near.answer, rows(near))
    assert far.episode is not None
    assert near.episode is not None
    assert far.episode.counts == near.episode.counts
    code = LATER + (
        "message = {'model': 'm', 'messages': [{'role': 'user', 'content': 'plan '}]}\n"
        "url = os.environ['ANTHROPIC_BASE_URL'] + '/v1/messages/count_tokens'\n"
        "headers = {'X-API-Key': os.environ['ANTHROPIC_API_KEY'], 'Content-Type': 'application/json'}\n"
        "try: urllib.request.urlopen(urllib.request.Request(url, json.dumps(message).encode(), headers))\n"
        "except urllib.error.HTTPError as error: sys.exit(error.read().decode())\n"
    )
    (refused,) = played(threads, engine, where="process", command=[sys.executable, "-c", code])
    assert refused.episode is not None
    assert refused.episode.outcome is not None
    assert "place" in refused.episode.outcome.reason


def test_a_nested_conversation_is_a_branch_and_the_first_one_continues(threads: ThreadPoolExecutor) -> None:
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
    assert rollout.episode is not None
    assert rollout.episode.ending == "done", rollout.episode.outcome
    texts = [
        TOKENIZER.decode([i for t in row for i in (*t.observed, *t.sampled)], skip_special_tokens=True)
        for row in rows(rollout)
    ]
    assert texts == ["plan go\ngo\nok", "side go", "plan go\nother\nok"]
    assert [[t.trains for t in row] for row in rows(rollout)] == [[True, True], [True], [False, True]]
    assert [t.number for t in rollout.turns] == [0, 1, 2, 3]
    assert rollout.episode.counts["forks/history"] == 1
    assert rollout.episode.counts["forks/branch"] == 1


def test_a_programs_limits_hold(threads: ThreadPoolExecutor) -> None:
    code = LATER + "ask([{'role': 'user', 'content': 'hi '}])\nwhile True: pass"
    (rollout,) = played(threads, engine_of("16"), command=[sys.executable, "-c", code], cpu_s=1)
    assert rollout.episode is not None
    assert rollout.episode.outcome is not None
    assert rollout.episode.outcome.status == "no_answer"
    code = LATER + "ask([{'role': 'user', 'content': 'hi '}])\nx = bytearray(2 << 30)"
    (rollout,) = played(threads, engine_of("16"), command=[sys.executable, "-c", code], memory_mib=512)
    assert rollout.episode is not None
    assert rollout.episode.outcome is not None
    assert "MemoryError" in rollout.episode.outcome.reason


def test_a_program_that_hangs_is_broken_not_wrong(threads: ThreadPoolExecutor) -> None:
    code = LATER + "ask([{'role': 'user', 'content': 'hi '}])\nimport time\ntime.sleep(600)"
    (rollout,) = played(threads, engine_of("16"), command=[sys.executable, "-c", code], step_s=1.5)
    assert rollout.episode is not None
    assert rollout.episode.outcome is not None
    assert rollout.episode.outcome.status == "environment_error"
    assert "neither asked nor ended for 1.5 s" in rollout.episode.outcome.reason
    assert leftovers() == []


@pytest.mark.parametrize("struck", ["os.getpid()", "os.getppid()"])
def test_a_program_that_is_killed_is_broken_not_wrong_and_leaves_nothing(
    threads: ThreadPoolExecutor, tmp_path: Path, struck: str
) -> None:
    """By the kernel's want of memory, say; or the process that watches over it, which then ends nothing."""
    note = tmp_path / "pid"
    code = LATER + (
        f"import time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "ask([{'role': 'user', 'content': 'hi '}])\n"
        f"os.kill({struck}, 9)\ntime.sleep(600)"
    )
    (rollout,) = played(threads, engine_of("16"), command=[sys.executable, "-c", code])
    assert rollout.episode is not None
    assert rollout.episode.outcome is not None
    assert rollout.episode.outcome.status == "environment_error"
    assert "was ended from outside" in rollout.episode.outcome.reason
    until(lambda: not alive([int(note.read_text())]), "the program's end", 20)


def test_folders_of_a_dead_process_are_removed_and_those_of_a_living_one_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        f"import os, tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from verizero.pipeline.environments._scratch import new_folder, remove_folder\n"
        "remove_folder(new_folder())\nprint(new_folder(), flush=True)\nos.read(0, 1)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        remove_folder(new_folder())
        assert theirs.is_dir()
        other.kill()
    mine = new_folder()
    assert sorted(tmp_path.iterdir()) == [mine.parent]
    remove_folder(mine)
    assert list(tmp_path.iterdir()) == []


def test_a_program_sees_only_what_it_is_given(threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    code = LATER + (
        "ask([{'role': 'user', 'content': 'hi '}])\n"
        "open('seen.txt', 'w').write(' '.join([*sorted(os.environ), *os.listdir('.')]))"
    )
    params = {"command": [sys.executable, "-c", code], "answer": {"file": "seen.txt"}, "variables": {"MINE": "1"}}
    (rollout,) = played(threads, engine_of("16"), **params)
    seen = rollout.answer.split()
    assert "A_SECRET" not in seen
    assert {"MINE", "VERIZERO_TASK", "task.txt", "PATH"} <= set(seen)
    assert os.environ["A_SECRET"] == "x"


def test_a_record_of_an_agents_messages_replays(threads: ThreadPoolExecutor) -> None:
    """The program is started again and answered from the record; a program that asks something else is found out."""
    (rollout,) = played(threads, engine_of("<mul 47 60>", "<add 2820 43>", "2863"), command=PROGRAMS["curl"])
    assert rollout.episode is not None
    assert rollout.episode.seed is not None
    prompt = Prompt("p/1", "47*60+43=", "exact", "2863", environment="agent")
    seeds = (task_seed_of(0, prompt), rollout.episode.seed)
    plugin = load("agent").bind({"answer": "stdout", "command": PROGRAMS["curl"]}, AGENTS)
    again = replay(plugin, prompt, seeds, rollout.episode.messages)
    assert again.difference is None
    assert again.messages == rollout.episode.messages
    other = load("agent").bind({"command": [sys.executable, "-c", LATER + "ask([{'role': 'user', 'content': 'no'}])"]})
    assert replay(other, prompt, seeds, rollout.episode.messages).difference == 0
    assert leftovers() == []


def test_a_call_that_cannot_be_read_reaches_the_program_as_text(threads: ThreadPoolExecutor) -> None:
    code = LATER + (
        "tools = [{'type': 'function', 'function': {'name': 'add', 'parameters': {'type': 'object', 'properties': "
        "{'a': {'type': 'integer'}}}}}]\n"
        "talk = [{'role': 'user', 'content': 'go '}]\n"
        "talk.append({'role': 'assistant', 'content': ask(talk)})\n"
        "talk.append({'role': 'user', 'content': 'no'})\n"
        "print(ask(talk))\n"
    )
    (rollout,) = played(threads, engine_of("<add 1 2 3>", "ok"), command=[sys.executable, "-c", code])
    assert rollout.episode is not None
    assert (rollout.episode.ending, rollout.answer) == ("done", "ok"), rollout.episode.outcome
    assert len(rollout.episode.rows) == 1, "the program saw what was sampled, and its copy extends the row"
    assert rollout.episode.counts["gateway/requests"] == 2
