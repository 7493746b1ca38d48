"""From a file to arrays: frames, their features, speech."""
