"""From a video to its events: one code path for captioning, validation, evaluation and analysis."""
