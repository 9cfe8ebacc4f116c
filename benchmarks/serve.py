"""Serving under load, over loopback: throughput, latencies and wrong answers, beside other servers of the same model.

    python benchmarks/serve.py [MODEL] [--seconds 60] [--clients 200]      # --quick takes about a minute
    python benchmarks/serve.py MODEL --gpu                                 # 1, 64 and 512 clients, no bad ones

Clients send texts of one to eight sentences to `POST /v1/translate`, each the next one when it has the answer to
the last. Every answer is compared with what `regard translate` gives. In one case, of 20 clients one reads its answers
byte by byte, one leaves in the middle of every request, and one sends garbage; the others must not notice.

- `engine`: the same arrivals in one process without HTTP, from threads that wait for their answers.
- `regard serve`: our server, in one process and in two. Its share of the engine's throughput is given with the client's
  CPU time subtracted, because client and server share the machine's cores.
- `one at a time`: the same model behind a lock, as a plain server would have it.
- `CTranslate2`: `benchmarks/peers/serve_ctranslate2.py`, a FastAPI server that batches for CTranslate2 (same weights).
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import log, write_results

from regard.serve.limits import Limits
from regard.serve.models.served_model import LoadOptions, load_served_model
from regard.task.translation.pipeline import Translator

TEXTS = 2000
PEERS = Path(__file__).parent / "peers"


@dataclass
class Tally:
    """What the clients of one run have seen."""

    seconds: list[float] = field(default_factory=list)
    """Of each answer that was right, from the request to its last byte."""
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    elapsed: float = 0.0
    client_cpu: float = 0.0

    def case(self, name: str, clients: int) -> dict[str, Any]:
        cores = os.cpu_count() or 1
        rate = len(self.seconds) / self.elapsed
        p50, p95, p99 = (np.percentile(self.seconds, (50, 95, 99)) * 1000).round(1) if self.seconds else (0, 0, 0)
        return {
            "case": name,
            "clients": clients,
            "unit": "texts a second",
            "ours": round(rate, 2),
            "without_client": round(rate / max(1 - self.client_cpu / (cores * self.elapsed), 1e-9), 2),
            "p50_ms": float(p50),
            "p95_ms": float(p95),
            "p99_ms": float(p99),
            "wrong": self.wrong,
            "outcomes": dict(self.outcomes),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="en-tr")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="8 seconds for each server")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, with 1, 64 and 512 clients")
    parser.add_argument("--only", nargs="+", default=["engine", "regard", "workers", "faults", "lock", "ctranslate2"])
    options = parser.parse_args()
    seconds = 8.0 if options.quick else options.seconds
    device = "cuda" if options.gpu else "cpu"
    texts = make_texts()
    expected = expected_answers(options.model, texts, device)
    cases: list[dict[str, Any]] = []
    for clients in (1, 64, 512) if options.gpu else (options.clients,):
        ways: dict[str, Callable[[], Tally]] = {
            "engine": lambda clients=clients: drive_engine(options.model, device, texts, expected, clients, seconds),  # type: ignore[misc]
            "regard": lambda clients=clients: drive_server(  # type: ignore[misc]
                regard_command(options.model, device), texts, expected, clients, seconds
            ),
            "workers": lambda clients=clients: drive_server(  # type: ignore[misc]
                regard_command(options.model, device, "--workers", "2"), texts, expected, clients, seconds, processes=2
            ),
            "faults": lambda clients=clients: drive_server(  # type: ignore[misc]
                regard_command(options.model, device), texts, expected, clients, seconds, bad=True
            ),
            "lock": lambda clients=clients: drive_server(  # type: ignore[misc]
                lambda port: [sys.executable, str(PEERS / "serve_lock.py"), options.model, str(port), device],
                texts, expected, clients, seconds,
            ),
            "ctranslate2": lambda clients=clients: drive_server(  # type: ignore[misc]
                lambda port: [sys.executable, str(PEERS / "serve_ctranslate2.py"), options.model, str(port)],
                texts, None, clients, seconds,
            ),
        }  # fmt: skip
        names = {
            "engine": "engine without HTTP",
            "regard": "regard serve",
            "workers": "regard serve --workers 2",
            "faults": "regard serve, some clients misbehave",
            "lock": "one at a time",
        }
        found = {way: ways[way]().case(names.get(way, "CTranslate2 with batching"), clients) for way in options.only}
        cases += [log(compare(way, found)) for way in found]
    if not options.quick:
        write_results("serve-gpu" if options.gpu else "serve", cases)
    return 0


def compare(way: str, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A case with the ratios of our servers to it: of throughputs, and of the 95th percentiles of latencies."""
    case, key = found[way], "without_client" if way == "engine" else "ours"
    for server in ("regard", "workers"):
        if way in ("engine", "lock", "ctranslate2") and server in found:
            ratio, p95 = found[server][key] / max(case["ours"], 1e-9), case["p95_ms"] / found[server]["p95_ms"]
            case[f"{server}_ratio"], case[f"{server}_p95_ratio"] = round(ratio, 3), round(p95, 3)
    return case


def make_texts() -> list[str]:
    """Texts of one to eight sentences: of Tatoeba's test set where the data are, else of a few made-up sentences."""
    rng = random.Random(1)
    sentences = [
        f"{who} {what}." for who in ("I", "We", "They", "You") for what in ("like the book", "saw a cat", "are at home")
    ]
    if data := os.environ.get("REGARD_DATA"):
        import gzip

        with gzip.open(Path(data) / "tatoeba-en-tr" / "test.tsv.gz", "rt", encoding="utf-8") as lines:
            sentences = [line.split("\t")[0] for line in lines]
    sizes = rng.choices((1, 2, 3, 5, 8), (60, 15, 10, 10, 5), k=TEXTS)
    return [" ".join(rng.choices(sentences, k=size)) for size in sizes]


def expected_answers(model: str, texts: list[str], device: str) -> dict[str, str]:
    """What `regard translate` gives: on a CPU with the fused decoder, as for a file."""
    translator = Translator.load(model, device)
    return dict(zip(texts, translator.translate(texts), strict=True))


def regard_command(model: str, device: str, *more: str) -> Callable[[int], list[str]]:
    command = [sys.executable, "-m", "regard", "serve", model, "--device", device, "--max-waiting", "2048", *more]
    return lambda port: [*command, "--port", str(port)]


def drive_engine(
    model: str, device: str, texts: list[str], expected: dict[str, str], clients: int, seconds: float
) -> Tally:
    """Threads that translate one text after the other with the engine of a served model."""
    limits = Limits(threads=clients)
    served = load_served_model(model, model, limits, LoadOptions(device=device), lambda message: None)
    tally, deadline, lock = Tally(), time.perf_counter() + seconds, threading.Lock()

    def run(number: int) -> None:
        rng = random.Random(number)
        while (start := time.perf_counter()) < deadline:
            text = rng.choice(texts)
            answer = served.pipeline.translate(text)
            with lock:
                tally.seconds.append(time.perf_counter() - start)
                tally.wrong += answer != expected[text]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.elapsed = time.perf_counter() - start
    served.close()
    return tally


def drive_server(
    command: Callable[[int], list[str]],
    texts: list[str],
    expected: dict[str, str] | None,
    clients: int,
    seconds: float,
    *,
    bad: bool = False,
    processes: int = 1,
) -> Tally:
    """Start a server, wait until it translates, and let clients loose on it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            command(port), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )  # fmt: skip
        stack.callback(stop, process)
        return asyncio.run(load(port, texts, expected, clients, seconds, bad, processes))


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()


async def load(
    port: int,
    texts: list[str],
    expected: dict[str, str] | None,
    clients: int,
    seconds: float,
    bad: bool,
    processes: int = 1,
) -> Tally:
    await wait_until_ready(port, texts[0])
    await wait_for_processes(port, processes)
    tally = Tally()
    start, cpu = time.perf_counter(), time.process_time()
    deadline = start + seconds
    kinds = [behave_normally] * clients
    if bad:
        for number in range(0, clients - 2, 20):
            kinds[number : number + 3] = [read_slowly, leave, send_garbage]
    tasks = [kind(port, random.Random(number), texts, expected, tally, deadline) for number, kind in enumerate(kinds)]
    await asyncio.gather(*tasks)
    tally.elapsed, tally.client_cpu = time.perf_counter() - start, time.process_time() - cpu
    return tally


async def wait_until_ready(port: int, text: str) -> None:
    for _ in range(1200):
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(http_request(text))
            status, _ = await read_answer(reader)
            writer.close()
            if status == 200:
                return
        await asyncio.sleep(0.1)
    raise RuntimeError("The server did not start.")


async def wait_for_processes(port: int, processes: int) -> None:
    """Wait until all processes of a server accept connections, which clients keep."""
    while processes > 1:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        _, content = await read_answer(reader)
        writer.close()
        if f"\nregard_processes {processes}.0\n".encode() in content:
            return
        await asyncio.sleep(0.5)


async def behave_normally(
    port: int, rng: random.Random, texts: list[str], expected: dict[str, str] | None, tally: Tally, deadline: float
) -> None:
    """One text after the other on a kept connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (start := time.perf_counter()) < deadline:
        text = rng.choice(texts)
        writer.write(http_request(text))
        status, content = await read_answer(reader)
        tally.outcomes[str(status)] += 1
        if status == 200:
            tally.seconds.append(time.perf_counter() - start)
            tally.wrong += expected is not None and json.loads(content)["translation"] != expected[text]
    writer.close()


async def read_slowly(
    port: int, rng: random.Random, texts: list[str], expected: dict[str, str] | None, tally: Tally, deadline: float
) -> None:
    """Reads its answer byte by byte."""
    while time.perf_counter() < deadline:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(http_request(rng.choice(texts), close=True))
        while await reader.read(1) and time.perf_counter() < deadline:
            await asyncio.sleep(0.01)
        tally.outcomes["slow reader"] += 1
        writer.close()


async def leave(
    port: int, rng: random.Random, texts: list[str], expected: dict[str, str] | None, tally: Tally, deadline: float
) -> None:
    """Leaves before its answer is there."""
    while time.perf_counter() < deadline:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(http_request(rng.choice(texts)))
        await asyncio.sleep(rng.uniform(0, 0.3))
        writer.transport.abort()
        tally.outcomes["left"] += 1


async def send_garbage(
    port: int, rng: random.Random, texts: list[str], expected: dict[str, str] | None, tally: Tally, deadline: float
) -> None:
    """Sends bytes that are no request, half a request, or a request that is refused."""
    kinds = [
        rng.randbytes(200),
        b"POST /v1/translate HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{",
        http_request("x", body=b'{"text": 5}'),
        http_request("x", body=b"[" * 5000),
    ]
    while time.perf_counter() < deadline:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(rng.choice(kinds))
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, ValueError, IndexError):
            async with asyncio.timeout(0.5):
                status, _ = await read_answer(reader)
                tally.outcomes[f"garbage {status}"] += 1
        writer.transport.abort()
        await asyncio.sleep(0.1)


def http_request(text: str, *, close: bool = False, body: bytes | None = None) -> bytes:
    body = json.dumps({"text": text}).encode() if body is None else body
    head = (
        "POST /v1/translate HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"connection: {'close' if close else 'keep-alive'}",
    )
    return "\r\n".join((*head, "", "")).encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    return int(head[9:12]), await reader.readexactly(length)


if __name__ == "__main__":
    raise SystemExit(main())
