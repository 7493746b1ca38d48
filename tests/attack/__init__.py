"""The attack on our own house: `python -m attack.run` with tests/ on the path, or `make attack`."""
