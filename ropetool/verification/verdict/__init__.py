"""The default verification: what a longer context costs, decided text by text within a number of minutes."""
