"""Episodes in rounds: rows as the engine computed them, limits, retries, seeds, and order."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from tests.processes import PATIENCE_S
from tests.scripted_engine import ScriptedEngine
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.base import Reply, Start, ToolUse
from verizero.pipeline.environments.conversing import NextPrompt, PromptPiece
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.episode import EpisodeLimits
from verizero.pipeline.rollout.generate import Generation, generate_rollouts
from verizero.pipeline.rollout.play import EpisodeSetup, play
from verizero.pipeline.rows import rows
from verizero.pipeline.run.episodes import shortener
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import Message, Prompt, Rollout, Verdict

TOKENIZER = character_tokenizer()
RENDERER = Renderer(TOKENIZER, Template(observation="\n{text}\n"))
EOS = TOKENIZER.eos_token_id
PROMPT = Prompt("p", "count to three: ", "environment", "3", environment="counting")


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER(text, add_special_tokens=False)["input_ids"])


@dataclass
class Counting:
    """Asks for the next number until the one that ends the episode."""

    last: int
    makes: list[tuple[str, int, int]] = field(default_factory=list)
    open: int = 0
    change: Callable[["CountingEpisode", int], object] = lambda episode, sample_seed: None
    """Replaces what an episode does as soon as it is made."""

    def make(self, prompt, task_seed, sample_seed):
        self.makes.append((prompt.id, task_seed, sample_seed))
        episode = CountingEpisode(self)
        self.change(episode, sample_seed)
        return episode


class CountingEpisode:
    def __init__(self, owner):
        self.owner, self.turn, self.is_open = owner, 0, True
        owner.open += 1

    def start(self):
        return Start()

    def step(self, message):
        self.turn += 1
        if self.turn == self.owner.last:
            return Reply((Message("user", "good"),), done=True, reward=1.0, outcome=Verdict("graded", 1.0, "counted"))
        uses = (ToolUse("count"), ToolUse("count", wrong=True))
        return Reply((Message("user", f"next {self.turn}"),), reward=-0.5, uses=uses)

    def close(self):
        self.owner.open -= self.is_open
        self.is_open = False


class Noted(ScriptedEngine):
    """A scripted engine that notes the calls of `generate`."""

    calls: list[tuple[list[Request], int]]

    def generate(self, requests, sampling, listener=None):
        self.calls.append((list(requests), sampling.max_tokens))
        return super().generate(requests, sampling, None)


def engine_of(text: str = "one", seeded: bool = False) -> Noted:
    def script(prompt_ids, seed):
        return (*ids_of(text + str(seed % 1000 if seeded else "")), EOS)

    engine = Noted(script, EOS)
    engine.calls = []
    engine.publish(7)
    return engine


def episodes_of(owner: Counting, threads: ThreadPoolExecutor, max_open: int = 256, **limits: object) -> EpisodeSetup:
    chosen = EpisodeLimits(**({"max_turns": 5} | limits))
    return EpisodeSetup({"counting": owner}, turns_of(RENDERER), chosen, threads, max_open)


def played(engine: Noted, episodes: EpisodeSetup, samples: int = 1, max_tokens: int = 20) -> list[Rollout]:
    return play(engine, episodes, [PROMPT], samples, Sampling(max_tokens), 3, "rl", 0)


def test_a_row_is_what_the_engine_was_given_and_sampled(threads):
    engine, owner = engine_of(), Counting(last=3)
    (rollout,) = played(engine, episodes_of(owner, threads))
    (turns,) = rows(rollout)
    assert [len(t.sampled) for t in turns] == [4, 4, 4]
    seen = TOKENIZER.decode([i for t in turns for i in (*t.observed, *t.sampled)], skip_special_tokens=True)
    assert seen == "count to three: one\nnext 1\none\nnext 2\none"
    held = ()
    for turn, (requests, _) in zip(turns, engine.calls, strict=True):
        held += tuple(turn.observed)
        assert [r.prompt_ids for r in requests] == [held], "the engine was given exactly the row so far"
        held += tuple(turn.sampled)
        assert turn.sampled[-1] == EOS
        assert len(turn.logprobs) == len(turn.sampled)
        assert turn.policy_version == 7
    assert [t.reward for t in turns] == [-0.5, -0.5, 1.0]
    assert (rollout.prompt_ids, rollout.response_ids) == (turns[0].observed, turns[0].sampled)
    assert rollout.episode.ending == "done"
    assert rollout.episode.outcome == Verdict("graded", 1.0, "counted")
    assert rollout.episode.counts == {"tools/count/calls": 4, "tools/count/wrong": 2}
    assert [m.role for m in rollout.episode.messages] == ["user", "assistant"] * 3 + ["user"]
    assert owner.open == 0


def test_a_group_gets_one_task_and_seeds_of_its_own(threads):
    engine, owner = engine_of(seeded=True), Counting(last=2)
    first = played(engine, episodes_of(owner, threads), samples=3)
    assert len({task for _, task, _ in owner.makes}) == 1
    assert len({sample for _, _, sample in owner.makes}) == 3
    ((begins, _), *later) = engine.calls
    assert len(begins) == 1, "equal prompts are one request"
    assert begins[0].seeds == tuple(derive(3, "rollout", "rl", 0, "p", i) for i in range(3)), "as without environment"
    turns = [r.seeds for requests, _ in later for r in requests]
    assert turns == [(derive(3, "rollout", "rl", 0, "p", i, "turn", 1),) for i in range(3)]
    again = played(engine_of(seeded=True), episodes_of(Counting(last=2), threads, max_open=1), samples=3)
    assert again == first, "the number of open episodes changes nothing"


def test_who_answers_first_changes_nothing(threads):
    others = threading.Semaphore(0)

    def late(episode, sample_seed):
        step, is_first = episode.step, len(owner.makes) == 1

        def answer(message):
            assert not is_first or all(others.acquire(timeout=PATIENCE_S) for _ in range(2))
            reply = step(message)
            if not is_first:
                others.release()
            return reply

        episode.step = answer

    owner = Counting(last=2, change=late)
    assert played(engine_of(seeded=True), episodes_of(owner, threads), samples=3) == played(
        engine_of(seeded=True), episodes_of(Counting(last=2), threads), samples=3
    )


@pytest.mark.parametrize(
    ("limits", "max_tokens", "ending", "turns"),
    [
        ({"max_turns": 2}, 20, "turns", 2),
        ({"max_tokens": 8}, 20, "tokens", 2),
        ({"max_tokens": 9}, 20, "tokens", 3),
        ({"context": 36}, 20, "context", 2),
        ({"wall_s": 1e-9}, 20, "time", 1),
        ({}, 3, "tokens", 1),
        ({"ends_when_cut": False, "max_turns": 3}, 3, "turns", 3),
    ],
)
def test_limits_end_an_episode(threads, limits, max_tokens, ending, turns):
    owner = Counting(last=9)
    (rollout,) = played(engine_of(), episodes_of(owner, threads, **limits), max_tokens=max_tokens)
    assert (rollout.episode.ending, len(rollout.turns)) == (ending, turns)
    assert rollout.episode.outcome is None
    assert owner.open == 0
    budget = limits.get("max_tokens")
    assert budget is None or rollout.num_sampled <= budget
    context = limits.get("context")
    assert context is None or sum(len(t.observed) + len(t.sampled) for t in rollout.turns) <= context


def test_a_broken_host_is_asked_again_with_the_same_seeds(threads):
    def breaks(episode, sample_seed):
        step, is_first = episode.step, len(owner.makes) == 1
        episode.step = lambda message: step(message) if not is_first or episode.turn == 0 else 1 / 0

    owner = Counting(last=3, change=breaks)
    (rollout,) = played(engine_of(seeded=True), episodes_of(owner, threads))
    assert len(owner.makes) == 2
    assert owner.makes[0] == owner.makes[1]
    assert rollout.episode.counts["retried"] == 1
    (whole,) = played(engine_of(seeded=True), episodes_of(Counting(last=3), threads))
    assert rows(rollout) == rows(whole)
    assert owner.open == 0


@pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
def test_what_stays_broken_gives_no_reward_and_ends_its_episode_alone(error, threads):
    """Also what ends programs, raised by the environment's own code, in its answer and when it is closed."""

    def ends(episode, sample_seed):
        def fail(*_):
            raise error("the host is gone")

        episode.step = fail
        if not closes:
            episode.close = fail

    closes = error in (OSError, KeyboardInterrupt)  # in the main thread the second is the operator's
    owner = Counting(last=3, change=ends)
    (rollout,) = played(engine_of(), episodes_of(owner, threads, retries=2))
    assert len(owner.makes) == 3
    assert rollout.episode.ending == "failed"
    assert rollout.episode.outcome.status == "environment_error"
    assert re.fullmatch(
        rf"(close: )?{error.__name__}: the host is gone, at .*test_play\.py:\d+", rollout.episode.outcome.reason
    )
    assert rollout.episode.outcome.is_infrastructure
    assert owner.open == (0 if closes else 3)


def test_a_first_prompt_past_the_context_is_no_zero(threads):
    (rollout,) = played(engine_of(), episodes_of(Counting(last=3), threads, context=8))
    assert rollout.episode.outcome.status == "environment_error"
    assert "16 tokens in a context of 8" in rollout.episode.outcome.reason
    assert rollout.turns == []
    assert not rollout.was_cut


def test_everything_is_closed_if_the_engine_fails(threads):
    class Fails(Noted):
        def generate(self, *arguments, **options):
            raise EngineError("gone")

    owner = Counting(last=3)
    engine = Fails(lambda _ids, _seed: (EOS,), EOS)
    with pytest.raises(EngineError, match="gone"):
        played(engine, episodes_of(owner, threads), samples=4)
    assert (owner.open, len(owner.makes)) == (0, 4)


class Forking:
    """Writes turns as the plain way does, and drops the first question of the history after the first turn."""

    def __init__(self, inner):
        self.inner = inner
        for name in ("begin", "opening", "read", "write"):
            setattr(self, name, getattr(inner, name))

    def extend(self, history, new, tools, sampled, cut):
        plain = self.inner.extend(history, new, tools, sampled, cut)
        if len(sampled) != 1:
            return plain
        return NextPrompt((PromptPiece(ids_of("q")), PromptPiece(sampled[0], turn=0), *plain.pieces), "edited")


def test_a_rewritten_history_begins_a_row_whose_shared_turns_do_not_train(threads):
    engine, owner = engine_of(), Counting(last=3)
    episodes = replace(episodes_of(owner, threads), conversing=Forking(turns_of(RENDERER)))
    (rollout,) = played(engine, episodes)
    first, second = rows(rollout)
    assert [t.trains for t in first] == [True]
    assert [t.trains for t in second] == [False, True, True]
    text = TOKENIZER.decode([i for t in second for i in (*t.observed, *t.sampled)], skip_special_tokens=True)
    assert text == "qone\nnext 1\none\nnext 2\none"
    (request,), _ = engine.calls[1]
    assert request.prompt_ids == (*second[0].observed, *second[0].sampled, *second[1].observed)
    assert len(rollout.turns) == 3
    assert rollout.num_sampled == 12
    assert rollout.episode.counts["forks/edited"] == 1
    assert [t.reward for t in rollout.turns] == [-0.5, -0.5, 1.0]
    assert second[0].reward is None, "the shared turn's reward counts once"


def test_generate_rollouts_puts_single_responses_and_episodes_in_order(threads):
    alone = Prompt("a", "1+1=", "exact", "2")
    heard, counts = [], []
    graded = replace(PROMPT, id="g", verifier="exact")

    def silent(episode, sample_seed):
        step = episode.step
        episode.step = lambda message: replace(step(message), outcome=None)

    by = Generation(engine_of(), RENDERER, 3, episodes_of(Counting(last=2, change=silent), threads))
    prompts = [graded, alone, PROMPT]
    rollouts = generate_rollouts(by, prompts, 2, Sampling(20), "rl", 0, reader=heard.extend, count=counts.append)
    assert sum(counts) == len(rollouts)
    assert [(r.prompt_id, r.sample) for r in rollouts] == [(p.id, i) for p in prompts for i in range(2)]
    assert [r.episode is None for r in rollouts] == [False, False, True, True, False, False]
    by_place = {w.index: w for w in heard}
    assert {p for p, w in by_place.items() if w.prompt.id == "g"} == {0, 1}
    assert all(w.prompt.verifier != "environment" for w in heard), "no verifier grades what the environment did not"
    assert by_place[0].text == "one"
    assert by_place[0].messages == rollouts[0].episode.messages
    with pytest.raises(EngineError, match="none was made"):
        generate_rollouts(Generation(engine_of(), RENDERER, 3), prompts, 1, Sampling(20), "rl")


def test_a_long_observation_loses_its_middle_and_is_counted(threads):
    def long(episode, sample_seed):
        step, words = episode.step, (Message("user", "a" * 30 + "b" * 30),)
        episode.step = lambda message: answer if (answer := step(message)).done else replace(answer, messages=words)

    limits = {"shorten": shortener(TOKENIZER, 10), "context": 400}
    (rollout,) = played(engine_of(), episodes_of(Counting(last=2, change=long), threads, **limits))
    assert rollout.episode.messages[2].content == "aaaaa ... 50 tokens left out ... bbbbb"
    assert rollout.episode.counts["observations/cut"] == 1
    assert shortener(TOKENIZER, None) is None
    assert shortener(TOKENIZER, 10)("ten chars.") == "ten chars."
