"""The memory of `regard serve` over many requests: it must stay flat, also when clients leave in the middle.

A server process with the shipped translator answers requests of mixed lengths on loopback, and among them clients
connect, send a request and are gone. The memory of the process (RSS) is sampled all the time. After a warm-up, which is
the first third, the last third is compared with the middle third.
"""

import argparse
import json
import random
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.common import log, write_results

MODEL = "en-tr"
WORDS = ("the", "old", "cat", "ate", "a", "mouse", "by", "sea", "and", "slept", "all", "day", "under", "red", "sun")
TOLERANCE = 0.05
"""How much more memory the last third may use than the middle third."""


class Load:
    """What the clients send together: so many requests, and among them connections that they give up."""

    def __init__(self, port: int, requests: int, aborted: int) -> None:
        self.port, self.left, self.aborted_left = port, requests, aborted
        self.every = max(1, requests // aborted) if aborted else 0
        self.statuses: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """The number of the next request; None if there is none."""
        with self._lock:
            if not self.left:
                return None
            self.left -= 1
            return self.left

    def client(self) -> None:
        """Send requests over one connection until all are sent."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        while (number := self.take()) is not None:
            connection.request("POST", "/v1/translate", _body(number), {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            with self._lock:
                key = str(response.status)
                self.statuses[key] = self.statuses.get(key, 0) + 1
                leaves = self.every and self.aborted_left and number % self.every == 0
                self.aborted_left -= int(bool(leaves))
            if leaves:
                _abort(self.port, number)
        connection.close()


def measure(port: int, process: int, load: Load, clients: int) -> dict[str, Any]:
    """Send everything, and sample the memory of the server."""
    samples: list[tuple[int, float]] = []
    total, aborted, start = load.left, load.aborted_left, time.perf_counter()
    threads = [threading.Thread(target=load.client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        samples.append((total - load.left, _rss_mb(process)))
        time.sleep(0.25)
    seconds = time.perf_counter() - start
    thirds = [
        [size for done, size in samples if third * total / 3 <= done <= (third + 1) * total / 3] for third in range(3)
    ]
    first, middle, last = (statistics.fmean(each) for each in thirds)
    return {
        "case": "memory over many requests",
        "model": MODEL,
        "requests": total,
        "aborted_connections": aborted - load.aborted_left,
        "clients": clients,
        "statuses": load.statuses,
        "seconds": round(seconds, 1),
        "rss_mb_thirds": [round(size, 1) for size in (first, middle, last)],
        "rss_mb_end": round(samples[-1][1], 1),
        "rss_mb_samples": [round(size, 1) for _, size in samples[:: max(1, len(samples) // 60)]],
        "last_over_middle": round(last / middle, 4),
        "flat": abs(last / middle - 1) <= TOLERANCE,
    }


def _body(number: int) -> str:
    rng = random.Random(number)
    words = [rng.choice(WORDS) for _ in range(rng.choice((2, 4, 6, 10, 20)))]
    return json.dumps({"text": f"{' '.join(words)}.", "beam_size": rng.choice((1, 1, 4))})


def _abort(port: int, number: int) -> None:
    """Send a request, or a part of it, and reset the connection."""
    body = _body(number).encode()
    head = ("POST /v1/translate HTTP/1.1", "host: 127.0.0.1", "content-type: application/json")
    request = "\r\n".join((*head, f"content-length: {len(body)}", "", "")).encode() + body
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request if number % 2 else request[: len(request) // 2])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _rss_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests, no results written")
    parser.add_argument("--clients", type=int, default=16, help="clients at the same time (default: 16)")
    args = parser.parse_args()
    command = [sys.executable, "-m", "regard", "serve", MODEL, "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = urlsplit(server.stdout.readline().strip()).port
            assert port is not None, "the server did not start"
            load = Load(port, 1000, 100) if args.quick else Load(port, 10_000, 1000)
            case = log(measure(port, server.pid, load, args.clients))
        finally:
            server.terminate()
        case["exit_code"] = server.wait(60)
    if not args.quick:
        print(f"Results written to {write_results('serve-memory', [case])}")


if __name__ == "__main__":
    main()
