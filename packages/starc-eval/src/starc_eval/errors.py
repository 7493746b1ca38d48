"""What can go wrong. A message reads "where: what is wrong (value found); what to do"."""


class StarcError(Exception):
    """Anything a user can fix: the base of the errors of starc-eval and of starc."""

    exit_code = 1


class AnnotationError(StarcError):
    """An annotation, prediction or reference file cannot be used."""

    exit_code = 2
