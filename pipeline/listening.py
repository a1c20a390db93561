"""Addresses of this machine on its way to another, and sockets that listen there alone, not at all addresses."""

from __future__ import annotations

import errno
import socket
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
ANY_PORT = 9
"""A port for a question about routes, which sends nothing."""


def address_towards(host: str, port: int = ANY_PORT) -> str:
    """Return the address of this machine on the route to `host`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only chooses the route.
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
        return address


def free_port(host: str = LOOPBACK) -> int:
    """Return a port that nothing uses now at this address; "": at every address of this machine.

    Another process may take it before it is used.
    """
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """True if a server of this machine answers at the URL, without an error."""
    place = urlsplit(url)
    # Asked ten times a second while a server starts; other clients load certificates, or ask a proxy of the user's.
    connection = HTTPConnection(place.hostname or "", place.port, timeout=5)
    try:
        connection.request("GET", place.path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def listen_at(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens at `host` alone, at a free port if port is 0; None where others may need another.

    A name may mean loopback to this machine and its network to others, as in /etc/hosts of Debian, and an address may
    be that of a router which passes connections on. Raises: OSError if the port is taken.
    """
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return None
    for family, kind, protocol, _, place in places:
        if host not in ("localhost", place[0]) and ip_address(place[0]).is_loopback:
            continue
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()
            return listener
        except OSError as exc:
            listener.close()
            if exc.errno != errno.EADDRNOTAVAIL:
                raise
    return None
