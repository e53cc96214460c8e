"""Runs a model's program as a notebook does. Itself a whole program in the sandbox, of which the
model's is the standard input: standard library only.

What is printed is the result, the value of a last expression included; an exception is its last
line. Random numbers are the same every time, so that an episode can be repeated.
"""

from __future__ import annotations

import ast
import random
import sys


def main() -> None:
    """Run what is on standard input."""
    random.seed(0)
    try:
        run(sys.stdin.read())
    except (SystemExit, MemoryError):
        raise
    except BaseException as error:
        print(f"{type(error).__name__}: {error}")


def run(text: str) -> None:
    """Run a program and print the value of a last expression. Raises what the program raises."""
    tree = ast.parse(text, "program")
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(tree, "program", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "program", "eval"), names)
        if value is not None:
            print(value)


if __name__ == "__main__":
    main()
