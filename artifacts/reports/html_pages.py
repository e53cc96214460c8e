"""The templates of the HTML pages, apart from what the pages show: `rollflow ui` starts without
tables and plots."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates() -> Environment:
    """The templates of all pages: texts are escaped, and an unknown name is an error."""
    return Environment(
        loader=PackageLoader("artifacts.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
