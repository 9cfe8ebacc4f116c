"""Addresses of a server: the socket that it listens on, and whether an address or a Host header is this machine's.

The socket is made before any model is loaded, so that a port in use is found at once. Clients that connect before the
models are loaded wait.
"""

import contextlib
import ctypes
import errno
import ipaddress
import re
import socket
import struct
import sys

from regard.errors import UserError

LOOPBACK = "127.0.0.1"
DRAIN_SECONDS = 0.5
"""How long a server that shuts down still accepts connections, to refuse their requests in a sentence."""
_SO_ATTACH_FILTER = 26
"""The option of a Linux socket that sets a filter of packets; Python's socket module has no name for it."""
_NO_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
"""A Berkeley Packet Filter: load the byte with TCP's flags, drop the packet if SYN is set, and take it otherwise."""


def bind(host: str, port: int | None, default_port: int) -> socket.socket:
    """A socket that listens on `port` of an address, or on the default port, or on any free one if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in (default_port, 0) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen()  # until then, another process may bind the same port
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


def stop_connecting(listener: socket.socket) -> None:
    """Let no client connect anymore, while connections that wait to be accepted stay as they are.

    A socket that is closed resets what connected after the last call of `accept`, however soon it is closed. Linux can
    ignore the packets that open connections from now on; their clients send them again after a second, and are refused
    once the socket is closed. Other systems have no such filter, and there this does nothing.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in _NO_SYN))
    with contextlib.suppress(OSError):  # a system that forbids filters
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_NO_SYN), ctypes.addressof(program))
        )


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
