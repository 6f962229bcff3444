"""From files and overrides to a checked experiment.

The schema (`vagen.config`) knows no environment, judge or estimator; what is here looks them up.
"""
