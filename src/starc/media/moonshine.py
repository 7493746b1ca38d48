"""The English recogniser of moonshine-voice, in processes of its own.

Its voice detector remembers what it has heard for as long as its process lives, so words depend on
the sound before them: every file gets fresh processes, and which of them hears what depends on the
sound alone, never on the machine. Each has one thread: its runtime lets further ones spin while
they wait. This module is both sides: `Listener` is the parent's, `main` the child's. A piece of
sound travels as its length in bytes (8, little-endian) and float32 samples; the answer is one line
of JSON, [[start, duration, text], ...].
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the child starts faster without numpy
    import numpy as np
    from numpy.typing import NDArray

MODEL = "tiny-en"
RATE = 16_000
LANES = 2
"""Processes that take turns in long sound; another number would change the words."""
TURN = 120 * RATE
"""Samples of a turn: for less, another process is not worth its start."""
AHEAD = 8
"""Pieces that may wait for a process."""
Line = tuple[float, float, str]
"""Start, duration and text, in seconds of a piece."""


class Failed(Exception):
    """A child process has ended; the message is the last thing it said."""


class Listener:
    """A context in which pieces of sound, one after another, are turned into lines."""

    def __enter__(self) -> Listener:
        self.given, self.lanes = 0, list[_Lane]()
        return self

    def __exit__(self, *error: object) -> None:
        for lane in self.lanes:
            lane.close()

    def hear(self, samples: NDArray[np.float32]) -> Future[list[Line]]:
        """What is said in the next piece; waits where the processes are far behind."""
        turn = self.given // TURN % LANES
        while len(self.lanes) <= turn:
            self.lanes.append(_Lane())
        self.given += len(samples)
        return self.lanes[turn].hear(samples.tobytes())


class _Lane:
    """A process, and the thread that talks to it."""

    def __init__(self) -> None:
        self.child = _start()
        self.tasks: queue.SimpleQueue[tuple[bytes, Future[list[Line]]] | None] = queue.SimpleQueue()
        self.room = threading.Semaphore(AHEAD)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def hear(self, data: bytes) -> Future[list[Line]]:
        self.room.acquire()
        heard: Future[list[Line]] = Future()
        self.tasks.put((data, heard))
        return heard

    def close(self) -> None:
        self.child.kill()
        self.tasks.put(None)
        self.thread.join()
        _end(self.child)

    def _serve(self) -> None:
        lost: BaseException | None = None
        while (task := self.tasks.get()) is not None:
            data, heard = task
            try:
                if lost is not None:
                    raise lost
                heard.set_result(_ask(self.child, data))
            except BaseException as error:  # a child that has died says why once
                lost = error
                heard.set_exception(error)
            self.room.release()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: the names of our modules must not hide those of the child's packages.
        [sys.executable, "-P", __file__],
        env={**os.environ, "MOONSHINE_ORT_SINGLE_THREAD": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _ask(child: subprocess.Popen[bytes], data: bytes) -> list[Line]:
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    answer = b""
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(len(data).to_bytes(8, "little") + data)
        child.stdin.flush()
        answer = child.stdout.readline()
    if not answer:
        last = child.stderr.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        raise Failed(last[0] if last else f"exit code {child.wait()}")
    return [(start, duration, text) for start, duration, text in json.loads(answer)]


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        # Sound that a dead child has not taken cannot be flushed any more.
        with contextlib.suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()


def main() -> None:
    """The child: hear a piece, say what was said, until there is no more."""
    import moonshine_voice  # type: ignore[import-untyped,import-not-found,unused-ignore]

    options = {"identify_speakers": "false", "return_audio_data": "false"}
    transcriber: Any = moonshine_voice.Transcriber(
        moonshine_voice.get_model_path(MODEL), moonshine_voice.ModelArch.TINY, options=options
    )
    add = transcriber._lib.moonshine_transcribe_add_audio_to_stream
    while size := int.from_bytes(sys.stdin.buffer.read(8), "little"):
        # Never of its own accord: what is transcribed before it is complete is transcribed twice.
        stream = transcriber.create_stream(update_interval=float("inf"))
        stream.start()
        data = sys.stdin.buffer.read(size)
        samples = (ctypes.c_float * (size // 4)).from_buffer_copy(data)
        # Its own way to add sound makes a Python number of every sample.
        moonshine_voice.errors.check_error(
            add(transcriber._handle, stream._handle, samples, len(samples), RATE, 0)
        )
        stream.update_transcription()
        heard = stream.stop()
        stream.close()
        json.dump([[line.start_time, line.duration, line.text] for line in heard.lines], sys.stdout)
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
