"""The method, in the order of the paper: see ARCHITECTURE.md for the road a video takes."""
