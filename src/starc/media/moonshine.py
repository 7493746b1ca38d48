"""The English recogniser of moonshine-voice, in a process of its own.

Its voice detector keeps the end of what it heard for as long as the process lives, so the words of
a file would depend on the files before it: every file gets a fresh process, and with it the same
words each time. This module is both sides: `Listener` is the parent's, `main` the child's.
Sound travels as its length in bytes (8, little-endian) and float32 samples; a length of zero ends
it, and the answer is one line of JSON, [[start, duration, text], ...].
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the child starts faster without numpy
    import numpy as np
    from numpy.typing import NDArray

MODEL = "tiny-en"
RATE = 16_000


class Failed(Exception):
    """The child process has ended; the message is the last thing it said."""


class Listener:
    """A context in which the sound of one file, piece by piece, is turned into lines."""

    def __enter__(self) -> Listener:
        # -P: the names of our modules must not hide those of the child's packages.
        self.child = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            # Sound that a dead child has not taken cannot be flushed any more.
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def hear(self, samples: NDArray[np.float32]) -> None:
        """Give it the next piece of sound."""
        self._send(samples.tobytes())

    def lines(self) -> list[tuple[float, float, str]]:
        """Start, duration and text of all that was said, in seconds of the sound given."""
        self._send(b"")
        assert self.child.stdout is not None
        answer = self.child.stdout.readline()
        if not answer:
            raise self._failure()
        return [(start, duration, text) for start, duration, text in json.loads(answer)]

    def _send(self, data: bytes) -> None:
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(len(data).to_bytes(8, "little") + data)
            self.child.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def _failure(self) -> Failed:
        assert self.child.stderr is not None
        last = self.child.stderr.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        return Failed(last[0] if last else f"exit code {self.child.wait()}")


def main() -> None:
    """The child: hear until there is no more, then say what was said."""
    import array

    import moonshine_voice  # type: ignore[import-untyped,import-not-found,unused-ignore]

    options = {"identify_speakers": "false", "return_audio_data": "false"}
    transcriber: Any = moonshine_voice.Transcriber(
        moonshine_voice.get_model_path(MODEL), moonshine_voice.ModelArch.TINY, options=options
    )
    # Never of its own accord: what is transcribed before it is complete is transcribed twice.
    stream = transcriber.create_stream(update_interval=float("inf"))
    stream.start()
    while size := int.from_bytes(sys.stdin.buffer.read(8), "little"):
        stream.add_audio(array.array("f", sys.stdin.buffer.read(size)), RATE)
        stream.update_transcription()
    heard = stream.stop()
    json.dump([[line.start_time, line.duration, line.text] for line in heard.lines], sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
