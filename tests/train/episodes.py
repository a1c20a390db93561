"""Groups of random episodes: turns with observations between them, some in several rows."""

import dataclasses
import random

from tests.models.families import VOCAB
from tests.train.batches import with_rollouts
from verizero.pipeline.types import Episode, Group, Prompt, Rollout, ScoredRollout, Turn, Verdict

END = 5
"""A token that ends turns, and that observations hold too."""


def turn_of(rng, observed, version=3):
    """A turn of 1 to 5 sampled tokens after those observed."""
    sampled = tuple(rng.choices(range(2, VOCAB), k=rng.randint(1, 5)))
    logprobs = tuple(-rng.uniform(0.5, 4.0) for _ in sampled)
    reward = rng.choice([None, 0.0, 0.5, -1.0])
    return Turn(observed, sampled, logprobs, "stop", version, reward=reward)


def seen(rng):
    """An observation that begins as an added turn end does, with the token that ends turns."""
    return (END, *rng.choices(range(VOCAB), k=rng.randint(0, 3)))


def context(turn):
    """The turn as a later row has it: its tokens do not train again."""
    return dataclasses.replace(turn, trains=False, kept=None)


def episode_of(rng, prompt, *, forks, versions):
    """One to three turns; with `forks` half of the episodes have a second row, which shares a turn or none."""
    first = [turn_of(rng, prompt, rng.choice(versions))]
    first += [turn_of(rng, seen(rng), rng.choice(versions)) for _ in range(rng.randint(0, 2))]
    if not forks or rng.random() < 0.5:
        return Episode((tuple(first),), ())
    shares = rng.random() < 0.5
    begin = [context(first[0])] if shares else []
    other = turn_of(rng, seen(rng) if shares else (2, *prompt), rng.choice(versions))
    more = [turn_of(rng, seen(rng), rng.choice(versions))] if rng.random() < 0.5 else []
    return Episode((tuple(first), (*begin, other, *more)), ())


def rollout_of(name, sample, episode):
    """The rollout of the episode, whose own fields describe the first turn."""
    first = episode.rows[0][0]
    return Rollout(
        name,
        sample,
        first.observed,
        first.sampled,
        first.logprobs,
        "",
        first.finish_reason,
        first.policy_version,
        first.kept,
        first.routing,
        episode,
    )


def episodes_of(num=3, size=4, seed=0, *, forks=True, versions=(3,)):
    """`num` groups of episodes, with rewards that differ within each; one member of the second group has no reward."""
    rng = random.Random(seed)
    groups = []
    for g in range(num):
        prompt = tuple(random.Random(g).choices(range(2, VOCAB), k=1 + g % 4))
        members = []
        for i in range(size):
            rollout = rollout_of(f"p{g}", i, episode_of(rng, prompt, forks=forks, versions=versions))
            reward = None if (g, i) == (1, size - 1) else [1.0, 0.0, 0.25, 1.0][i % 4]
            verdict = Verdict("sandbox_error") if reward is None else Verdict("graded", reward)
            members.append(ScoredRollout(rollout, verdict, reward, components=(reward or 0.0, 0.5 * (i % 2))))
        groups.append(Group(Prompt(f"p{g}", "?", "exact", "x"), tuple(members), greedy_reward=float(g % 2)))
    return groups


def forked(num=3, size=4, seed=0):
    """Groups of episodes of three turns, and of rows that fork after the first turn or the second."""
    rng, groups = random.Random(seed), []
    for g in range(num):
        prompt, members = tuple(rng.choices(range(3, VOCAB), k=20)), []
        for i in range(size):
            main = [turn_of(rng, prompt), turn_of(rng, seen(rng)), turn_of(rng, seen(rng))]
            forks = [(*map(context, main[:n]), turn_of(rng, seen(rng))) for n in (1, 2)]
            rollout = rollout_of(f"p{g}", i, Episode((tuple(main), *forks[: i % 3]), ()))
            reward = [1.0, 0.0, 0.25][i % 3]
            components = (reward, 0.5 * (i % 2))
            members.append(ScoredRollout(rollout, Verdict("graded", reward), reward, components))
        groups.append(Group(Prompt(f"p{g}", "?", "exact", "x"), tuple(members), greedy_reward=float(g % 2)))
    return groups


def wrapped(groups):
    """The groups with every single response as an episode of one turn."""
    return with_rollouts(groups, lambda r: dataclasses.replace(r, episode=Episode((tuple(r.turns),), ())))
