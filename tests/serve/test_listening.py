"""The socket that a server listens on."""

import socket
import sys

import pytest

from regard.errors import UserError
from regard.serve.listening import bind, stop_connecting


def test_a_port_is_taken_from_the_start() -> None:
    with bind("127.0.0.1", None, 0) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", None, port) as second:
            assert second.getsockname()[1] != port
        with pytest.raises(UserError, match=f"Port {port} cannot be used"):
            bind("127.0.0.1", port, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no filter of packets on a socket")
def test_clients_that_wait_are_accepted_after_others_can_no_longer_connect() -> None:
    with bind("127.0.0.1", None, 0) as listener, socket.create_connection(listener.getsockname()) as client:
        stop_connecting(listener)
        with pytest.raises(TimeoutError):
            socket.create_connection(listener.getsockname(), timeout=0.2)
        server, _ = listener.accept()
        with server:
            client.sendall(b"request")
            assert server.recv(16) == b"request"
