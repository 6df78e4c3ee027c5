"""One module for each group of figures; `measure(world)` gives its figures."""
