"""Make the model that comes with the package out of a trained one.

    python recipes/ship.py MODEL PREPARED OUT

Weights go to half precision; the datastore becomes our own cooking steps, embedded by MiniLM and
centred like the training captions, of which nothing is shipped. `PREPARED` is what
prepare_youcook2.py wrote.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from starc.media.joint import JointSpace
from starc.model import checkpoint
from starc.model.datastore import CaptionStore


def main() -> None:
    """Write the model folder."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("model", type=Path)
    arguments.add_argument("prepared", type=Path)
    arguments.add_argument("out", type=Path)
    options = arguments.parse_args()
    loaded = checkpoint.load(options.model, device="cpu")
    assert loaded.tokenizer is not None
    joint = JointSpace.load(options.prepared / "joint.safetensors", loaded.tokenizer)
    ours = CaptionStore.load(options.prepared / "cooking")
    checkpoint.save(options.out, loaded.model, tokenizer=loaded.tokenizer, joint=joint, half=True)
    ours.save(options.out / checkpoint.DATASTORE, half=True)
    total = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"{options.out}: {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
