"""Import this before `transformers` to save two seconds at every start.

`transformers` imports scikit-learn and SciPy, if installed (MLflow needs them), for assisted
generation and losses of object detection, which are unused here.
"""

import transformers.utils

# pyrefly: ignore[bad-assignment]
transformers.utils.is_sklearn_available = transformers.utils.is_scipy_available = lambda: False
