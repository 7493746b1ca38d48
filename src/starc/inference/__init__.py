"""From a video to its events: one road for captioning, validation, evaluation and analysis."""
