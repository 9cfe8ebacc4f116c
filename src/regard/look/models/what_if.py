"""What if: a search whose output begins with given tokens, contains some words, or none of others.

The tokens of the prefix keep the log-probability that the model gives them, so that the output can be compared with the
one that the model chose by itself.
"""

from dataclasses import replace

from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import Request
from regard.errors import UserError
from regard.look.schema import RunRequest
from regard.task.constraints import make_constraints


def has_conditions(request: RunRequest) -> bool:
    """Whether a request says anything about the output."""
    return bool(request.prefix_tokens or request.require or request.forbid)


def constrained(
    search: Request, request: RunRequest, tokenizer: TextTokenizer, vocab_size: int, eos: int, *, continues: bool
) -> Request:
    """The search under the conditions of a request, whose output is in the ids of `tokenizer`.

    The output of a language model `continues` its prompt.
    """
    if not has_conditions(request):
        return search
    if search.constraints.tree is not None:
        raise UserError(
            "The output of this model is always a tree; a prefix, required or forbidden words cannot be set."
        )
    prefix = request.prefix_tokens or []
    for token in prefix:
        if token >= vocab_size:
            raise UserError(f"prefix_tokens: there is no token {token}; ids go from 0 to {vocab_size - 1}.")
    if eos in prefix[:-1]:
        raise UserError("prefix_tokens: an output ends with eos, so no token can follow it.")
    constraints = make_constraints(
        tokenizer,
        prefix=prefix,
        required=request.require or (),
        forbidden=request.forbid or (),
        continues=continues,
    )
    return replace(search, constraints=constraints)
