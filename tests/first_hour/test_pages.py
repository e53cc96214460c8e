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
DRAWN_S = 60.0
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
        yield {line[0]: next(filter(ADDRESS.match, line)).rstrip("/") for line in lines}


def opened(browser: Any, url: str, shows: str = "") -> str:
    """Open a page, wait until it shows this, and return its text. Fails if it does not, or on an
    error in its console."""
    browser.get(url)
    ends_s = time.monotonic() + DRAWN_S  # pages of Prefect and MLflow draw themselves
    while True:
        text = str(browser.find_element("tag name", "body").text)
        if text.strip() and shows in text:
            break
        assert time.monotonic() < ends_s, f"{url} does not show {shows!r}: {text[:1000]}"
        time.sleep(0.5)
    messages = [entry["message"] for entry in browser.get_log("browser") if is_severe(entry)]
    assert not messages, url
    return text


# of MLflow's own pages: a second drawing of a table, and a server without accounts
HARMLESS = ("ResizeObserver loop", "mlflow/users/current")


def is_severe(entry: dict[str, str]) -> bool:
    """Whether a page's script or a request of it failed."""
    harmless = any(words in entry["message"] for words in HARMLESS)
    return entry["level"] == "SEVERE" and not harmless


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


@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "phone"])
def test_the_pages_stand_in_their_window_and_a_report_opens_offline(
    addresses: dict[str, str], browser: Any, shell: Shell, width: int
) -> None:
    report = min((shell.folder / "runs").glob("tiny-2*/report/index.html"))
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for page in (
            addresses["runs"],
            f"{addresses['runs']}/{report.parts[-3]}/",
            report.as_uri(),
        ):
            opened(browser, page)
            whole = browser.execute_script("return document.documentElement.scrollWidth")
            assert whole <= width, page
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    pictures = browser.find_elements("css selector", "figure[aria-label]")
    titles = {picture.get_attribute("aria-label") for picture in pictures}
    assert {"Reward", "Loss and gradient", "Entropy and length"} <= titles
    files = [Path(link.removeprefix("file://")) for link in links(browser)]
    assert files
    assert [file for file in files if not file.exists()] == []


def test_the_click_from_a_run_to_mlflow_and_prefect_shows_that_run(
    addresses: dict[str, str], browser: Any
) -> None:
    opened(browser, addresses["runs"])
    run = next(text for text in links(browser).values() if text.startswith("tiny-2"))
    text = opened(browser, f"{addresses['runs']}/{run}/mlflow", shows=run)
    assert "No data available" not in text
    opened(browser, f"{addresses['runs']}/{run}/prefect", shows="step=1 ")


def test_mlflow_lists_the_runs_with_their_reward(addresses: dict[str, str], browser: Any) -> None:
    opened(browser, addresses["MLflow"], shows="tiny-2")
    heads = browser.find_elements("css selector", "[role=columnheader]")
    assert any("reward" in head.text for head in heads)


def test_the_form_of_a_deployment_has_ten_fields_and_the_rest_as_one(
    demo: Typed, shell: Shell, browser: Any
) -> None:
    with shell.running("rollflow serve tiny", timeout_s=300) as child:
        child.expect("Ctrl-C ends all")
        url = ADDRESS.findall(plain(child.before))[0]
        opened(browser, f"{url}/deployments", shows="tiny")
        page = next(at for at, text in links(browser).items() if text == "tiny")
        text = opened(browser, f"{page}/run", shows="All other fields")
    for title in ("Num Steps", "Learning Rate"):
        assert title in text
    assert "tiny has 0.0002" in text  # the preset's value
    assert text.count("(Optional)") < 20
