"""Steps of a response in tokens: by one token after another, for tokenizers of words, bytes and characters."""

import itertools
import random

import pytest

from tests.scoring.fakes import prompts_of, rollout
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.scoring.score import Scorer, step_tokens
from verizero.pipeline.types import Episode, Rollout, Verdict


class Pieces:
    """A tokenizer of byte strings, which drops the blank of a text's first token as some do."""

    def __init__(self, pieces):
        self.pieces = pieces

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace").removeprefix(" ")


def by_hand(text, ends, ids, tokenizer):
    """Number of tokens with which the whole of the first `end` characters is there; all for the last step."""
    found = []
    for end in ends:
        n = next(n for n in range(len(ids) + 1) if tokenizer.decode(ids[:n]).startswith(text[:end]))
        found.append(n)
    return [*found[:-1], len(ids)]


@pytest.mark.parametrize("seed", range(6))
def test_a_step_ends_with_the_token_of_its_last_character(seed):
    draw = random.Random(seed)
    text = "".join(draw.choices("ab c\né€😀=", k=draw.randint(5, 120))).strip() + "."
    raw = (" " + text if seed % 2 else text).encode()
    # Tokens of one to five bytes, which divide characters, and an end of sequence that has no text.
    cuts = sorted({0, len(raw), *draw.sample(range(1, len(raw)), len(raw) // 3)})
    tokenizer = Pieces([*(raw[a:b] for a, b in itertools.pairwise(cuts)), b""])
    ids = range(len(tokenizer.pieces))
    ends = sorted(draw.sample(range(1, len(text) + 1), draw.randint(1, 5)))
    steps = [(text[a:b], float(b)) for a, b in itertools.pairwise([0, *ends])]
    wanted = by_hand(text, ends, ids, tokenizer)
    assert step_tokens(ids, text, steps, tokenizer.decode) == tuple(zip(wanted, map(float, ends), strict=True))


class Given:
    def __init__(self, verdict):
        self.verdict = verdict

    def score(self, attempts):
        return [self.verdict for _ in attempts]


def scored(verdict, response, **table):
    tokenizer = character_tokenizer()
    config = ScoringConfig.model_validate({"truncated": None, **table})
    scorer = Scorer(config, {"a": Given(verdict)}, decode=tokenizer.decode)
    return scorer.score(prompts_of("a"), [response])[0][0]


def of_text(text, **changes):
    base = rollout(text, **changes)
    ids = tuple(character_tokenizer()(text)["input_ids"])
    return Rollout(base.prompt_id, 0, (3,), ids, (-0.1,) * len(ids), text, base.finish_reason, 0)


STEPPED = Verdict("graded", 0.5, steps=(("1+1=2", 1.0), ("so 2", -2.0)))


def test_the_scorer_finds_steps_in_tokens_and_the_reward_stays_the_verdicts():
    member = scored(STEPPED, of_text("1+1=2 so 2"))
    assert (member.reward, member.steps) == (0.5, ((5, 1.0), (10, -2.0)))
    assert member.turn_rewards == [1.0, -2.0]


def test_what_the_recipes_table_rewards_has_no_steps():
    cut = of_text("1+1=2 so 2", finish="length")
    assert scored(STEPPED, cut).steps != ()
    member = scored(STEPPED, cut, truncated=-1.0)
    assert (member.reward, member.steps, member.turn_rewards) == (-1.0, (), [None])


def test_the_steps_of_an_episode_are_its_turns():
    first = of_text("1+1=2 so 2")
    episode = Episode(rows=(tuple(first.turns),), messages=(), answer="1+1=2 so 2")
    member = scored(STEPPED, Rollout(*(getattr(first, n) for n in Rollout.__slots__[:8]), episode=episode))
    assert (member.reward, member.steps, member.turn_rewards) == (0.5, (), [None])
