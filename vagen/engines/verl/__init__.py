"""The distributed engine: verl 0.9.1 on Ray. The only place that imports either of them."""
