"""A plain server of regard's translator: FastAPI with a lock, one request at a time.

python benchmarks/peers/serve_lock.py MODEL PORT DEVICE
"""

import sys
import threading

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from regard.task.translation.pipeline import Translator


class Body(BaseModel):
    text: str


def main() -> None:
    name, port, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    translator, lock = Translator.load(name, device), threading.Lock()
    app = FastAPI()

    @app.post("/v1/translate")
    def translate(body: Body) -> dict[str, str]:
        with lock:
            return {"translation": translator.translate(body.text)}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False, http="h11")


if __name__ == "__main__":
    main()
