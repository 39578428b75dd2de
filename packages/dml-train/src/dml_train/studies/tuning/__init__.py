"""The search for settings, on classes held out of training."""
