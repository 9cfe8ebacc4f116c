"""The messages of a chat as a prompt: the model's chat template writes it, special tokens included.

The tokens that separate messages are written by the template as text, and become special tokens here. Messages are
plain text, whatever they contain: a user who writes the name of a special token does not end a message with it.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer

from regard.data.tokenizers.tokenizer import check_text
from regard.errors import UserError
from regard.interop.huggingface.chat_template import MAX_TEMPLATE_CHARACTERS
from regard.run.folder import CHAT_TEMPLATE
from regard.serve.api.openai.outputs import Prompt
from regard.serve.api.openai.template_renderer import TemplateRenderer
from regard.task.language_modeling.pipeline import TextGenerator

_GUARD = "\ufdd0"
"""A code point that is no character: it stands in the names of special tokens in messages while they are rendered."""


class ChatPrompts:
    """Makes prompts for all models of a server."""

    def __init__(self) -> None:
        self._renderer = TemplateRenderer()
        self._chats: WeakKeyDictionary[TextGenerator, _Chat] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def make(self, generator: TextGenerator, messages: Sequence[Mapping[str, str]]) -> tuple[Prompt, frozenset[int]]:
        """The prompt, and tokens that end the answer."""
        with self._lock:
            if (chat := self._chats.get(generator)) is None:
                chat = self._chats[generator] = _Chat(generator)
        guarded = [{field: chat.guard(text) for field, text in message.items()} for message in messages]
        if "developer" not in chat.template:  # which is what newer clients call it
            roles = {"developer": "system"}
            guarded = [{**message, "role": roles.get(message["role"], message["role"])} for message in guarded]
        variables = {**chat.token_names, "messages": guarded, "add_generation_prompt": True}
        return Prompt(tuple(chat.encode(generator, self._renderer.render(chat.template, variables)))), chat.ends


class _Chat:
    """The template of a model, and the tokens that it writes. It keeps no reference to the model."""

    def __init__(self, generator: TextGenerator) -> None:
        loaded = generator.loaded
        path = None if loaded.path is None else loaded.path / CHAT_TEMPLATE
        if path is None or not path.is_file():
            raise UserError(
                "messages: this model has no chat template, so it continues texts, but no chats; use /v1/completions."
            )
        try:
            self.template = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RuntimeError(f"{path} cannot be read ({error})") from None
        if len(self.template) > MAX_TEMPLATE_CHARACTERS:
            raise UserError(
                f"messages: the model's chat template has more than {MAX_TEMPLATE_CHARACTERS:,} characters."
            )
        names = loaded.origin.get("chat_tokens")
        self.token_names: dict[str, str] = dict(names) if isinstance(names, dict) else {}
        self._json = generator.tokenizer.json
        added = generator.tokenizer.tokenizer.get_added_tokens_decoder().items()
        self._special = {token.content: number for number, token in added if token.special}
        names_by_length = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names_by_length))) if names_by_length else None
        self.ends = self._end_ids(loaded.origin)

    def guard(self, text: str) -> str:
        """A message's text with a mark in each name of a special token, so that it is none."""
        check_text(text)
        text = text.replace(_GUARD, "")
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: f"{found[0][0]}{_GUARD}{found[0][1:]}", text)

    def encode(self, generator: TextGenerator, text: str) -> list[int]:
        """The ids of a prompt, whose special tokens are those that the template wrote."""
        if _GUARD not in text or self._pattern is None:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            return ids
        ids, end = [], 0
        for found in self._pattern.finditer(text):
            ids += [*generator.tokenizer.encode(text[end : found.start()].replace(_GUARD, "")), self._special[found[0]]]
            end = found.end()
        return [*ids, *generator.tokenizer.encode(text[end:].replace(_GUARD, ""))]

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """One that finds special tokens by their names, as the tokenizers of pipelines do not."""
        tokenizer = Tokenizer.from_str(self._json)
        tokenizer.encode_special_tokens = False
        return tokenizer

    def _end_ids(self, origin: Mapping[str, object]) -> frozenset[int]:
        """All tokens that end a message: a model may have others than the one that ends a text."""
        ends: set[int] = set()
        for part in ("config", "generation"):
            table = origin.get(part)
            given = table.get("eos_token_id") if isinstance(table, dict) else None
            ends.update(each for each in (given if isinstance(given, list) else [given]) if type(each) is int)
        if (number := self._special.get(self.token_names.get("eos_token", ""))) is not None:
            ends.add(number)
        return frozenset(ends)
