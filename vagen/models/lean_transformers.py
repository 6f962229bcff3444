"""Imported before `transformers`: it then loads neither scikit-learn nor SciPy, which take time.

Where they are installed (MLflow brings them), `transformers` would import them in every process
that has a model: for assisted generation and the losses of object detection, which nothing here
uses.
"""

import transformers.utils

# pyrefly: ignore[bad-assignment]
transformers.utils.is_sklearn_available = transformers.utils.is_scipy_available = lambda: False
