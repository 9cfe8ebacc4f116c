"""A plain server of CTranslate2 with its own batching, as people write them: FastAPI, a queue, and `translate_batch`.

    python benchmarks/peers/serve_ctranslate2.py MODEL PORT

It takes `POST /v1/translate` with `{"text": …}` and answers as regard does. Requests that arrive together are
translated in one batch. Sentences are split, tokenized and searched with the same settings as regard's, on the same
weights; sorting within a batch is left to CTranslate2.
"""

import asyncio
import os
import sys
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import ctranslate2
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from regard.data.text.sentence_splitting import SplitText
from regard.interop.ctranslate2.engine import cached_export
from regard.task.translation.ctranslate2 import closest_power
from regard.task.translation.pipeline import Translator, split_text

MAX_BATCH, MAX_WAIT = 64, 0.005
"""Sentences in a batch, and seconds to wait for more of them."""


class Body(BaseModel):
    text: str


class Batcher:
    """Collects sentences and translates them together, two batches at a time on two cores."""

    def __init__(self, name: str) -> None:
        cores = os.cpu_count() or 1
        translator = Translator.load(name)
        self.source, self.target = translator.source_tokenizer, translator.target_tokenizer
        self.decode = translator.decode
        self.model = ctranslate2.Translator(str(cached_export(name)), inter_threads=cores, intra_threads=1)
        self.tokens = [str(self.source.tokenizer.id_to_token(number)) for number in range(self.source.vocab_size)]
        self.waiting: asyncio.Queue[tuple[list[str], int, asyncio.Future[str]]] = asyncio.Queue()
        self.free = asyncio.Semaphore(cores)

    async def translate(self, text: str) -> str:
        """The sentences of a text, each in whatever batch it comes into."""
        split: SplitText = split_text(text)
        loop = asyncio.get_running_loop()
        futures = []
        for ids in self.source.encode_batch(list(split.sentences)):
            future: asyncio.Future[str] = loop.create_future()
            self.waiting.put_nowait(([self.tokens[each] for each in ids], self.decode.max_length(len(ids) + 1), future))
            futures.append(future)
        return split.join([await future for future in futures])

    async def run(self) -> None:
        """Form batches as long as the server lives."""
        tasks = set()
        while True:
            batch = [await self.waiting.get()]
            await self.free.acquire()
            deadline = asyncio.get_running_loop().time() + MAX_WAIT
            while len(batch) < MAX_BATCH:
                try:
                    async with asyncio.timeout_at(deadline):
                        batch.append(await self.waiting.get())
                except TimeoutError:
                    break
            task = asyncio.create_task(self.search(batch))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def search(self, batch: list[tuple[list[str], int, "asyncio.Future[str]"]]) -> None:
        try:
            results = await asyncio.to_thread(
                self.model.translate_batch,
                [tokens for tokens, _, _ in batch],
                beam_size=self.decode.beam_size,
                length_penalty=closest_power(self.decode),
                max_decoding_length=max(limit for _, limit, _ in batch),
                max_input_length=0,
            )
        finally:
            self.free.release()
        ids = [[self.target.tokenizer.token_to_id(token) or 0 for token in each.hypotheses[0]] for each in results]
        for (_, _, future), text in zip(batch, self.target.decode_batch(ids), strict=True):
            if not future.done():
                future.set_result(text)


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    app = FastAPI()
    batcher: Any = None

    @app.post("/v1/translate")
    async def translate(body: Body) -> dict[str, str]:
        nonlocal batcher
        if batcher is None:
            batcher = Batcher(name)
            app.state.runner = asyncio.create_task(batcher.run())
        return {"translation": await batcher.translate(body.text)}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False, http="h11")


if __name__ == "__main__":
    main()
