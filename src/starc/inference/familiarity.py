"""Is this a video of the model's kind? Its frames and its speech, against what the model knows.

In: a model with a joint space and a datastore, the speech and the image features of a video. Frames
are as far as the mean square of their image features, standardised by those of training: 1 is an
ordinary training frame. Speech is as near as its sentences are to their nearest captions, at the
upper quartile: a quarter of what is said about cooking names food or tools, chatter or not. Either
is enough. Each model folder says which values it speaks up to unasked (`inputs.familiar_frames`,
`inputs.familiar_speech`); benchmarks/familiarity.py prints the distributions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from starc.model.checkpoint import Loaded
from starc.model.joint_space import JointSpace
from starc.types import Sentence

QUANTILE = 0.75


def frame_distance(joint: JointSpace, image_TI: Tensor) -> float | None:
    """How far the frames of a video (the median one) are from those of training."""
    if not len(image_TI) or image_TI.shape[1] != len(joint.mean_I):
        return None
    standard_TI = (image_TI - joint.mean_I) / joint.deviation_I
    return float(standard_TI.square().mean(1).median())


def speech_likeness(loaded: Loaded, sentences: Sequence[Sentence]) -> float | None:
    """How near what is said comes to the captions of the datastore, 0 to 1."""
    if loaded.joint is None or loaded.store is None or not len(loaded.store) or not sentences:
        return None
    query_ND = torch.stack([loaded.joint.words(sentence.text) for sentence in sentences])
    query_ND = query_ND[query_ND.any(1)]
    if not len(query_ND):
        return None
    nearest_N = loaded.store.search(query_ND, k=1).score_SR[:, 0]
    return float(nearest_N.float().quantile(QUANTILE))


def why_unfamiliar(loaded: Loaded, image_TI: Tensor, sentences: Sequence[Sentence]) -> str | None:
    """What tells this video from the model's kind; None if nothing does, or nobody can tell."""
    joint, inputs = loaded.joint, loaded.config.inputs
    if joint is None:
        return None
    reasons = []
    if inputs.familiar_frames and (far := frame_distance(joint, image_TI)) is not None:
        if far <= inputs.familiar_frames:
            return None
        reasons.append(f"frames {far:.2f} away, at most {inputs.familiar_frames:.2f}")
    if inputs.familiar_speech and (near := speech_likeness(loaded, sentences)) is not None:
        if near >= inputs.familiar_speech:
            return None
        reasons.append(f"speech {near:.2f} like, at least {inputs.familiar_speech:.2f}")
    return "; ".join(reasons) or None
