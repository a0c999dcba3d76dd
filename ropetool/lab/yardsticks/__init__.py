"""Reference attention variants: attention that no file can store, for comparison. They run in a loaded model."""
