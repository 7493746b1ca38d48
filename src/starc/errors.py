"""What can go wrong, as one tree.

    StarcError
    ├── AnnotationError    annotation, prediction and reference files
    ├── VideoError         video files
    ├── SpeechError        speech and subtitle files
    ├── DatastoreError     caption datastores
    ├── CheckpointError    model folders and published weights
    ├── ConfigError        presets and --set overrides
    └── MissingExtra       an optional dependency that is not installed

A message reads "where: what is wrong (value found); what to do" and fits one line. Outside data
raises these; a wrong call of our API raises ValueError. The command line prints the message and
exits with `exit_code`. The first two are starc-eval's.
"""

from starc_eval.errors import AnnotationError, StarcError

__all__ = [
    "AnnotationError",
    "CheckpointError",
    "ConfigError",
    "DatastoreError",
    "MissingExtra",
    "SpeechError",
    "StarcError",
    "Stopped",
    "VideoError",
]


class VideoError(StarcError):
    """A video file cannot be used."""


class SpeechError(StarcError):
    """A speech or subtitle file cannot be used."""


class DatastoreError(StarcError):
    """A caption datastore cannot be used."""


class CheckpointError(StarcError):
    """A model folder or a published weight file cannot be used."""


class ConfigError(StarcError):
    """A preset, a setting or an override is wrong."""

    exit_code = 2


class MissingExtra(StarcError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str | None = None) -> None:
        """`what` is the package itself where no extra brings it."""
        wanted = f"'starc[{extra}]'" if extra else what
        super().__init__(f"{what} is not installed; pip install {wanted}")


class Stopped(Exception):
    """The caller has ended the work; no error."""
