"""The two "??" of a slide: what a model of its size takes to train and to run.

The slide (seed 000, "Computational Issues: Problem Size and Complexity") has a vocabulary of 2¹⁷, width 12,288, a
window of 32,768 tokens and 96 layers of 96 heads. It counts |T|d + 5Nd² parameters: W_q, W_k, W_v, W_1 and W_2, each as
d × d. A Transformer block as it was published has two things more (Vaswani et al. 2017, §3.2.2 and §3.3): the
projection W_O that mixes the heads, d × d, and a feed-forward four times as wide as the model, so that W_1 and W_2 have
4d² each. That makes |T|d + 12Nd².

Effort in training is three times forward, for each token. Forward is 2 FLOPs for each parameter that a token meets, and
attention on top, which no count of parameters shows: each token is compared with those before it in the window.
"""

from dataclasses import dataclass

from regard.attention import HeadsConfig
from regard.cost.estimate import Cost, estimate
from regard.cost.hardware import HARDWARE, Hardware
from regard.cost.work import Work
from regard.errors import UserError
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig

VOCABULARY, WIDTH, WINDOW, LAYERS, HEADS = 2**17, 2**13 + 2**12, 2**15, 2**6 + 2**5, 96
SHARE = 0.4
"""The share of a machine's FLOP/s that training at this size keeps up: Llama 3 kept 38 to 43 % of the data sheet's on
8,192 to 16,384 GPUs (Grattafiori et al. 2024, table 4). Taken from there, not measured here."""


def slide_model() -> LanguageModelConfig:
    """The slide's hyper-parameters as a language model: no biases in attention, b_1 and b_2 in the feed-forward."""
    stack = StackConfig(
        layers=LAYERS,
        attention=HeadsConfig(heads=HEADS, bias=False),
        feed_forward=FeedForwardConfig(hidden=4 * WIDTH),
        dropout=0.0,
    )
    return LanguageModelConfig(vocabulary=VOCABULARY, width=WIDTH, decoder=stack)


def slide_parameters() -> int:
    """What the slide's own formula gives: |T|d + 5Nd²."""
    return VOCABULARY * WIDTH + 5 * LAYERS * WIDTH**2


@dataclass(frozen=True)
class Answer:
    """What the slide asks, for a number of tokens to train on, on some hardware at some price an hour."""

    cost: Cost
    tokens: int
    hardware: Hardware
    price: float
    share: float

    @property
    def training_flops(self) -> float:
        """Every token in a full window, forward and backward."""
        return 3 * self.cost.flops_per_token[1] * self.tokens

    @property
    def training_flops_by_parameters(self) -> float:
        """6PD (Kaplan et al. 2020, §2.1): attention left out, our parameters."""
        return 6 * self.cost.parameters * self.tokens

    @property
    def training_flops_by_the_slide(self) -> int:
        """6PD with the slide's parameters."""
        return 6 * slide_parameters() * self.tokens

    @property
    def training_hours(self) -> float:
        """Of one GPU; the work is spread over many."""
        return self.training_flops / (self.share * self.hardware.bf16) / 3600

    @property
    def training_money(self) -> float:
        return self.price * self.training_hours

    @property
    def least_gpus(self) -> int:
        """How many GPUs hold weights, gradients and optimiser, and not one activation yet."""
        return -(-self.cost.lasting_bytes // self.hardware.memory)

    @property
    def first_token_flops(self) -> int:
        return self.cost.generated_token_flops(1)

    @property
    def last_token_flops(self) -> int:
        """A token at the end of the window, all before it being in the cache."""
        return self.cost.generated_token_flops(WINDOW)

    @property
    def prompt_flops(self) -> float:
        """Reading a full window."""
        return self.cost.flops_per_token[1] * WINDOW

    @property
    def cache_bytes(self) -> int:
        """Of one full window."""
        return self.cost.cache_bytes_per_token[0] * WINDOW

    def token_seconds(self, rows: int = 1) -> float:
        """Of one GPU, for a token at the end of the window, when `rows` texts are written side by side.

        Weights are read once for all rows, the cache once for each: a token waits for memory or for arithmetic,
        whichever takes longer. Communication between GPUs is left out.
        """
        moved = 2 * self.cost.parameters / rows + self.cache_bytes
        return max(moved / self.hardware.bandwidth, self.last_token_flops / (self.share * self.hardware.bf16))

    def million_tokens_money(self, rows: int = 1) -> float:
        return 1e6 * self.token_seconds(rows) / 3600 * self.price


def answer(tokens: int, price: float, hardware: str = "h200", share: float = SHARE) -> Answer:
    """What the slide's model costs: `tokens` to train on, `price` for an hour of one GPU."""
    if hardware not in HARDWARE:
        raise UserError(f"There is no hardware named {hardware!r}; known hardware is {', '.join(HARDWARE)}.")
    if price < 0 or not 0 < share <= 1 or tokens < 1:
        raise UserError(
            "A price is at least 0, a share above 0 and at most 1, tokens at least 1; "
            f"found {price}, {share} and {tokens}."
        )
    cost = estimate(slide_model(), Work(1, WINDOW), precision="bf16")
    return Answer(cost, tokens, HARDWARE[hardware], price, share)
