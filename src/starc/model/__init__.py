"""The method, in the order of the paper: ARCHITECTURE.md draws the data flow."""
