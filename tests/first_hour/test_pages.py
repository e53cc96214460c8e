"""The pages of the first hour in a browser: of all runs, of one, its report, MLflow, Prefect, the
form of a deployment. All links lead somewhere, and no console has an error."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag
from urllib.request import urlopen

import pytest
from terminal import Shell, Typed, plain

ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|localhost):[0-9]+[^\s'\"]*")
PHONE = (390, 844)
WIDE = (1280, 900)
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def addresses(demo: Typed, shell: Shell) -> Iterator[dict[str, str]]:
    """What `make ui` says can be opened, by name, while it serves it."""
    with shell.running("make ui", timeout_s=300) as child:
        text = ""
        while text.count("http://") < 3:
            child.expect(r"http://\S+\s")
            text += plain(child.before + child.after)
        lines = [line.split() for line in text.splitlines() if ADDRESS.search(line)]
        yield {line[0]: next(filter(ADDRESS.match, line)) for line in lines}


def opened(browser: Any, url: str, wait_s: float = 2.0) -> str:
    """Open a page, and return the text that it shows. Fails on an error in its console."""
    browser.get(url)
    time.sleep(wait_s)  # pages of Prefect and MLflow draw themselves
    severe = [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"
    ]
    assert not severe, url
    return str(browser.find_element("tag name", "body").text)


def links(browser: Any) -> dict[str, str]:
    """The text of each link of the page by its address, without places within the page."""
    found = {}
    for link in browser.find_elements("css selector", "a[href]"):
        address = urldefrag(link.get_attribute("href"))[0]
        if address != urldefrag(browser.current_url)[0]:
            found[address] = link.text
    return found


def test_every_address_that_ui_prints_answers(addresses: dict[str, str]) -> None:
    assert set(addresses) == {"runs", "Prefect", "MLflow"}
    for address in addresses.values():
        with urlopen(address, timeout=60) as answer:
            assert answer.status == 200, address


def test_every_link_of_the_runs_pages_leads_somewhere(
    addresses: dict[str, str], browser: Any
) -> None:
    text = opened(browser, addresses["runs"])
    assert "tiny-2" in text
    assert "→" in text or "->" in text
    seen: set[str] = set()
    waiting = list(links(browser))
    while waiting:
        address = waiting.pop()
        if address in seen:
            continue
        seen.add(address)
        with urlopen(address, timeout=60) as answer:
            assert answer.status == 200, address
        if address.endswith("/") and address.startswith(addresses["runs"]):
            opened(browser, address)
            waiting += links(browser)


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_a_report_stands_in_its_window_and_opens_offline(
    addresses: dict[str, str], browser: Any, shell: Shell, size: tuple[int, int]
) -> None:
    report = min((shell.folder / "runs").glob("tiny-2*/report/index.html"))
    browser.set_window_size(*size)
    try:
        for page in (report.as_uri(), addresses["runs"]):
            opened(browser, page)
            inner, whole = browser.execute_script(
                "return [window.innerWidth, document.documentElement.scrollWidth]"
            )
            assert whole <= inner, page
    finally:
        browser.set_window_size(*WIDE)
    files = {link for link in links_of(browser, report) if link.startswith("file:")}
    assert [link for link in files if not Path(link.removeprefix("file://")).exists()] == []


def links_of(browser: Any, report: Path) -> dict[str, str]:
    text = opened(browser, report.as_uri())
    for title in ("reward", "loss", "entropy", "KL"):
        assert title in text
    return links(browser)


def test_the_click_from_a_run_to_mlflow_and_prefect_shows_that_run(
    addresses: dict[str, str], browser: Any
) -> None:
    opened(browser, addresses["runs"])
    run = next(text for text in links(browser).values() if text.startswith("tiny-2"))
    for name in ("mlflow", "prefect"):
        text = opened(browser, f"{addresses['runs']}/{run}/{name}", wait_s=6)
        assert run in text or "train" in text, text[:500]
        assert "No data available" not in text


def test_mlflow_lists_the_runs_with_their_reward(addresses: dict[str, str], browser: Any) -> None:
    text = opened(browser, addresses["MLflow"], wait_s=6)
    assert "tiny-2" in text
    assert "reward" in text


def test_the_form_of_a_deployment_has_ten_fields_and_the_rest_as_one(
    demo: Typed, shell: Shell, browser: Any
) -> None:
    with shell.running("rollflow serve tiny", timeout_s=300) as child:
        child.expect("Ctrl-C ends all")
        url = ADDRESS.findall(plain(child.before))[0]
        opened(browser, f"{url}/deployments", wait_s=4)
        page = next(at for at, text in links(browser).items() if text == "tiny")
        text = opened(browser, f"{page}/run", wait_s=4)
    for title in ("Num Steps", "Advanced"):
        assert title.lower() in text.lower(), text[:3000]
    assert text.count("(Optional)") <= 16
