"""Times of day and calendar dates, read from plain text."""

from __future__ import annotations

import re
from typing import NamedTuple

from verizero.verifiers.mathematics.words.vocabulary import in_order

TIME = re.compile(
    r"(?:at )?(\d{1,2})(?:\s?(?:[:h]|\.(?=\d\d\s?[ap]))\s?(\d{2}))?(?::(\d{2}))?\s?(?:o'?clock\s?)?(?:(a|p)\.?\s?m\.?"
    r"|(in (?:the )?morning|in (?:the )?afternoon"
    r"|in (?:the )?evening|at night))?(?: hours)?"
)
HALF = re.compile(r"(half past|quarter past|quarter to) (\w+)\s?(?:(a|p)\.?\s?m\.?)?")
NAMED_TIMES = dict.fromkeys(("noon", "midday", "12 noon", "12:00 noon"), 720)
NAMED_TIMES |= dict.fromkeys(("midnight", "12 midnight", "12:00 midnight"), 0)
TWELVE = in_order("one two three four five six seven eight nine ten eleven twelve")
HOURS = {word: hour for hour, word in enumerate(TWELVE, start=1)}
MONTHS = in_order("january february march april may june july august september october november december")
MONTH = {m: i for i, m in enumerate(MONTHS, start=1)} | {m[:3]: i for i, m in enumerate(MONTHS, start=1)} | {"sept": 9}
NAME = "|".join(sorted(MONTH, key=len, reverse=True))
WEEKDAY = r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day,?\s+)?"
NTH = r"(?:\s?\^?\s?(?:st|nd|rd|th))?"
DATES = (
    re.compile(rf"{WEEKDAY}(?:on )?(?P<month>{NAME})\.?\s+(?P<day>\d{{1,2}}){NTH}(?:\s?,?\s*(?P<year>\d{{4}}))?"),
    re.compile(
        rf"{WEEKDAY}(?:on )?(?P<day>\d{{1,2}}){NTH}\s+(?:of\s+)?(?P<month>{NAME})\.?,?(?:\s*(?P<year>\d{{4}}))?"
    ),
    re.compile(r"(?P<year>\d{4})\s?[-/.]\s?(?P<month>\d{1,2})\s?[-/.]\s?(?P<day>\d{1,2})"),
    re.compile(r"(?P<year>\d{4})\s?年\s?(?P<month>\d{1,2})\s?月\s?(?P<day>\d{1,2})\s?日"),
)
SLASHED = re.compile(r"(\d{1,2})[/.-](\d{1,2})[/.-](\d{4})")
MINUTES_OF_HALF_DAY = 720


class Time(NamedTuple):
    """A time of day."""

    seconds: int
    """Since midnight."""
    certain: bool
    """False on a twelve-hour clock without am or pm."""


class Date(NamedTuple):
    """A day; the year is None if it was not written."""

    year: int | None
    month: int
    day: int


def time_of(bare: str) -> Time | None:
    """Return the time of day that a plain text names; None if it names none, as a lone number does."""
    if bare in NAMED_TIMES:
        return Time(NAMED_TIMES[bare] * 60, True)
    half = HALF.fullmatch(bare)
    if half is not None and half[2] in HOURS:
        minutes = HOURS[half[2]] * 60 + {"half past": 30, "quarter past": 15, "quarter to": -15}[half[1]]
        return _on_clock(minutes, 0, half[3])
    parts = TIME.fullmatch(bare)
    if parts is None or (parts[2] is None and parts[4] is None and "clock" not in bare and parts[5] is None):
        return None
    hour, minute, second = int(parts[1]), int(parts[2] or 0), int(parts[3] or 0)
    if hour > 24 or minute > 59 or second > 59:
        return None
    mark = parts[4] or (("a" if parts[5].endswith("morning") else "p") if parts[5] else None)
    return _on_clock(hour * 60 + minute, second, mark, parts[1].startswith("0"))


def _on_clock(minutes: int, second: int, mark: str | None, padded: bool = False) -> Time:
    """Return the time with a mark of a (am) or p (pm); without a mark, "13:00", "0:30" and "08:30" have 24 hours."""
    if mark is None:
        return Time(minutes * 60 + second, minutes >= 13 * 60 or minutes < 60 or padded)
    minutes %= MINUTES_OF_HALF_DAY
    return Time((minutes + (MINUTES_OF_HALF_DAY if mark == "p" else 0)) * 60 + second, True)


def same_time(gold: Time, answer: Time) -> bool:
    """True if the times agree; a gold without am or pm agrees with both, an answer without them only with itself."""
    if gold == answer:
        return True
    half = MINUTES_OF_HALF_DAY * 60
    if gold.certain and answer.certain:
        return gold.seconds == answer.seconds
    return not gold.certain and gold.seconds % half == answer.seconds % half


def date_of(bare: str) -> Date | None:
    """Return the date that a plain text names; None if it names none. In 3/5/2024 the month comes first."""
    for form in DATES:
        parts = form.fullmatch(bare)
        if parts is not None:
            month = MONTH[parts["month"]] if parts["month"] in MONTH else int(parts["month"])
            return _date(parts["year"], month, int(parts["day"]))
    parts = SLASHED.fullmatch(bare)
    if parts is None:
        return None
    # 25/3/2024 can only be read with the day first.
    month, day = int(parts[1]), int(parts[2])
    return _date(parts[3], day, month) if month > 12 else _date(parts[3], month, day)


def _date(year: str | None, month: int, day: int) -> Date | None:
    return Date(int(year) if year else None, month, day) if 1 <= month <= 12 and 1 <= day <= 31 else None
