"""`POST /v1/parse`."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from regard.data.text.treebank_tokenizer import treebank_tokenize
from regard.serve.api.middleware import note
from regard.serve.api.schema import Body, ModelName, Texts, Tokenized, as_list, first_or_all
from regard.serve.api.service import Service
from regard.task.json_records import parse_record
from regard.task.parsing.pipeline import ParsedSentence, Parser


class ParseRequest(Body):
    """Sentences to parse."""

    text: Texts = Field(description="A sentence, or a list of sentences.", examples=["The cat ate the mouse."])
    model: ModelName = None
    tokenized: Tokenized = False
    beam_size: int | None = Field(None, ge=1, description="Beams; 1 is greedy search.")


class ParsedText(BaseModel):
    """The words of a sentence and the tree over them, in brackets."""

    words: list[str] = Field(examples=[["The", "cat", "slept"]])
    tree: str | None = Field(
        description="None for a text without words.", examples=["(S (NP (DT The) (NN cat)) (VP (VBD slept)))"]
    )
    tags: list[str] = Field([], examples=[["DT", "NN", "VBD"]])
    score: float | None = Field(None, description="What the tree was ranked by.")
    logprob: float | None = Field(None, description="The log-probability of the tree.")


class ParseResponse(BaseModel):
    """The trees: one for a text, a list for a list."""

    model: str
    parsed: ParsedText | list[ParsedText]


def parse_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/parse")
    async def parse(request: Request, body: ParseRequest) -> ParseResponse:
        """Parse a sentence, or a list of sentences, into constituency trees."""
        texts = as_list(body.text)
        service.limits.check_texts("text", texts)
        service.limits.check_search(body.beam_size, None)
        model = service.models.find(body.model, "parse")
        note(request, model=model.name, items=len(texts))
        found = await service.compute(request, model, "parse", lambda parser: _parse(parser, texts, body))
        parsed = [ParsedText(**parse_record(each)) for each in found]
        return ParseResponse(model=model.name, parsed=first_or_all(body.text, parsed))

    return router


def _parse(parser: Parser, texts: list[str], body: ParseRequest) -> list[ParsedSentence | None]:
    sentences = [text.split() if body.tokenized else treebank_tokenize(text) for text in texts]
    decode: Any = parser.search(body.beam_size).only_best()
    found = iter(parser.parse_words([words for words in sentences if words], decode))
    return [next(found) if words else None for words in sentences]
