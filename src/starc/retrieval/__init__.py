"""Captions from a datastore: reading, embedding, searching, and the large or shared back ends."""
