"""The memory of one process at the peak of a step.

A pass needs most at one of three moments, and the largest counts:

- in the loss: everything saved for backward is there, and the logits;
- when backward begins: gradients of the last feed-forward's hidden features stand beside what it saved, and under
  activation checkpointing also one recomputed layer (the largest there is);
- when backward ends: little of what was saved is left, and bfloat16 copies of the weights have all their gradients.

The unfused model casts each weight by itself, so its third moment is never the peak, and the second only under
activation checkpointing.
"""

from operator import add

from torch import nn

from regard.cost.counted import output_width
from regard.cost.encoder_models import output_matrix_uses, output_stack, predictions
from regard.cost.feed_forward import hidden_grad_width
from regard.cost.forward import stack_costs
from regard.cost.fused_forward import FUSED_ACTIVATIONS, fused_stack_costs
from regard.cost.hardware import Hardware
from regard.cost.op_cost import Device, Precision, bytes_per_value
from regard.cost.setup import TrainingSetup
from regard.cost.workload import BatchShape
from regard.model import AnyModelConfig, SequenceConfig, count_parameters
from regard.model.stack import AnyFeedForward, Block

LOSS_CHUNK: dict[Device, int] = {"cpu": 1 << 19, "cuda": 1 << 23}
"""Logits that a chunked loss works on at a time."""
DEFERRED_BLOCK = 1 << 30
"""Logits that exist at a time where the loss computes them itself."""
CAPTURE_STREAMS = 3
"""With CUDA graphs, matmuls run on the main stream, on the one that passes warm up on, and on PyTorch's capture
stream."""


def weight_bytes(model: nn.Module, precision: Precision, shards: int) -> int:
    """Float32 weights, and those of the passes: all of them, or where sharded two gathered blocks and the rest."""
    parameters = count_parameters(model)
    if shards == 1:
        return parameters * (4 if precision == "float32" else 4 + 2)
    blocks = [count_parameters(module) for module in model.modules() if isinstance(module, Block)]
    gathered = parameters - sum(blocks) + 2 * max(blocks, default=0)
    return parameters * 4 // shards + min(parameters, gathered) * bytes_per_value(precision)


def workspace_bytes(hardware: Hardware, *, cuda_graphs: bool) -> int:
    """cuBLAS workspaces: one for each thread (forward and backward) and stream, never freed."""
    streams = CAPTURE_STREAMS if cuda_graphs and hardware.supports_cuda_graphs else 1
    return 2 * streams * hardware.workspace


def batch_bytes(
    config: AnyModelConfig, batch: BatchShape, setup: TrainingSetup, bfloat16_copies: int = 0
) -> tuple[int, int]:
    """What a micro-batch saves for backward, and what exists beside that at the peak.

    `setup` must be resolved. `bfloat16_copies` is the number of parameters whose bfloat16 copies have gradients of
    their own when backward ends.
    """
    precision, device = setup.precision, setup.device
    size, tokens = bytes_per_value(precision), batch.batch_size * batch.target_length
    per_row, classes = predictions(config, batch.target_length, batch.predicted_tokens)
    count = batch.batch_size * per_row
    logits = 0 if setup.loss == "deferred" else count * classes * size
    if isinstance(config, SequenceConfig):
        saved = sum(stack.total.bytes(precision, device) for stack in stack_costs(config, batch, device))
        return saved + logits, _loss_bytes(output_width(config), count, classes, setup)
    in_loss = _loss_bytes(config.width, count, classes, setup)
    if setup.fused:
        stacks = fused_stack_costs(config, batch, device, deferred_logits=setup.loss == "deferred")
    else:
        stacks = stack_costs(config, batch, device)
    uses_checkpointing = setup.uses_checkpointing(config, batch)
    pairs = list(zip(stacks, uses_checkpointing, strict=True))
    costs = [stack.checkpointed if recomputed else stack.total for stack, recomputed in pairs]
    saved = sum(cost.bytes(precision, device) for cost in costs) + logits
    # A recomputed decoder layer stands beside the gradients of its own feed-forward; an encoder layer, which comes
    # later, is counted with those of the decoder's last.
    hidden_grads = [size * tokens * _hidden_grads(each) for each in output_stack(config).feed_forwards]
    layers = [[layer.bytes(precision, device) for layer in stack.recomputed] if flag else [0] for stack, flag in pairs]
    decoder_layer = max(map(add, layers[1], hidden_grads)) if uses_checkpointing[1] else hidden_grads[-1]
    matrix = classes * config.width
    backward_begins = max(decoder_layer, max(layers[0]) + hidden_grads[-1]) + size * matrix - logits  # already freed
    if not setup.fused:
        return saved, max(in_loss, backward_begins) if setup.activation_checkpointing else in_loss
    # One more gradient of the embedding matrix, and its sum with the others.
    backward_ends = size * (bfloat16_copies + (2 * matrix if output_matrix_uses(config) > 1 else 0)) - saved
    return saved, max(in_loss, backward_begins, backward_ends)


def _hidden_grads(config: AnyFeedForward) -> int:
    """Values per token of the gradients that exist when backward enters a feed-forward.

    The fused activations free their output before their backward begins; ReLU and gated ones need as much again.
    """
    frees_output = config.activation in FUSED_ACTIVATIONS and config.activation != "relu"
    return hidden_grad_width(config) * (1 if frees_output else 2)


def _loss_bytes(width: int, count: int, classes: int, setup: TrainingSetup) -> int:
    """What exists for the duration of the loss, for `count` predictions over `classes`."""
    size, logits = bytes_per_value(setup.precision), count * classes
    grads = (count + classes) * width  # of the output vectors and of the output matrix
    if setup.loss == "deferred":
        blocks = -(-logits // DEFERRED_BLOCK)
        block = -(-count // blocks) * classes
        return size * (block + grads + count * width) + 8 * count
    if setup.loss == "in_place":
        return size * grads
    if setup.loss == "fused":
        return size * logits
    # The last chunk's log-probabilities and gradients still exist while the next are computed from a float32 copy.
    copies = 4 if setup.precision == "bfloat16" else 3
    return size * logits + 4 * copies * min(logits, LOSS_CHUNK[setup.device])
