"""Addresses of a server: the socket that it listens on, and whether an address or a Host header is this machine's.

The socket is made before any model is loaded, so that a port in use is found at once.
"""

import errno
import ipaddress
import re
import socket

from regard.errors import UserError

LOOPBACK = "127.0.0.1"


def bind(host: str, port: int | None, default_port: int) -> socket.socket:
    """A socket at an address of this machine, on `port`, else on the default port, or any free one if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in (default_port, 0) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
        except OSError as error:
            listener.close()
            if port is None and number == default_port and error.errno == errno.EADDRINUSE:
                continue
            where = "" if host == LOOPBACK else f" of {host}"
            raise UserError(
                f"Port {number}{where} cannot be used ({error.strerror}); choose another with --port."
            ) from None
        return listener
    raise AssertionError("port 0 always binds")


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local_host(host: str) -> bool:
    """Whether a Host header names this machine: its loopback addresses, with any port, because ports are forwarded."""
    return re.fullmatch(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", host, re.IGNORECASE) is not None
