"""Imported before `transformers`: it then loads no scikit-learn, which takes seconds.

Where scikit-learn is installed (MLflow brings it), `transformers` would import it, scipy and pandas
in every process that has a model, for its assisted generation alone, which nothing here uses.
"""

import transformers.utils

# pyrefly: ignore[bad-assignment]
transformers.utils.is_sklearn_available = lambda: False
