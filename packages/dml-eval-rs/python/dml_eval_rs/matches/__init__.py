"""Rules to match gallery items with queries, or to exclude items from rankings."""
