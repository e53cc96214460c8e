"""A bare clone with the environment that `make demo` makes, a terminal in it, and a browser."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pexpect", reason="pexpect is not installed: make first-hour-test installs it")

if TYPE_CHECKING:
    from terminal import Shell, Typed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def shell() -> Shell:
    """A terminal in a bare clone of the last commit, below runs/ because a sandbox hides /tmp."""
    from terminal import Shell

    folder = ROOT / "runs" / "first-hour"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return Shell(folder)


@pytest.fixture(scope="session")
def demo(shell: Shell) -> Typed:
    """README's first command: the environment from nothing, and the first run."""
    return shell.type("make demo PRESET=tiny", timeout_s=1800)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:  # Any: selenium has no types of use
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("Chromium and its driver are not installed: no page was looked at")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()
