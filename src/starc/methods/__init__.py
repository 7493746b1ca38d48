"""Published methods besides STaRC, in plain torch, under their published parameter names."""
