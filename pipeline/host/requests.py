"""HTTP requests that may have a key in their headers: they go to no other address than the one in the recipe."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPResponse
from typing import IO, Any

MAX_BODY = 64 << 20
"""The most bytes of a request's body that a service of ours takes."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        problem = f"it redirects to {newurl!r:.300}, which is not followed: the key is for {req.host} alone"
        raise urllib.error.HTTPError(req.full_url, code, problem, headers, fp)


_OPENER = urllib.request.build_opener(_NoRedirects)


def open_url(request: urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """Return the reply to a request. No redirect is followed: Python would send the headers, and so the key, there too.

    Raises: urllib.error.HTTPError for a refusal or a redirect, whose `reason` names the address; OSError otherwise.
    """
    reply: HTTPResponse = _OPENER.open(request, timeout=timeout_s)
    return reply
