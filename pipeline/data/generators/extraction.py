"""Sentences to be written as JSON, flat and nested: `The tour is on Monday at 9 o'clock.` -> `{"event": "tour", …}`.

The answer of a task is a schema with all keys required and no others, and the values that the sentence names. No
sentence is in both train and evaluation. For models that are pretrained: nothing is demonstrated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from verizero.pipeline.data.generators.base import GeneratorParams, Row, Split
from verizero.pipeline.seeds import stream

Kind = Literal["person", "home", "event", "order", "letter"]
Depth = Literal["flat", "nested"]
Made = tuple[str, dict[str, Any]]
"""A sentence, and what it says."""

NAMES: tuple[str, ...] = (
    *("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas"),
    *("Karen", "Leo", "Maria", "Nina", "Oscar", "Paula", "Robert", "Sofia", "Tom", "Victor"),
)
CITIES: tuple[str, ...] = (
    *("Paris", "Oslo", "Rome", "Madrid", "Berlin", "Vienna", "Lisbon", "Dublin", "Athens", "Lima"),
    *("Boston", "Tokyo", "Cairo", "Delhi", "Prague", "Seoul"),
)
COUNTRIES = (
    *("France", "Norway", "Italy", "Spain", "Germany", "Austria", "Portugal", "Ireland", "Greece", "Peru"),
    *("America", "Japan", "Egypt", "India", "Czechia", "Korea"),
)
"""Countries of the cities, in the same order."""
EVENTS = ("meeting", "concert", "lecture", "dinner", "workshop", "party", "tour", "exam", "lesson", "match")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
THINGS = ("lamps", "chairs", "books", "cups", "pens", "shirts", "clocks", "plates", "bags", "coats")
MOST = 300
"""Tasks of one kind and depth; each kind has over twice as many sentences, so that a new one is soon drawn."""


class Params(GeneratorParams):
    """The number of tasks, what they are about, and how deep the JSON is."""

    num_train: int = Field(1000, ge=1)
    num_evaluation: int = Field(64, ge=0)
    kinds: tuple[Kind, ...] = Field(get_args(Kind), min_length=1)
    depths: tuple[Depth, ...] = Field(("flat", "nested"), min_length=1, description="nested: an object in an object")

    @model_validator(mode="after")
    def _fits(self) -> Params:
        room = MOST * len(set(self.kinds))
        if self.num_train + self.num_evaluation > room:
            raise ValueError(
                f"num_train + num_evaluation must be <= {room} for {len(set(self.kinds))} kinds, got {self.num_train} "
                f"+ {self.num_evaluation}; lower one of the two, or name more kinds"
            )
        return self


def rows(params: Params, seed: int) -> Split:
    """Training and evaluation rows. Kinds and depths take turns, in both alike."""
    rng = stream(seed, "data", "extraction")
    made: dict[str, Row] = {}
    while len(made) < params.num_evaluation + params.num_train:
        kind = params.kinds[len(made) % len(params.kinds)]
        depth = params.depths[len(made) // len(params.kinds) % len(params.depths)]
        text, value = MAKERS[kind](rng, depth == "nested")
        made.setdefault(text, _row(kind, depth, text, value))
    tasks = list(made.values())
    return Split(tasks[params.num_evaluation :], tasks[: params.num_evaluation], [])


def schema_of(value: Any) -> dict[str, Any]:
    """Return the schema of values of the same form: the same types, all keys and no others."""
    if isinstance(value, Mapping):
        inner = {key: schema_of(item) for key, item in value.items()}
        return {"type": "object", "properties": inner, "required": list(inner), "additionalProperties": False}
    return {"type": "integer" if isinstance(value, int) else "string"}


def _person(rng: random.Random, nested: bool) -> Made:
    name, age, city = rng.choice(NAMES), rng.randint(18, 80), rng.choice(CITIES)
    text = f"{name} is {age} years old and lives in {city}."
    person = {"name": name, "age": age}
    return text, {"person": person, "city": city} if nested else {**person, "city": city}


def _home(rng: random.Random, nested: bool) -> Made:
    name, age, city = rng.choice(NAMES), rng.randint(18, 80), rng.choice(CITIES)
    home = {"city": city, "country": COUNTRIES[CITIES.index(city)]}
    text = f"{name} is {age} years old and lives in {city}, {home['country']}."
    return text, {"name": name, "age": age, "home": home} if nested else {"name": name, "age": age, **home}


def _event(rng: random.Random, nested: bool) -> Made:
    event, day, hour = rng.choice(EVENTS), rng.choice(DAYS), rng.randint(8, 20)
    text = f"The {event} is on {day} at {hour} o'clock."
    time = {"day": day, "hour": hour}
    return text, {"event": event, "time": time} if nested else {"event": event, **time}


def _order(rng: random.Random, nested: bool) -> Made:
    name, count, item = rng.choice(NAMES), rng.randint(2, 40), rng.choice(THINGS)
    text = f"{name} ordered {count} {item}."
    order = {"count": count, "item": item}
    return text, {"customer": name, "order": order} if nested else {"customer": name, **order}


def _letter(rng: random.Random, nested: bool) -> Made:
    (first, second), city = rng.sample(NAMES, 2), rng.choice(CITIES)
    text = f"{first} sent a letter to {second} in {city}."
    to = {"to": {"name": second, "city": city}} if nested else {"to": second, "city": city}
    return text, {"from": first, **to}


MAKERS: dict[Kind, Callable[[random.Random, bool], Made]] = {
    "person": _person,
    "home": _home,
    "event": _event,
    "order": _order,
    "letter": _letter,
}


def _row(kind: Kind, depth: Depth, text: str, value: dict[str, Any]) -> Row:
    inner = [f"{key} has the keys {_listed(item)}." for key, item in value.items() if isinstance(item, Mapping)]
    wish = " ".join([f"Write this as JSON with the keys {_listed(value)}.", *inner])
    return {
        "id": f"extraction/{kind}/{depth}/{text}",
        "question": f"{text} {wish}",
        "answer": {"schema": schema_of(value), "equals": value},
        "domain": "extraction",
        "verifier": "json_schema",
    }


def _listed(keys: Iterable[str]) -> str:
    *first, last = keys
    return f"{', '.join(first)} and {last}"
