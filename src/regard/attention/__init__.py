"""Attention: patterns and masks, the computation, heads, positions and KV caches."""

from regard.attention.attend import Cosine, Dot, ScaledDot, attend, attend_with_weights
from regard.attention.context import Context, Lengths
from regard.attention.kv_cache import KVBuffer, KVCache, LayerState
from regard.attention.latent import LatentAttentionConfig, LatentCrossAttention, LatentSelfAttention
from regard.attention.mask import Mask
from regard.attention.multi_head import Attention, CrossAttention, MultiHeadConfig, SelfAttention
from regard.attention.pattern import Both, Causal, Either, Full, Pattern
from regard.attention.patterns import Dilated, Documents, Global, Sliding, read_pattern
from regard.attention.positions.absolute import Binary, Concatenated, Index, Learned, Normalized, Position, Sinusoidal
from regard.attention.positions.config import (
    BinaryConfig,
    IndexConfig,
    LearnedConfig,
    NoPositionConfig,
    NormalizedConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from regard.attention.positions.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    YarnScaling,
    apply_rotary,
)

__all__ = [
    "Attention",
    "Binary",
    "BinaryConfig",
    "Both",
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
    "Index",
    "IndexConfig",
    "KVBuffer",
    "KVCache",
    "LatentAttentionConfig",
    "LatentCrossAttention",
    "LatentSelfAttention",
    "LayerState",
    "Learned",
    "LearnedConfig",
    "Lengths",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "Mask",
    "MultiHeadConfig",
    "NoPositionConfig",
    "Normalized",
    "NormalizedConfig",
    "Pattern",
    "Position",
    "Rotary",
    "RotaryConfig",
    "ScaledDot",
    "SelfAttention",
    "Sinusoidal",
    "SinusoidalConfig",
    "Sliding",
    "YarnScaling",
    "apply_rotary",
    "attend",
    "attend_with_weights",
    "read_pattern",
]
