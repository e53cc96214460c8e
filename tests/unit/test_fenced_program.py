"""Which part of a response is the program, by table."""

from __future__ import annotations

import pytest

from tasks.rewards.programs.fenced_program import program_of

DEF = "def f(n):\n    return n * n\n"
USE = "print(f(3))\n"
NESTED = (
    'def f(n):\n    """Squares.\n\n    ```python\n    f(3)\n    ```\n    """\n    return n * n\n'
)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("no fence at all", "no fence at all"),
        ("```python\na = 1\n```", "a = 1\n"),
        ("```\na = 1\n```\n```python\nb = 2\n```", "a = 1\n"),
        ("so: ```py\nnever closed", "never closed"),
        ("<think>\n```\na = 0\n```\n</think>\n```\na = 1\n```", "a = 1\n"),
        ("<think>\n```\na = 1\n```\n</think>\nSee above.", "a = 1\n"),
        ("<think>One.</think>a = 1", "a = 1"),
        ("``` python\na = 1\n```\nThat is it.", "a = 1\n"),
        ('```python title="a.py"\r\na = 1\r\n```\r\nThat is it.', "a = 1\r\n"),
        ("see ```a``` here:\n```\na = 1\n```", "a = 1\n"),
        ("1. so:\n   ```python\n   if a:\n       b = 1\n   ```", "if a:\n    b = 1\n"),
        ("```python\n    return 1\n```", "    return 1\n"),
        (" ```python\nif a:\n b = 1\n```", "if a:\n b = 1\n"),
        ("", ""),
    ],
)
def test_the_first_fenced_block_is_the_program(text: str, program: str) -> None:
    assert program_of(text) == program


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{DEF}```",
        f"```bash\npip install numpy\n```\nand then\n```python\n{DEF}```",
        f"```sh\nls\n```\n```\n{DEF}```",
        f"```json\n{{}}\n```\n```py\n{DEF}```\n```text\n9\n```",
        f"```console\n$ python a.py\n```\n~~~python\n{DEF}~~~",
        f"~~~\n{DEF}~~~\nThat is it.",
        f"```Python3\n{DEF}```",
        f"```PY\n{DEF}```",
        f"``` {{.python}}\n{DEF}```",
        f"```python3.11 title=a.py\n{DEF}```",
        f"````python\n{DEF}````",
        f"````\n{DEF}````\n```bash\nls\n```",
        f"```python\n{DEF}```\nFor example:\n```python\n{USE}```",
        f"It is used so:\n```python\n{USE}```\nHere it is:\n```python\n{DEF}```",
        f"```python\n{DEF}\n```python\n{USE}```",
        f"```python\n{DEF}",
        f"```bash\nls\n```\n```python\n{DEF}",
        f"<think>\n```python\nf = 1\n```\n</think>\n```python\n{DEF}```",
        f"<think>\n```python\nf = 1\n</think>\n```python\n{DEF}```",
        f"<think>One.</think><think>\n```\nf = 1\n```\n</think>\n```python\n{DEF}```",
        f"<think>\n```python\nf = 1\n```\n</think>\n{DEF}",
        f"<think>\n```python\n{DEF}```\n</think>\nSee above.",
        "1. First\n   ```bash\n   ls\n   ```\n2. so:\n   ```python\n{}   ```".format(
            "".join(f"   {line}\n" for line in DEF.splitlines())
        ),
        "- ```python\n{}  ```".format("".join(f"  {line}\n" for line in DEF.splitlines())),
        "> ```python\n{}> ```".format("".join(f"> {line}\n" for line in DEF.splitlines())),
        f"Call ```f(3)```\n```python\n{DEF}```",
        f"Here: ```python\n{DEF}```",
        f"```python\n{DEF.rstrip()}```\nThat is it.",
        f"```python\n{DEF.rstrip()}``` That is it.",
        f"```text\n{DEF}```",
    ],
)
def test_the_program_is_found_however_it_is_fenced(text: str) -> None:
    assert program_of(text, "f").strip() == DEF.strip()


@pytest.mark.parametrize(
    "program",
    [
        NESTED,
        'def f(n):\n    print("```")\n    return n * n\n',
        "f = lambda n: n * n\n",
        "class f:\n    pass\n",
        "async def f(n):\n    return n * n\n",
    ],
)
def test_what_a_program_says_of_fences_does_not_end_it(program: str) -> None:
    fenced = f"```python\n{program}```\nUse it:\n```python\nf(3)\n```"
    assert program_of(fenced, "f") == program
    assert program_of(f"```python\nf(3)\n```\n{fenced}", "f") == program


def test_without_a_name_the_first_that_may_be_python_is_the_program() -> None:
    assert program_of(f"```bash\nls\n```\n```\n{USE}```\n```python\n{DEF}```") == USE
    assert program_of("```bash\nls\n```") == "ls\n"


@pytest.mark.parametrize("text", ["`" * 200_000, "```\n" * 50_000, "~" * 200_000, "- " * 100_000])
def test_a_text_of_fences_alone_is_read_once(text: str) -> None:
    assert len(program_of(f"x{text}y", "f")) <= len(text) + 2
