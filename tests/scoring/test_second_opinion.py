"""Second opinions: a seeded share of responses, graded in order by a thread of its own."""

from __future__ import annotations

from typing import Any

from tests.scoring.fakes import Scripted, rollout
from verizero.pipeline.config.scoring import SecondOpinionConfig
from verizero.pipeline.scoring.second_opinion import SecondOpinions
from verizero.pipeline.types import Group, Prompt, ScoredRollout, Status, Verdict

SIX_TEXTS = "graded 1", "graded 0", "no_answer", "timeout", "graded 0.5", "graded 1"


GRADED: list[Status] = ["graded"] * 100


def groups_of(*statuses: Status, num: int = 1, domain: str = "sums") -> list[Group]:
    return [
        Group(
            Prompt(f"p{g}", "?", "a", "x", domain),
            tuple(
                ScoredRollout(rollout(SIX_TEXTS[i % 6], f"p{g}", i), Verdict(s, 1.0), 1.0)
                for i, s in enumerate(statuses)
            ),
        )
        for g in range(num)
    ]


def second_of(bound: Any, **settings: Any) -> SecondOpinions:
    return SecondOpinions(SecondOpinionConfig(verifier={"name": "exact"}, **settings), bound, 3)


def test_a_share_is_chosen_by_seed_step_prompt_and_sample() -> None:
    groups, second = groups_of(*GRADED[:100], num=40), second_of(Scripted(), share=0.1)
    first = [second.chosen(7, g) for g in groups]
    assert first == [second_of(Scripted(), share=0.1).chosen(7, g) for g in groups]
    assert 0.085 < sum(map(len, first)) / 4000 < 0.115
    assert first != [second.chosen(8, g) for g in groups]
    assert len({tuple(c) for c in first}) > 30, "each group has its own"
    more = second_of(Scripted(), share=0.3)
    assert all(set(c) <= set(more.chosen(7, g)) for c, g in zip(first, groups, strict=True))
    assert [second_of(Scripted(), share=1).chosen(7, g) for g in groups] == [list(range(100))] * 40


def test_failed_graders_and_other_domains_get_none() -> None:
    (group,) = groups_of("graded", "no_answer", "timeout", "verifier_error", "sandbox_error")
    assert second_of(Scripted(), share=1).chosen(0, group) == [0, 1, 2]
    assert second_of(Scripted(), share=1, domains=("sums",)).chosen(0, group) == [0, 1, 2]
    assert second_of(Scripted(), share=1, domains=("other",)).chosen(0, group) == []


def test_opinions_come_in_order_and_once() -> None:
    fake = Scripted(delay_s=0.05)
    second = second_of(fake, share=1)
    second.ask(1, groups_of(*GRADED[:6], num=3), range(3))
    second.ask(1, groups_of(*GRADED[:2], num=2), range(2))
    taken = second.take()
    assert [len(g) for g in taken] == [6, 6, 6, 2, 2]
    assert [v.reason for v in taken[0].values()] == list(SIX_TEXTS)
    assert second.take() == []
    assert fake.batches == [18, 4]
    assert all("second-opinion" in t for t in fake.threads), "not in the thread that trains"
    second.close()


def test_nothing_chosen_asks_nobody() -> None:
    fake = Scripted()
    second = second_of(fake, share=1, domains=("other",))
    second.ask(1, groups_of("graded", num=2), range(2))
    assert second.take() == [{}, {}]
    assert fake.batches == []
