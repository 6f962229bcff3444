"""One folder per pipeline step: a thin Kubeflow component over `vagen.stages`."""
