"""The programs of the suite, which are in `texts/`: hostile, hungry, lingering and honest ones."""

import re
import sys
from pathlib import Path
from typing import Any


def tables(name: str, **preludes: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a file: `##### table`, and in it `=== program`, the code, and `--- value` where it has one.

    A line that is the name of a prelude is replaced by the prelude.
    """
    text = (Path(__file__).parent / "texts" / f"{name}.txt").read_text(encoding="utf-8")
    for line, prelude in preludes.items():
        text = text.replace(f"\n{line}\n", f"\n{prelude}")
    parts = [part.partition("\n") for part in re.split("^##### ", text, flags=re.M)[1:]]
    return {title: dict(map(_row, re.split("^=== ", rows, flags=re.M)[1:])) for title, _, rows in parts}


def _row(text: str) -> tuple[str, Any]:
    name, _, rest = text.removesuffix("\n").partition("\n")
    code, mark, value = rest.partition("\n--- ")
    return name, (code, value) if mark else code


ACTS = tables("acts")
"""Single acts that must fail behind the walls. Each is code that raises, or ends, when it is stopped.

`SECRET`, `OUTSIDE`, `PID` and `PORT` are filled in: a readable host file, a writable host folder, a host process of the
same user, a listening TCP port of the host. An act that returns without raising has succeeded: its program then prints
the very output that was expected. Acts marked with `*` are harmless enough to be tried without walls as a control.
"""

LOOK = (
    "import re\ndef look(o):\n  m = re.search('tok' + 'en-[0-9a-f]{16}', repr(o))\n"
    "  if m: print(m.group()); raise SystemExit\n"
)
ANY = "class A:\n  def __eq__(s, o): return True\n  def __ne__(s, o): return False\n  def __hash__(s): return 1\n"
HACKS = tables("hacks", LOOK=LOOK, ANY=ANY)
"""Programs that want the reward without the answer, which nobody is told; those of a function have its value."""

EXHAUST = tables("exhaust")
"""Programs that exhaust or crash, by the status that they must end with."""
EXHAUST["runtime_error"]["null byte"] = "print('TOKEN')\0"

# The first process of a namespace, which a program is at level 3, cannot stop or kill itself.
AT_LEVEL_2 = {"stop itself": "timeout", "kill itself": "runtime_error"}

# A control group ends it as soon as it has too much.
IN_A_GROUP = {"fill memory and catch it": "memory_limit"}

# Interpreters differ in deep parses and in bytecode that no compiler wrote: some end in the other status.
BY_INTERPRETER = {"compile something deep": "runtime_error", "crash by bytecode": "cpu_limit"}
if sys.version_info >= (3, 12):  # recursion in C has a bound of its own
    BY_INTERPRETER["recurse in C without end"] = "runtime_error"

LINGER = tables("linger")["linger"]
"""Programs that leave something, each with one that looks for it."""
HONEST = tables("honest")["honest"]
"""Programs that must pass, each with the pairs of its input and output."""
