"""Is this a video of the model's kind? Measured against the captions that it knows.

In: a model with a joint space and a datastore, the speech and the image features of a video. Out:
how near the nearest caption is to its sentences, or to its frames where nothing is said, at the
upper quartile: a quarter of what is said about cooking names food or tools, chatter or not. Each
model folder says from which value on it speaks unasked (`inputs.familiar_speech`,
`inputs.familiar_frames`); docs/model-card.md has the distributions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from starc.model.checkpoint import Loaded
from starc.types import Sentence

QUANTILE = 0.75


def familiarity(loaded: Loaded, query_ND: Tensor) -> float | None:
    """Likeness of vectors of the joint space to their nearest captions, 0 to 1."""
    query_ND = query_ND[query_ND.any(1)]
    if loaded.store is None or not len(loaded.store) or not len(query_ND):
        return None
    nearest_N = loaded.store.search(query_ND, k=1).score_SR[:, 0]
    return float(nearest_N.float().quantile(QUANTILE))


def why_unfamiliar(loaded: Loaded, image_TI: Tensor, sentences: Sequence[Sentence]) -> str | None:
    """Why this video is not of the model's kind; None if it is, or nobody can tell."""
    joint, inputs = loaded.joint, loaded.config.inputs
    if joint is None:
        return None
    if sentences:
        query_ND = torch.stack([joint.words(sentence.text) for sentence in sentences])
        what, least = "what is said", inputs.familiar_speech
    elif image_TI.shape[1] == len(joint.mean_I):
        query_ND, what, least = (
            joint.encode_images(image_TI),
            "what is seen",
            inputs.familiar_frames,
        )
    else:
        return None
    likeness = familiarity(loaded, query_ND) if least else None
    if likeness is None or likeness >= least:
        return None
    return f"{what} is unlike the videos this model knows ({likeness:.2f}, at least {least:.2f})"
