"""Work on other machines: executors, and the checks of their workers before they work."""
