"""The language of grid games: sentences, dicts and grids about where things are."""
