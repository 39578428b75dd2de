"""The papers' tables as data: the runs per row, and the published and measured figures."""
