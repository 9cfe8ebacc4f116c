"""`POST /v1/tag`."""

from collections.abc import Callable, Sequence

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from regard.data.text.treebank_tokenizer import treebank_tokenize
from regard.serve.api.middleware import note
from regard.serve.api.schema import Body, ModelName, Texts, Tokenized, as_list, first_or_all
from regard.serve.api.service import Service
from regard.task.classification.pipeline import TaggedWords, TextLabeler
from regard.task.json_records import tags_record


class TagRequest(Body):
    """Sentences whose words are tagged."""

    text: Texts = Field(description="A sentence, or a list of sentences.", examples=["The cat ate the mouse."])
    model: ModelName = None
    tokenized: Tokenized = False


class TaggedText(BaseModel):
    """The words of a sentence with their tags, and the tags' probabilities."""

    words: list[str] = Field(examples=[["The", "cat"]])
    tags: list[str] = Field(examples=[["DT", "NN"]])
    probabilities: list[float] = Field(examples=[[0.99, 0.98]])


class TagResponse(BaseModel):
    """The tagged sentences: one for a text, a list for a list."""

    model: str
    tagged: TaggedText | list[TaggedText]


def tag_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/tag")
    async def tag(request: Request, body: TagRequest) -> TagResponse:
        """Tag the words of a sentence, or of a list of sentences."""
        texts = as_list(body.text)
        service.limits.check_texts("text", texts)
        model = service.models.find(body.model, "tag")
        note(request, model=model.name, items=len(texts))
        sentences = await run_in_threadpool(_split, texts, body.tokenized)
        items = [words for words in sentences if words]
        found = iter(await service.compute_batched(request, model, "tag", items, _tag) if items else ())
        tagged = [TaggedText(**tags_record(next(found) if words else None)) for words in sentences]
        return TagResponse(model=model.name, tagged=first_or_all(body.text, tagged))

    return router


def _split(texts: list[str], tokenized: bool) -> list[tuple[str, ...]]:
    return [tuple(text.split() if tokenized else treebank_tokenize(text)) for text in texts]


def _tag(
    labeler: TextLabeler, sentences: Sequence[Sequence[str]], progress: Callable[[int], None]
) -> list[TaggedWords]:
    return labeler.tag_words(sentences, progress=progress)
