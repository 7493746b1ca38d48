"""The English recogniser of moonshine-voice, in processes of its own.

A crash in it is not ours, and each process has one thread: its runtime lets further ones spin while
they wait. Pieces of sound do not depend on each other, so long sound is heard by several processes
at once; who hears a piece does not change its words. This module is both sides: `Listener` is the
parent's, `main` the child's. A piece travels as its length in bytes (8, little-endian) and float32
samples; the answer is one line of JSON, [[start, duration, text], ...].
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
LANES = min(4, os.cpu_count() or 1)
"""Processes at most."""
SECONDS_EACH = 120
"""Of sound, for which another process is worth its start."""
Line = tuple[float, float, str]
"""Start, duration and text, in seconds of a piece."""


class Failed(Exception):
    """A child process has ended; the message is the last thing it said."""


class Listener:
    """A context in which pieces of sound are turned into lines."""

    def __enter__(self) -> Listener:
        self.given, self.over = 0, False
        self.lanes: list[threading.Thread] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self.tasks: queue.SimpleQueue[tuple[bytes, Future[list[Line]]] | None]
        self.tasks, self.room = queue.SimpleQueue(), threading.Semaphore(2 * LANES)
        return self

    def __exit__(self, *error: object) -> None:
        self.over = True
        for child in self.children:
            child.kill()
        for _ in self.lanes:
            self.tasks.put(None)
        for lane in self.lanes:
            lane.join()

    def hear(self, samples: NDArray[np.float32]) -> Future[list[Line]]:
        """What is said in a piece of sound; waits where too many are under way."""
        self.room.acquire()
        if len(self.lanes) < LANES and self.given >= SECONDS_EACH * RATE * len(self.lanes):
            self.lanes.append(threading.Thread(target=self._serve, daemon=True))
            self.lanes[-1].start()
        heard: Future[list[Line]] = Future()
        self.tasks.put((samples.tobytes(), heard))
        self.given += len(samples)
        return heard

    def _serve(self) -> None:
        child: subprocess.Popen[bytes] | None = None
        lost: BaseException | None = None
        while (task := self.tasks.get()) is not None:
            data, heard = task
            try:
                if lost is not None or self.over:
                    raise lost or Failed("nobody waits for it")
                if child is None:
                    child = _start()
                    self.children.append(child)
                heard.set_result(_ask(child, data))
            except BaseException as error:  # a child that has died says why once
                lost = error
                heard.set_exception(error)
            self.room.release()
        if child is not None:
            _end(child)


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
        # A second of silence, and the last line is complete.
        data = sys.stdin.buffer.read(size) + bytes(4 * RATE)
        samples = (ctypes.c_float * (len(data) // 4)).from_buffer_copy(data)
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
