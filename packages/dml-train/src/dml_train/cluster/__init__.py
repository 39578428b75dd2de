"""Work on other machines: a Ray cluster, and what any worker must have before it works."""
