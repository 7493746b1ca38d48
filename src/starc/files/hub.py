"""The model hub: is it there? Its own library would try for a minute."""

from __future__ import annotations

import functools
import os
import socket
import threading
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

HUB_SECONDS = 3.0
"""So long the model hub may take to answer."""


@functools.cache
def hub_is_away() -> bool:
    """The model hub does not answer in a few seconds."""
    if urllib.request.getproxies():
        return False
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    answered = threading.Event()

    def ask() -> None:
        with suppress(OSError):
            port = address.port or (80 if address.scheme == "http" else 443)
            socket.create_connection((address.hostname or "", port), HUB_SECONDS).close()
            answered.set()

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name knows no time limit
    asking.start()
    asking.join(HUB_SECONDS)
    return not answered.is_set()
