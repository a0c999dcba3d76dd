"""Files: reading, editing and writing of each checkpoint format, without any meaning of rope values."""
