"""Results as people read them: plain data in, text out. Knows nothing of how the data was found."""
