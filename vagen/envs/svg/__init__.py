"""SVG: draw a picture that is shown as one SVG document."""
