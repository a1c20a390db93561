"""Fences as models write them: which block is the program, in `code`, `unit_tests` and `sql` alike."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.fences import ALIASES, Block, blocks_in, language_named, program_among
from verizero.pipeline.types import Attempt
from verizero.verifiers._programs import program_of

CODE = "a, b = map(int, input().split())\nif a:\n    print(a + b)"
DEFINES = "def enc(s):\n    return s[::-1]\n\ndef dec(s):\n    return s[::-1]"


def indented(text, by):
    return "\n".join(by + line for line in text.split("\n"))


TAGS = [
    "python", "Python", "py", "python3", "Python 3.11", "{python}", "{.python}", "{.python .numberLines}", "ipython",
    "python:main.py", "main.py", "python3.11", "py3", "python,linenos", 'python title="main.py"', "pypy3", "",
    " python",
]  # fmt: skip
WRITTEN = {
    **{f"tag {tag}": f"Here:\n```{tag}\n{CODE}\n```\n" for tag in TAGS},
    "after prose": f"Here it is: ```python\n{CODE}\n```",
    "after prose, without a tag": f"Here it is: ```\n{CODE}\n```",
    "closed behind the code": f"```python\n{CODE}```\n",
    "closed behind the code, with words": f"```python\n{CODE}``` This adds `a` and `b`.\n",
    "line ends of Windows": f"So:\r\n```python\r\n{CODE}\r\n```\r\nDone.",
    "words behind the closing fence": f"```python\n{CODE}\n``` This adds them.",
    "a tag behind the closing fence": f"<answer>```python\n{CODE}\n```</answer>",
    "a sample output": f"```python\n{CODE}\n```\nOutput:\n```\n7\n```\n",
    "a session": f"```python\n{CODE}\n```\n\n```\n$ python a.py\n3 4\n7\n```\n",
    "a complexity": f"```python\n{CODE}\n```\nTime:\n```\nO(n)\n```",
    "an output without a line between": f"```python\n{CODE}\n```output\n7\n```",
    "inline code before": f"Use ```input()``` and ```print```.\n```python\n{CODE}\n```",
    "a tag in prose": f"Wrap it in ```python fences.\n```python\n{CODE}\n```",
    "a draft that is left open": f"```python\nprint('draft')\n\nBetter:\n```python\n{CODE}\n```",
    "another fence behind it that is left open": f"```python\n{CODE}\n```\n```text\n7",
    "in a list": f"1. So:\n\n   ```python\n{indented(CODE, '   ')}\n   ```\n2. Run it.",
    "in a list, by four": f"- So:\n\n    ```python\n{indented(CODE, '    ')}\n    ```\n",
    "in a list, by a tab": f"- So:\n\n\t```python\n{indented(CODE, chr(9))}\n\t```\n",
    "on the line of an item": f"1. ```python\n{indented(CODE, '   ')}\n   ```\n",
    "behind prose of an item": f"1. So: ```python\n{indented(CODE, '   ')}\n   ```\n",
    "a fence that is indented alone": f"  ```python\n{CODE}\n  ```",
    "a fence at the beginning, indented with its code": f"  ```python\n{indented(CODE, '  ')}\n  ```",
    "a byte order mark": f"```python\n\ufeff{CODE}\n```",
    "a longer fence": f"````python\n{CODE}\n````",
    "tildes": f"~~~python\n{CODE}\n~~~",
    "thinking before": f"<think>```python\nprint('</think>')\n```</think>\n```python\n{CODE}\n```",
    "a fence left open in thinking": f"<think>```python\nx = 1</think>\n```python\n{CODE}\n```",
    "thinking that the prompt opened": f"First\n```\nx = 1\n so.</think> Here:\n```\n{CODE}\n```",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_program_is_found(name):
    assert (program_of(Attempt(WRITTEN[name], None)).text or "").rstrip("\r") == CODE


@pytest.mark.parametrize(
    "program",
    [
        "'''Usage:\n```\n3 4\n```\n'''\nprint(1)",
        '"""\n```python\nprint(2)\n```\n"""\nprint(1)',
        "x = 1  # a comment that ends with ```\nprint(x)",
        "x = '''a\n```'''\nprint(x)",
        "n = input()\nprint(f'<answer>{n}</answer>')",
        "print('<answer>' + input())",
        "print('<think>')",
        "print('</think>')  # <thinking>",
        "print('```')",
    ],
)
@pytest.mark.parametrize("frame", ["{}", "So it is.\n{}\nDone.", "<think>x</think>\n{}", "<answer>\n{}\n</answer>"])
def test_marks_in_the_text_of_a_program_are_its_own(program, frame):
    response = frame.format(f"```python\n{program}\n```")
    assert program_of(Attempt(response, None)).text == program


def test_a_string_that_is_never_closed_hides_no_fence():
    response = f"```python\nx = '''\n```\nBetter:\n```python\n{CODE}\n```"
    assert program_of(Attempt(response, None)).text == CODE


@pytest.mark.parametrize(
    ("response", "names"),
    [
        (f"```python\n{DEFINES}\n```\nUse:\n```python\nprint(dec(enc('ab')))\n```", ("enc", "dec")),
        (f"```python\ndef enc(s): pass\n```\n```python\n{DEFINES}\n```\n```python\nenc('')\n```", ("enc", "dec")),
        (f"```\n{DEFINES}\n```\n```python\nenc('')\n```", ("enc",)),
        (f"```python\n{DEFINES}\n```\n```python\nSolution().enc('')\n```", ("Solution().enc",)),
        (f"```python\ndef dec(s): pass\n```\n```python\n{DEFINES}\n```", ("dec",)),
        (f"```python\n{DEFINES}\n```", ("other",)),
    ],
)
def test_the_block_that_defines_what_is_called_is_the_program(response, names):
    assert program_of(Attempt(response, None), names=names).text == DEFINES


@pytest.mark.parametrize(
    ("word", "language"),
    [("c++17", "cpp"), ("cpp17", "cpp"), ("C++", "cpp"), ("gnu++20", "cpp"), ("c11", "c"), ("postgresql", "sql"),
     ("mysql", "sql"), ("sqlite3", "sql"), ("js", "javascript"), ("sh", "bash"), ("pseudocode", "pseudocode"),
     ("c#", "c#"), ("python-repl", "python-repl"), ("json5", "json5"), ("text", "text")],
)  # fmt: skip
def test_languages_by_their_words(word, language):
    assert language_named(word) == language


@pytest.mark.parametrize("response", [f"```python\n{CODE}", f"So: ```python\n{CODE}", f"```python\n{CODE}\n# ```"])
def test_a_fence_that_is_left_open_holds_no_program(response):
    assert program_of(Attempt(response, None)).reason == "unclosed_fence"


@given(st.lists(st.sampled_from(["```", "```python", "x = 1", "'''", "~~~", "  ```", "so: ```", "`a`"]), max_size=12))
def test_blocks_are_in_order_and_none_overlaps(lines):
    text = "\n".join(lines)
    blocks, _ = blocks_in(text)
    places = [(b.start, b.end) for b in blocks]
    assert all(0 <= start < end <= len(text) for start, end in places)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))


def test_no_word_is_of_two_languages():
    words = [word for names in ALIASES.values() for word in names]
    assert len(words) == len(set(words))
    assert program_among([Block("", " \n"), Block("text", "7")], "python") is None
