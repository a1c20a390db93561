"""Requests of our own to HTTP services, which may carry a key: they end at the address that the recipe names."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPResponse
from typing import IO, Any


class _Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        problem = f"it redirects to {newurl!r:.300}, which is not followed: the key is for {req.host} alone"
        raise urllib.error.HTTPError(req.full_url, code, problem, headers, fp)


_OPENER = urllib.request.build_opener(_Stays)


def open_url(request: urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """Return the reply to a request. No redirect is followed: Python would send its headers, and so a key, along.

    Raises: urllib.error.HTTPError for a refusal or a redirect, whose `reason` names the address; OSError otherwise.
    """
    reply: HTTPResponse = _OPENER.open(request, timeout=timeout_s)
    return reply
