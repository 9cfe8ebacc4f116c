"""What the patches of an image say: the class that the classifier reads from the last hidden state of each.

The classifier was trained on another vector, that of the CLS token or the mean over the patches. So this is a probe of
what a patch's vector contains, and no prediction that the model makes.
"""

import torch

from regard.errors import UserError
from regard.look.models.images import TracedImageClassifier
from regard.look.schema import PatchClasses, TokenClass
from regard.look.trace import Trace


@torch.no_grad()
def patch_classes(trace: Trace) -> PatchClasses:
    """The likeliest class of every token of an image, in the order of the trace's tokens."""
    traced_model = trace.require_model()
    if not isinstance(traced_model, TracedImageClassifier):
        raise UserError(f"{traced_model.name} does not classify images, so there are no patches to read.")
    model, request = traced_model.model, trace.header.request
    pixels = traced_model.encode_request(request).tensor.to(model.device)
    with traced_model.ablated(request):
        logits = model.classify(model.encode(pixels)[0])
    probabilities = logits.double().softmax(dim=-1).cpu()
    labels, image_label = traced_model.pipeline.labels, trace.output
    best, of_image = probabilities.max(dim=-1), probabilities[:, list(labels).index(image_label)]
    return PatchClasses(
        pooling=model.config.pooling,
        label=image_label,
        tokens=[
            TokenClass(label=labels[index], probability=probability, image_class_probability=of_label)
            for index, probability, of_label in zip(
                best.indices.tolist(), best.values.tolist(), of_image.tolist(), strict=True
            )
        ],
    )
