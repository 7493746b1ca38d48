"""From annotation, feature and speech files to a trained model, and every table of the paper."""
