"""Clients that send requests all the time."""

import json
import threading
from collections import Counter
from http.client import HTTPConnection, HTTPException


class Clients:
    """Threads that translate over connections that they keep, until they are refused at connecting or told to stop."""

    def __init__(self, port: int, count: int = 8) -> None:
        self.port = port
        self.outcomes: Counter[str] = Counter()
        """How many requests had each status, and how many clients were refused at connecting."""
        self.lost: list[str] = []
        """Requests without a complete response."""
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, number: int) -> None:
        connection: HTTPConnection | None = None
        while not self._stop.is_set():
            if connection is None:
                connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
                try:
                    connection.connect()
                except OSError:
                    self.outcomes["refused"] += 1
                    return
            try:
                closed = self._translate(connection, ["the old cat", "a mouse"][: 1 + number % 2])
            except (OSError, HTTPException, ValueError) as error:
                self.lost.append(repr(error))
                return
            if closed:
                connection.close()
                connection = None

    def _translate(self, connection: HTTPConnection, texts: list[str]) -> bool:
        """Send a request and read its response; whether the connection ends with it."""
        connection.request("POST", "/v1/translate", json.dumps({"text": texts}), {"content-type": "application/json"})
        response = connection.getresponse()
        body = json.loads(response.read())
        self.outcomes[str(response.status)] += 1
        if ("translation" in body) != (response.status == 200):
            raise ValueError(f"not the answer of status {response.status}: {body}")
        closed = response.headers["connection"] == "close"
        if response.status == 503 and not (closed and int(response.headers["retry-after"])):
            raise ValueError(f"headers of a refusal: {response.headers}")
        return closed
