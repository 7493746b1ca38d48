"""The language model that writes events: T5, time tokens, the grammar, beam search."""
