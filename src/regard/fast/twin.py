"""Modules of another kind that share what a module holds: its parts, its parameters and their names."""

from typing import TypeVar

from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


def twin_of(kind: type[Kind], module: nn.Module) -> Kind:
    """A module of a kind that computes with the parts of another. Parts may be exchanged in one without the other."""
    made = kind.__new__(kind)
    made.__dict__.update(module.__dict__)
    made._modules = dict(module._modules)
    return made
