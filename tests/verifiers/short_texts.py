"""Short texts of many kinds, each the whole answer of some task: what no reader may cut."""

from __future__ import annotations

import random

WORDS = "amber birch cedar delta ember fjord grove heron islet jetty kelp lotus maple north ocean pearl"
NAMES = "Ada Bo Curie Dana Erik Fay Gauss Hana Ida Jules Kepler Lina Mary Noor Otto Pia"
ATOMS = "H C N O Na Cl Fe Ca Mg S P K"
UNITS = "km m cm kg g mg s min h km/h m/s °C kWh MB Hz % N·m mol/L m² ft lbs"
NUMBERS = {"n": (2, 999), "m": (2, 99), "d": (2, 9), "t": (1, 12), "y": (1900, 2099)}
NUMBERS |= {"h": (0, 23), "k": (0, 23), "i": (0, 59), "j": (0, 59)}

KINDS = {
    "clock": """{h:02}:{i:02} | {h:02}:{i:02}:{j:02} | {t}:{i:02} am | {t}:{i:02} p.m. | {h}h{i:02}
        | {h:02}:{i:02}-{k:02}:{j:02} | {j}:{i:02}.{n:03} | from {h:02}:{i:02} to {k:02}:{j:02}
        | Mon 9:{i:02}, Tue {h}:{j:02} | {h:02}:{i:02} UTC""",
    "date": """{y}-{t:02}-{d:02} | {y}-{t:02}-{d:02}T{h:02}:{i:02}:00Z | {y}-{t:02}-{d:02} {h:02}:{i:02}
        | {d}.{t}.{y} | {y}-{t:02}-{d:02}T{h:02}:{i:02}+02:00 | {t}/{d}/{y} | {y}-W{d:02}-3 | P{t}DT{h}H
        | {y}-{t:02}-{d:02}/P{d}D | {d}. March {y} | Oct. {d}, {y} | {y} B.C. | the {d}th of May, {y}
        | May {d} {y} | {d}-Jan-{y}""",
    "ratio": """{m}:{n} | {m} : {n} | {m}:{n}:{d} | {m}/{n} | {m} to {n} | 1:{m}.{n} | {m}-{n} | {m} out of {n}""",
    "title": """Dr. {P} | Mr. {P} {Q} | St. {P} | Prof. {P} | Mt. {P} | {P} {Q}, Jr. | {P:.1}.{Q:.1}.
        | {P:.1}. {Q:.1}. {P} | {P} vs. {Q} | {P} & Co. | {P}: {Q} and {a} | Mission: Impossible {d}
        | {P} {d}: The {Q} | No. {n} | Who is {P}? | {P} was {Q} | What {P} says | Let {P} be | The Answer: {P}
        | Op. {n}, No. {d} | {P} (b. {y}) | If {P} could | {P} and the {Q}, vol. {d} | U.S. {a} | {P} e.g. {Q}
        | {a} etc. | Catch-{n} | {P}? {Q}! | Gen. {d}:1-{n}""",
    "code": """{a} = {n} | {a} == {n} | {a} += {n} | {a}.{b}() | {a}[{n}:{m}] | {a}[::-1] | lambda {a}: {a} + {n}
        | not {a} | def {a}({b}): return {n} | if {a} > {n}: {b}() | for {a} in range({n}): print({a})
        | {{'{a}': {n}}} | return {a} | let {a} = {n}; | int {a} = {n}; | {a} => {a} * {n} | {a} -> {b}
        | std::{a}::{b} | {a} ? {n} : {m} | #{n:06x} | {a} is None | assert {a} is not None | {a}: int = {n}
        | grep -n '{a}:' {b}.txt | `{a}` | {a} or {b} | {a}; {b} | x = y = {n} | r'\\d+:{n}' | ({n}, {m})
        | {a} != {n} | {a} <= {n} | sudo apt install {a}={n}.0 | $({a})""",
    "sql": """SELECT {a} FROM {b} WHERE id = {n} | SELECT COUNT(*) FROM {a};
        | select {a} from {b} where {a} is not null | SELECT {a}, {b} FROM t WHERE {a} = '{b}' ORDER BY {b}
        | INSERT INTO {a} VALUES ({n}, '{b}'); | DELETE FROM {a} WHERE {b} >= {n}
        | UPDATE {a} SET {b} = {n} WHERE id = {m}; | select * from {a} where n = {n}
        | SELECT {a}.id FROM {a} JOIN {b} ON {a}.id = {b}.id | WITH {a} AS (SELECT {n}) SELECT * FROM {a}""",
    "address": """https://{a}.org/{b}?q={n} | http://localhost:{n}/{a} | ftp://{a}.{b}.net:{n} | {a}@{b}.com
        | 10.{d}.0.{n} | {a}.{b}+{n}@mail.{b}.co.uk | 192.168.{n}.1/24 | 10.0.0.{d}:8080 | fe80::{n:x}:1
        | /usr/{a}/{b}.py | ./{a}/{b} | C:\\{a}\\{b}.txt | ~/{a}.{b} | {a}/{b}/{n} | mailto:{a}@{b}.org
        | www.{a}.com | {a}.tar.gz | s3://{a}/{b} | 00:1a:2b:{d:02x}:4d:5e | urn:{a}:{b}:{n} | doi:10.{n}/{a}.{m}
        | ../{a} | {a}.py:{n}""",
    "quantity": """{n} | -{n} | {m}.{n} | {y:,} | {n} {u} | {m}.{d} {u} | {y:,}.50 {u} | ${n} | €{y:,}.00 | {n}%
        | {n}e-3 | {n} × 10^3 | ~{n} | ±{n} {u} | {n}-{m} {u} | {n} ft {d} in | #{n} | {n}th | < {n} | {n} + {m}
        | between {m} and {n} | at least {n} | $5 or ${n} | ${m}-${n} | {n},5 | {n} USD | 1 {u} = {n} m | {n}!
        | 1/{n} | +49 30 {n} | R${n}""",
    "pair": """{a}: {b} | {a}: {n} | {a}: {n}, {b}: {m} | {a}={n} | {a}={n}&{b}={m} | {{"{a}": {n}}}
        | <{a}>{n}</{a}> | {{"{a}": "{b}", "n": [{n}, {m}]}} | [{n}, {m}] | {a},{n},{b} | - {a}: {n} | {a} -> {n}
        | {a} → {n} | Re: {a} | "{a}: {n}" | Note: {a} {n} | key: {a}; value: {n} | Psalm {n}:{m} | ({a}, {n})
        | {a}... | {a}: yes | {a}: no | a) {a} | '{a}' | "{a}" | {a} / {b} | {a} and {b} | *{a}* | **{a}**
        | {a}:{n} | {a}: {n} {u}""",
    "formula": """{A}{d}{B}{t} | {A}{B} | {A}2+ | {d}{A}2 + {B}2 -> {d}{A}{B} | {A}{d}({B}O4)3 | {A}-{m}
        | pH {d}.{t} | {A} + {B} → {A}{B} | [{A}] = {d} | {A}·{d}H2O | x^{d} | x^{d} + {m}x = 0 | y = {d}x + {m}
        | f(x) = {m} | √{m} | {d}π | $x^{d}$ | \\frac{{{d}}}{{{m}}} | x < {d} | a:b = {d}:{m} | log10({d}) = 0.{m}
        | ({d}, {m}]""",
    "version": """{m}.{d}.{t} | v{m}.{d} | {m}.{d}.{t}-rc.1 | {a}>={m}.{d} | {a}=={m}.{d}.{t} | Python {m}.{d}
        | ^{m}.{d} | {a} {m}.{d}.{t} | {a}:{m}.{d} | {a}@{m} | § {m}.{d} | Fig. {m}.{d} | p. {n} | pp. {m}-{n}
        | ISO {n}:{y} | RFC {n} | Ch. {m}, v. {d} | Eq. ({n})""",
    "sentence": """{P} is {n} years old. | The train leaves at {h}:05. | Because the {a} is wet. | Yes, it is.
        | No. | Next | {P} lives in the {a}; {P} has {n} cats. | It is {h}:30 now. | The {a} costs ${n}.
        | I don't know. | I give up. | It cannot be determined. | {P} would say no. | Either {P} or the {a}.
        | The {a} does not exist. | So {n} it is! | To be or not to be | Check the {a} at {n}:00.
        | {P} said: "{n}!" | What is the {a} of {P}? | Perhaps {n}. | The ratio is {n}:{m}.
        | There are {n} {a}s in total. | Thus {P} had {n}. | The answer is {n}. | It is not {n}.
        | {P} asked for {n} because of the {a}. | How many? {n}. | Sorry, {P}. | {P} went. {P} came back at {n}.
        | Hello, {P}! How are you? | {n} is the {a} by the sea. | The {a} and | of the {a} that | the total of {n}
        | If {P}, then {n}. | La respuesta es {n}. | Es ist {n} Uhr. | C'est la vie, {P}. | {P}, which is {n}.""",
}
"""Kind -> templates of its texts, between bars."""


def short_texts(count: int, seed: int = 0) -> dict[str, str]:
    """Return `count` different texts, each with its kind, in turn from every kind."""
    chance = random.Random(seed)
    templates = {kind: [t.strip() for t in text.split(" | ")] for kind, text in KINDS.items()}
    made: dict[str, str] = {}
    while len(made) < count:
        for kind, choices in templates.items():
            fields: dict[str, int | str] = {name: chance.randint(*span) for name, span in NUMBERS.items()}
            for names, words in (("ab", WORDS), ("PQ", NAMES), ("AB", ATOMS), ("u", UNITS)):
                fields |= dict(zip(names, chance.sample(words.split(), len(names)), strict=True))
            made.setdefault(chance.choice(choices).format(**fields), kind)
    return dict(list(made.items())[:count])
