"""Small pictures of videos, made when the page first asks and kept in the cache folder.

The picture is the key frame before the most salient moment, so one seek and one decoded frame
suffice. It is encoded as JPEG by PyAV; a video that cannot be decoded has no picture.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from fractions import Fraction
from itertools import islice
from pathlib import Path

import av

from starc.errors import VideoError
from starc.files.atomic import replacing
from starc.files.cache import cache_folder, key_of_file, make_folder
from starc.media.container import MediaLimits, open_container, video_stream

WIDTH_PX = 480
MOST_PACKETS = 2_000
"""Of a video without a key frame to show."""
_DECODERS = threading.BoundedSemaphore(2)


def thumbnail(video: Path, time: float | None, *, cache: Path | None = None) -> bytes:
    """JPEG of the moment `time` (None: a tenth into the video)."""
    name = key_of_file(video, str(time), str(WIDTH_PX))
    kept = (cache or cache_folder("thumbnails")) / f"{name}.jpg"
    with suppress(OSError):
        return kept.read_bytes()
    with _DECODERS:
        picture = _encode(_key_frame(video, time))
    with suppress(OSError):  # a full or read-only cache costs time, not the picture
        make_folder(kept.parent)
        with replacing(kept, binary=True) as file:
            file.write(picture)
    return picture


def _key_frame(video: Path, time: float | None) -> av.VideoFrame:
    limits = MediaLimits()
    with open_container(video, limits) as container:
        stream = video_stream(video, container)
        stream.codec_context.skip_frame = "NONKEY"
        stream.codec_context.options = {"max_pixels": str(limits.pixels)}
        wanted = time if time is not None else (container.duration or 0) / av.time_base / 10
        if wanted > 0:
            container.seek(int(wanted * av.time_base))
        for frame in container.decode(stream):
            return frame
        # The only key frame may lie before the edit list, and is never shown: any frame will do.
        stream.codec_context.skip_frame = "DEFAULT"
        container.seek(0)
        for packet in islice(container.demux(stream), MOST_PACKETS):
            for frame in packet.decode():
                return frame
    raise VideoError(f"{video.name}: no frame in it")


def _encode(frame: av.VideoFrame) -> bytes:
    width = min(WIDTH_PX, frame.width) // 2 * 2 or 2
    height = max(2, round(frame.height * width / frame.width) // 2 * 2)
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height = width, min(height, 4 * WIDTH_PX)
    encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 25)
    encoder.options = {"qmin": "3", "qmax": "5"}
    small = frame.reformat(width, encoder.height, format="yuvj420p", dst_color_range="JPEG")
    small.pts, small.pict_type = 0, 0
    return b"".join(map(bytes, [*encoder.encode(small), *encoder.encode(None)]))
