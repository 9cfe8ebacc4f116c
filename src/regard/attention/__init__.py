"""Who may look at whom, how it is computed, in which heads, at which positions, and what is kept."""

from regard.attention.attend import attend, attend_and_show
from regard.attention.cache import Cache, LayerState, Store
from regard.attention.context import Context
from regard.attention.encoding import Binary, Concatenated, Index, Learned, Normalised, Position, Sinusoidal
from regard.attention.heads import Attention, CrossAttention, HeadsConfig, SelfAttention
from regard.attention.latent import LatentConfig, LatentCrossAttention, LatentSelfAttention
from regard.attention.pattern import Both, Causal, Either, Full, Pattern
from regard.attention.patterns import Dilated, Documents, Global, Lengths, Sliding, read_pattern
from regard.attention.position import (
    BinaryConfig,
    IndexConfig,
    LearnedConfig,
    NoPositionConfig,
    NormalisedConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from regard.attention.rotary import (
    BandScaling,
    DynamicScaling,
    LinearScaling,
    LongScaling,
    Rotary,
    YarnScaling,
    rotate,
)
from regard.attention.scope import Scope
from regard.attention.similarity import Cosine, Dot, ScaledDot

__all__ = [
    "Attention",
    "BandScaling",
    "Binary",
    "BinaryConfig",
    "Both",
    "Cache",
    "Causal",
    "Concatenated",
    "Context",
    "Cosine",
    "CrossAttention",
    "Dilated",
    "Documents",
    "Dot",
    "DynamicScaling",
    "Either",
    "Full",
    "Global",
    "HeadsConfig",
    "Index",
    "IndexConfig",
    "LatentConfig",
    "LatentCrossAttention",
    "LatentSelfAttention",
    "LayerState",
    "Learned",
    "LearnedConfig",
    "Lengths",
    "LinearScaling",
    "LongScaling",
    "NoPositionConfig",
    "Normalised",
    "NormalisedConfig",
    "Pattern",
    "Position",
    "Rotary",
    "RotaryConfig",
    "ScaledDot",
    "Scope",
    "SelfAttention",
    "Sinusoidal",
    "SinusoidalConfig",
    "Sliding",
    "Store",
    "YarnScaling",
    "attend",
    "attend_and_show",
    "read_pattern",
    "rotate",
]
