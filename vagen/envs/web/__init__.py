"""Web: small applications in a real browser, with a model that knows their exact state."""
