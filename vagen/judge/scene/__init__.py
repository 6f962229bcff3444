"""Language about what is around: things, directions from where one looks, distances."""
