"""The cost of training and running a model with 175 billion parameters: the two "??" of a lecture slide.

The slide (seed 000, "Computational Issues: Problem Size and Complexity") has a vocabulary of 2¹⁷, width 12,288, a
context of 32,768 tokens and 96 layers of 96 heads. It counts |T|d + 5Nd² parameters: W_q, W_k, W_v, W_1 and W_2, each
as d × d. The published Transformer block has more (Vaswani et al. 2017, §3.2.2 and §3.3): an output projection W_O of
d × d, and a feed-forward layer four times as wide as the model, so that W_1 and W_2 have 4d² each. The total is
|T|d + 12Nd².

Training takes three times the FLOPs of forward for each token. Forward is 2 FLOPs per parameter that a token meets,
plus attention, which does not depend on the parameters: each token attends to those before it in the context.
"""

from dataclasses import dataclass

from regard.attention import MultiHeadConfig
from regard.cost import HARDWARE, Cost, Hardware, TrainingSetup, Workload, estimate
from regard.errors import UserError
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig

VOCAB_SIZE, WIDTH, CONTEXT, LAYERS, HEADS = 2**17, 2**13 + 2**12, 2**15, 2**6 + 2**5, 96
UTILIZATION = 0.4
"""The fraction of a GPU's FLOP/s that training at this size sustains (MFU): Llama 3 had 38 to 43 % of the data sheet's
on 8,192 to 16,384 GPUs (Grattafiori et al. 2024, table 4). Taken from there, not measured here."""


def slide_model() -> LanguageModelConfig:
    """The slide's hyperparameters as a language model: no biases in attention, b_1 and b_2 in the feed-forward."""
    stack = StackConfig(
        layers=LAYERS,
        attention=MultiHeadConfig(heads=HEADS, bias=False),
        feed_forward=FeedForwardConfig(hidden=4 * WIDTH),
        dropout=0.0,
    )
    return LanguageModelConfig(vocab_size=VOCAB_SIZE, width=WIDTH, decoder=stack)


def slide_parameters() -> int:
    """The parameters by the slide's own formula, |T|d + 5Nd²."""
    return VOCAB_SIZE * WIDTH + 5 * LAYERS * WIDTH**2


@dataclass(frozen=True)
class SlideCost:
    """The cost of the slide's model for a number of training tokens, on some hardware at some price per hour."""

    cost: Cost
    tokens: int
    hardware: Hardware
    price_per_hour: float
    utilization: float

    @property
    def training_flops(self) -> float:
        """Every token in a full context, forward and backward."""
        return 3 * self.cost.flops_per_token[1] * self.tokens

    @property
    def training_flops_by_parameters(self) -> float:
        """6PD (Kaplan et al. 2020, §2.1) with our parameters: attention is left out."""
        return 6 * self.cost.parameters * self.tokens

    @property
    def training_flops_by_slide_parameters(self) -> int:
        """6PD with the slide's parameters."""
        return 6 * slide_parameters() * self.tokens

    @property
    def training_hours(self) -> float:
        """GPU hours, however many GPUs share them."""
        return self.training_flops / (self.utilization * self.hardware.bfloat16_flops) / 3600

    @property
    def training_price(self) -> float:
        return self.price_per_hour * self.training_hours

    @property
    def min_gpus(self) -> int:
        """How many GPUs hold weights, gradients and optimizer state, without a single activation."""
        return -(-self.cost.model_state_bytes // self.hardware.memory)

    @property
    def first_token_flops(self) -> int:
        return self.cost.generated_token_flops(1)

    @property
    def last_token_flops(self) -> int:
        """A token at the end of the context, with all before it in the KV cache."""
        return self.cost.generated_token_flops(CONTEXT)

    @property
    def prompt_flops(self) -> float:
        """The prefill of a full context."""
        return self.cost.flops_per_token[1] * CONTEXT

    @property
    def kv_cache_bytes(self) -> int:
        """Of one full context."""
        return self.cost.kv_cache_bytes_per_token[0] * CONTEXT

    def token_seconds(self, batch_size: int = 1) -> float:
        """GPU seconds for a token at the end of the context, when `batch_size` sequences are generated together.

        Weights are read once for all sequences, the KV cache once for each: a token waits for memory or for arithmetic,
        whichever takes longer. Communication between GPUs is left out.
        """
        traffic = 2 * self.cost.parameters / batch_size + self.kv_cache_bytes
        compute = self.last_token_flops / (self.utilization * self.hardware.bfloat16_flops)
        return max(traffic / self.hardware.bandwidth, compute)

    def million_tokens_price(self, batch_size: int = 1) -> float:
        return 1e6 * self.token_seconds(batch_size) / 3600 * self.price_per_hour


def slide_cost(
    tokens: int, price_per_hour: float, hardware: str = "h200", utilization: float = UTILIZATION
) -> SlideCost:
    """The cost of training the slide's model on so many tokens, and of running it."""
    if hardware not in HARDWARE:
        raise UserError(f"There is no hardware named {hardware!r}; known hardware is {', '.join(HARDWARE)}.")
    if price_per_hour < 0 or not 0 < utilization <= 1 or tokens < 1:
        raise UserError(
            "price_per_hour must be at least 0, utilization above 0 and at most 1, tokens at least 1; "
            f"found {price_per_hour}, {utilization} and {tokens}."
        )
    cost = estimate(slide_model(), Workload(1, CONTEXT), TrainingSetup("bfloat16"))
    return SlideCost(cost, tokens, HARDWARE[hardware], price_per_hour, utilization)
