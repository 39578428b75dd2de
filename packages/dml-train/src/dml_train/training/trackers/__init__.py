"""Loggers that send a run to an experiment tracker: Weights & Biases, MLflow, Trackio.

Each logs the recipe as the run's settings and every value at its step. A tracker shows the last value of each name as
the run's result, and the evaluation of the test split comes last. The tracker's name for the run is kept in the run's
folder, so that a resumed run continues there; the steps since the last checkpoint are then logged a second time, with
the same values. Trackers write in the background: a killed run may lack the values of its last seconds there.
"""
