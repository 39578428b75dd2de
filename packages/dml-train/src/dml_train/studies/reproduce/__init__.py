"""The papers' tables as data: which runs make a row, what was published, and what is measured here."""
