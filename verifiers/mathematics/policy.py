"""The label policy of mathematics as named options; each default is the policy's."""

from __future__ import annotations

from pydantic import Field

from verizero.verifiers.base import VerifierParams


class MathParams(VerifierParams):
    """The definition of the same answer. Every option is a point of the policy in `docs/verifiers-math.md`."""

    rounded_gold: bool = Field(True, description="a value that rounds to a gold shown as a rounded decimal is right")
    percent_as_unit: bool = Field(True, description="35 matches the gold 35%, and 35% the gold 35")
    unit_may_be_omitted: bool = Field(True, description="5 matches the gold 5 cm, and 5 cm the gold 5")
    convert_units: bool = Field(True, description="50 mm matches the gold 5 cm")
    inequality_is_interval: bool = Field(True, description="a solved inequality equals its interval, both ways")
    value_of_equation: bool = Field(True, description="x = 3 equals 3, both ways")
    lone_name_ignores_case: bool = Field(True, description="X^2 matches the gold x^2: one variable, one letter")
    same_curve: bool = Field(True, description="an equation scaled or rearranged is right: 2x+2y=4 for x+y=2")
    sets_unordered: bool = Field(True, description="sets and lists of solutions in any order: 2, 1 matches 1, 2")
    text_ignores_case: bool = Field(True, description="East matches the gold east")
    choice_text: bool = Field(True, description="42 matches the gold (C) 42, which shows the text of its choice")
    join_boxes: bool = Field(True, description="boxes side by side, or joined by or, and, commas, are one list")
    concluding_sentence: bool = Field(True, description="without box and cue, the formula of the last sentence answers")
    decimal_comma: bool = Field(False, description="read 3,5 as 3.5 in every response, not only in other languages")
    max_answer_chars: int = Field(2_000, ge=16, le=20_000, description="a longer answer is wrong: too_long")
    slow_path: bool = Field(True, description="ask a computer algebra system, in its own process, what is undecided")
    slow_path_s: float = Field(0.5, gt=0, le=5, description="seconds of work that one such question may take")


DEFAULT = MathParams()
