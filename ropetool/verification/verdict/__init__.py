"""The default verification: the cost of a longer context, decided text by text within a time limit."""
