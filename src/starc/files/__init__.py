"""Files people have and files we write: annotations, whole-or-nothing writing, cache, pickles."""
