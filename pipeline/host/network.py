"""This machine's address on the route to another, free ports, sockets that listen at one address only, and requests.

A request may have a key in its headers: it goes to no other address than the one in the recipe.
"""

from __future__ import annotations

import errno
import socket
import urllib.error
import urllib.request
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import ip_address
from typing import IO, Any
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
ANY_PORT = 9
"""A port for finding a route; nothing is sent to it."""


def address_towards(host: str, port: int = ANY_PORT) -> str:
    """Return the address of this machine on the route to `host`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only chooses the route.
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
        return address


def free_port(host: str = LOOPBACK) -> int:
    """Return a port that is free now at this address; "": at all addresses of this machine."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """True if a server of this machine answers at the URL, without an error."""
    parts = urlsplit(url)
    # Called ten times a second while a server starts; other clients load certificates, or use a proxy of the user's.
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def listen_at(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens only at `host`, at a free port if port is 0; None if others cannot reach it there.

    A name may mean loopback to this machine and its network to others, as in /etc/hosts of Debian, and an address may
    be that of a router which passes connections on. Raises: OSError if the port is taken.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return None
    for family, kind, protocol, _, address in addresses:
        if host not in ("localhost", address[0]) and ip_address(address[0]).is_loopback:
            continue
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            return listener
        except OSError as exc:
            listener.close()
            if exc.errno != errno.EADDRNOTAVAIL:
                raise
    return None


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
