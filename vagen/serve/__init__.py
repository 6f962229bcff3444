"""A model behind OpenAI's chat completions."""
