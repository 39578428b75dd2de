"""Work on other machines: a Ray cluster, and checks of the workers."""
