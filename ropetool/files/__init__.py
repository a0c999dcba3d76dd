"""Files: how each checkpoint format is read, edited and written, without a thought for what rope values mean."""
