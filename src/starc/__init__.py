"""Dense video captioning: a long video and its speech in, timestamped captions out."""
