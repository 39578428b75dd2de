"""Rules to match gallery items with queries, and to exclude items from rankings."""
