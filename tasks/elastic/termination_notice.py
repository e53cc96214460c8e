"""Whether the machine is about to be taken away: a file that appears, or a URL that says so.

a file               a script of the user's makes it (docs/elastic.md has one for AWS)
http://metadata...   a cloud's own address: 404 or FALSE means nothing, anything else the end
"""

from __future__ import annotations

import asyncio
import os
import urllib.request
from http.client import HTTPException

from artifacts.proxies import open_directly

LOOK_S = 2.0  # clouds give 25 s to 2 minutes of notice
ANSWERS_WITHIN_S = 2.0
# Google's address answers nobody without it, the others do not mind
HEADERS = {"Metadata-Flavor": "Google"}
NOTHING = {"", "FALSE", "NONE", "[]"}


async def notice_given(where: str) -> None:
    """Return when the file or the URL `where` says that the machine goes. One that cannot be
    reached says nothing."""
    ask = _url_says if where.startswith(("http://", "https://")) else _file_says
    while not await asyncio.to_thread(ask, where):
        await asyncio.sleep(LOOK_S)


def is_notice(status: int, body: str) -> bool:
    """Whether an answer over HTTP means that the machine goes."""
    return status == 200 and body.strip().upper() not in NOTHING


def _file_says(path: str) -> bool:
    return os.path.exists(path)  # of Path it raises where a folder cannot be read


def _url_says(url: str) -> bool:
    request = urllib.request.Request(url, headers=HEADERS)
    try:
        with open_directly(request, ANSWERS_WITHIN_S) as answer:
            return is_notice(answer.status, answer.read(4096).decode(errors="replace"))
    except (OSError, ValueError, HTTPException):  # 404 among them
        return False
