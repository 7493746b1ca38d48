"""A page to watch, check and correct: `server.create_app` makes it, `server.serve` runs it."""
