"""SVG: reproduce an image as one SVG document."""
